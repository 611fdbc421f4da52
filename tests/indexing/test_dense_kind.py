"""Which kind of index a corpus gets, and what is refused before anything is spent."""

import math

import pytest

from enrichment.errors import ConfigError
from indexing import dense_kind
from indexing.dense_kind import Kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("auto", None),
        ("flat", Kind()),
        ("Flat", Kind()),
        ("SQfp16", Kind()),
        ("IVF1024,SQfp16", Kind(1024)),
        ("IVF4096_HNSW32,SQ8", Kind(4096, 32, "SQ8")),
        ("IVF65536,PQ48", Kind(65536, 0, "PQ48")),
    ],
)
def test_a_factory_string_is_a_kind(text: str, kind: Kind | None) -> None:
    assert dense_kind.parse(text) == kind
    if kind is not None and kind.lists:
        assert str(kind) == text


@pytest.mark.parametrize(
    "text",
    ["", "HNSW32", "HNSW32,SQ8", "IVF1024", "IVF1024,Flat", "IVF0,SQ8", "IVF,SQ8", "PQ48", "SQ8", "LSH", "IVF16,SQ8 ",
     "IVF16,PQ0", "IVF16,PQ8x4", "PCA64,IVF16,SQ8", "IVF16(RCQ2x4),SQ8", "IVF1024,RaBitQ", "FLAT", "IVF99999999,SQ8"],
)  # fmt: skip
def test_another_kind_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"index\.dense is .*auto, flat, or IVF<lists>.*HNSW only finds the lists"):
        dense_kind.parse(text)


def test_a_product_quantizer_must_divide_the_dimension() -> None:
    dense_kind.check_dimension(Kind(64, 0, "PQ48"), 384)
    dense_kind.check_dimension(Kind(64, 0, "SQ8"), 383)
    with pytest.raises(ConfigError, match="PQ48, but 48 bytes do not divide the embedder's 100 dimensions"):
        dense_kind.check_dimension(Kind(64, 0, "PQ48"), 100)


def auto(num_vectors: int, memory_gb: float | None = None, known: tuple[Kind, int] | None = None) -> str:
    budget = None if memory_gb is None else memory_gb * 1e9
    return str(dense_kind.choose(None, num_vectors, 384, budget, known))


def test_auto_goes_by_size() -> None:
    assert [auto(n) for n in (0, 1, 200_000, 200_001, 1_000_000, 1_000_001, 10_000_000)] == [
        *("SQfp16", "SQfp16", "SQfp16"),
        *("IVF2048,SQfp16", "IVF4096,SQfp16", "IVF4096_HNSW32,SQfp16", "IVF16384_HNSW32,SQfp16"),
    ]
    assert str(dense_kind.choose(None, 100_001, 768, None, None)) == "IVF2048,SQfp16", "values count, not vectors"
    for n in (200_001, 350_000, 999_999, 5_000_000, 50_000_000, 200_000_000):
        kind = dense_kind.choose(None, n, 384, None, None)
        assert 4 * math.sqrt(n) <= kind.lists <= 16 * math.sqrt(n), "the guidelines' range"
        assert n >= kind.least_vectors()


def test_auto_keeps_its_lists_within_a_factor_of_four() -> None:
    known = (Kind(4096), 1_000_000)
    assert [auto(n, known=known) for n in (250_000, 999_999, 4_000_000)] == ["IVF4096,SQfp16"] * 3
    assert auto(249_999, known=known) == "IVF2048,SQfp16"
    assert auto(4_000_001, known=known) == "IVF8192_HNSW32,SQfp16"
    assert auto(100_000, known=known) == "SQfp16"


def test_auto_keeps_to_the_memory() -> None:
    """1,000,000 x 384: 776 MB of float16 codes and ids, 392 MB of 8-bit ones, 6 MB of centroids."""
    assert (auto(1_000_000, 0.79), auto(1_000_000, 0.78)) == ("IVF4096,SQfp16", "IVF4096,SQ8")
    assert auto(100_000, 0.07) == "IVF2048,SQ8", "a small corpus too"
    with pytest.raises(
        ConfigError, match=r"index.memory_gb is 0.3, but 1,000,000 vectors take 0.398 GB as IVF4096,SQ8"
    ):
        auto(1_000_000, 0.3)


def test_auto_does_not_go_to_and_fro_at_the_edge_of_the_memory() -> None:
    known = (Kind(4096, 0, "SQ8"), 1_000_000)
    assert auto(1_000_000, 0.79, known) == "IVF4096,SQ8"
    assert auto(1_000_000, 0.98, known) == "IVF4096,SQfp16"
    assert auto(1_000_000, None, known) == "IVF4096,SQfp16"


@pytest.mark.parametrize("num_vectors", [0, 29, 31, 900, 14_000])
def test_so_few_vectors_can_be_trained(num_vectors: int) -> None:
    """Only a tiny budget asks for it."""
    kind = dense_kind.choose(None, num_vectors, 384, num_vectors * 700.0, None)
    assert kind.lists * dense_kind.LEAST_PER_LIST <= max(num_vectors, dense_kind.LEAST_PER_LIST)


def test_what_is_asked_for_needs_vectors_to_train() -> None:
    asked = Kind(8)
    assert dense_kind.choose(asked, 240, 64, None, None) == asked
    assert dense_kind.choose(asked, 0, 64, None, None) == Kind(), "a corpus without text is flat"
    assert dense_kind.choose(asked, 100, 64, None, (asked, 500)) == asked, "it is trained already"
    with pytest.raises(ConfigError, match="IVF8,SQfp16, which takes 240 vectors to train, and the corpus has 239"):
        dense_kind.choose(asked, 239, 64, None, (Kind(4), 500))
    with pytest.raises(ConfigError, match="takes 7,680 vectors"):
        dense_kind.choose(Kind(8, 0, "PQ8"), 1000, 64, None, None)


@pytest.mark.parametrize(
    ("memory", "floor", "key"), [(0.0, 0.9, "memory_gb"), (-1.0, 0.9, "memory_gb"), (1.0, 1.1, "recall_floor")]
)
def test_settings_that_no_corpus_can_have_are_refused(memory: float, floor: float, key: str) -> None:
    with pytest.raises(ConfigError, match=f"index.{key} is"):
        dense_kind.check("auto", memory, floor)
