"""Embedding: unit vectors, and nothing cut silently. The real model is all-MiniLM-L6-v2."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from enrichment import models
from enrichment.embed import (
    Embedder,
    EmbeddingOptions,
    FakeEmbedder,
    SentenceEmbedder,
    open_embedder,
    open_tokenizer,
    parts,
    vector_key,
)
from enrichment.errors import ConfigError
from enrichment.tokens import FakeTokenizer, FileTokenizer, Tokenizer

REAL = EmbeddingOptions("all-minilm-l6-v2")
FAKE = EmbeddingOptions("fake")
TEXTS = [
    "The refund window is thirty days.",
    "",
    "排放量应当按照第四条计算。",
    "A chiller. " * 60,
    "The refund window is thirty days.",
    "👩‍👧",
]
# Words that are more tokens when they are cut in two, or have no spaces, or stand for nothing the model knows.
WORDS = [
    *(
        "the",
        "chiller",
        "unbelievably",
        "antidisestablishmentarianism",
        "thermodynamically",
        "deadbeef0123456789abcdef",
    ),
    *(
        "e\u0301clair",
        "在该范围内",
        "👩‍👧",
        "x_y.z",
        ",",
        "...",
        "Übergrößenträger",
        "a" * 25,
        "z" * 120,
        "\n\n",
        "\r\n\t",
    ),
]


class Window:
    """As much of an embedder as `parts` asks for."""

    dimension, fingerprint = 1, ""

    def __init__(self, window: int, tokenizer: Tokenizer) -> None:
        self.window, self.tokenizer = window, tokenizer

    def embed_passages(self, texts: Sequence[str]) -> np.ndarray:
        raise NotImplementedError

    embed_queries = embed_passages


@pytest.fixture(scope="module")
def real() -> SentenceEmbedder:
    return SentenceEmbedder(models.resolve(REAL.name), REAL)


@pytest.fixture(scope="module", params=["all-minilm-l6-v2", "smollm2-135m-instruct", "fake"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return FakeTokenizer() if request.param == "fake" else FileTokenizer(models.resolve(request.param))


def length(embedder: Embedder, text: str) -> int:
    return len(embedder.tokenizer.encode(text).ids)


@pytest.mark.model
def test_vectors_are_unit_length_and_384_wide(real: SentenceEmbedder) -> None:
    for vectors in (real.embed_passages(TEXTS), real.embed_queries(TEXTS)):
        assert vectors.shape == (6, real.dimension) == (6, 384)
        assert vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert real.embed_passages([]).shape == (0, 384)


@pytest.mark.model
def test_a_batch_gives_what_single_texts_give_in_their_order(real: SentenceEmbedder) -> None:
    single = np.concatenate([real.embed_passages([text]) for text in TEXTS])
    assert np.abs(real.embed_passages(TEXTS) - single).max() < 1e-5
    assert np.abs(real.embed_passages(TEXTS[::-1])[::-1] - single).max() < 1e-5
    assert not np.allclose(single[0], single[2], atol=0.1)


@pytest.mark.model
def test_a_text_on_the_subject_is_nearer_than_another(real: SentenceEmbedder) -> None:
    passages = real.embed_passages([TEXTS[0], "Paris is the capital of France."])
    query = real.embed_queries(["How long can I return it for my money?"])[0]
    assert passages[0] @ query > passages[1] @ query + 0.1


@pytest.mark.model
def test_prefixes_change_their_own_vectors_the_window_and_the_fingerprint(real: SentenceEmbedder) -> None:
    directory = models.resolve(REAL.name)
    query = SentenceEmbedder(directory, replace(REAL, query_prefix="query: "))
    passage = SentenceEmbedder(directory, replace(REAL, passage_prefix="passage: "))
    plain = real.embed_passages(TEXTS[:1])
    assert np.allclose(query.embed_passages(TEXTS[:1]), plain, atol=1e-5)
    assert np.allclose(passage.embed_queries(TEXTS[:1]), plain, atol=1e-5)
    assert np.allclose(query.embed_queries(TEXTS[:1]), real.embed_passages(["query: " + TEXTS[0]]), atol=1e-5)
    assert np.allclose(passage.embed_passages(TEXTS[:1]), real.embed_passages(["passage: " + TEXTS[0]]), atol=1e-5)
    assert not np.allclose(query.embed_queries(TEXTS[:1]), plain, atol=1e-3)
    assert (real.window, query.window, passage.window) == (254, 254, 252)
    assert len({real.fingerprint, query.fingerprint, passage.fingerprint}) == 3


@pytest.mark.model
def test_a_part_as_long_as_the_window_is_embedded_to_its_last_word(real: SentenceEmbedder) -> None:
    texts = ["word " * (real.window - 1) + end for end in ("ship", "tree")]
    assert [length(real, text) for text in texts] == [real.window] * 2
    first, second = real.embed_passages(texts)
    assert np.abs(first - second).max() > 1e-4
    longer = real.embed_passages(["word " + text for text in texts])
    assert np.abs(longer[0] - longer[1]).max() < 1e-6  # what the window is for: this end would be cut silently


@pytest.mark.model
def test_a_prefix_that_fills_the_window_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"embedding\.passage_prefix leaves 4 tokens"):
        SentenceEmbedder(models.resolve(REAL.name), replace(REAL, passage_prefix="word " * 250))


@pytest.mark.model
def test_pooling_changes_vectors_and_fingerprint(real: SentenceEmbedder) -> None:
    cls = SentenceEmbedder(models.resolve(REAL.name), replace(REAL, pooling="cls"))
    mean = SentenceEmbedder(models.resolve(REAL.name), replace(REAL, pooling="mean"))
    plain = real.embed_passages(TEXTS[:1])
    assert np.allclose(mean.embed_passages(TEXTS[:1]), plain, atol=1e-5)
    assert not np.allclose(cls.embed_passages(TEXTS[:1]), plain, atol=1e-2)
    assert len({real.fingerprint, cls.fingerprint, mean.fingerprint}) == 3


@pytest.mark.parametrize("lead", ["", "Handbook > Travel"])
@pytest.mark.parametrize("body", ["", "One night.", "  One night.\n", "a" * 100_000])
def test_a_text_that_fits_is_one_part_of_lead_and_body(lead: str, body: str) -> None:
    embedder = Window(254, FileTokenizer(models.resolve(REAL.name)))
    assert parts(lead, body, embedder) == [f"{lead}\n{body}" if lead else body]


@pytest.mark.parametrize("lead", ["", "Handbook > Travel > Hôtels"])
@pytest.mark.parametrize("window", [25, 31, 254])
def test_a_long_text_gives_overlapping_parts_that_cover_it_each_in_the_window_with_the_lead(
    window: int, lead: str, tokenizer: Tokenizer
) -> None:
    embedder, rng = Window(window, tokenizer), random.Random(window)
    for _ in range(10):
        body = " ".join(rng.choice(WORDS) for _ in range(rng.randint(window, 3 * window)))
        found = parts(lead, body, embedder)
        assert 1 < len(found) <= 3 * length(embedder, body) / (window - length(embedder, lead))
        covered = 0
        for part in found:
            assert length(embedder, part) <= window
            assert part.startswith(f"{lead}\n" if lead else "")
            text = part.removeprefix(f"{lead}\n" if lead else "")
            starts = [at for at in range(covered + 1) if body.startswith(text, at)]
            assert starts, "a gap"
            covered = max(starts) + len(text)
        assert covered == len(body)


def test_parts_share_an_eighth_so_that_a_phrase_at_a_cut_is_whole_in_one() -> None:
    embedder = Window(80, FakeTokenizer())
    body = " ".join(f"w{number}" for number in range(300))
    found = [part.split() for part in parts("", body, embedder)]
    assert [words[0] for words in found] == ["w0", "w70", "w140", "w210", "w280"][: len(found)]
    assert [len(words) for words in found[:-1]] == [80] * (len(found) - 1)


@pytest.mark.parametrize("body", ["One night.", "word " * 400])
def test_a_very_long_lead_keeps_its_end_and_leaves_half_the_window_to_the_text(body: str, tokenizer: Tokenizer) -> None:
    embedder = Window(254, tokenizer)
    lead = " > ".join(f"Unbelievably long heading {number}" for number in range(100)) + " > Hotels"
    found = parts(lead, body, embedder)
    for part in found:
        kept, _, text = part.partition("\n")
        assert lead.endswith(kept) and kept.endswith(" > Hotels")
        assert 100 <= length(embedder, kept) <= 130
        assert text.strip() and length(embedder, part) <= 254
    assert len(found) == 1 if len(body) < 20 else 4 <= len(found) <= 6


def test_the_fake_embedder_is_deterministic_and_near_for_shared_words() -> None:
    embedder = FakeEmbedder(FAKE)
    vectors = embedder.embed_passages(TEXTS)
    assert vectors.shape == (6, embedder.dimension) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert (vectors == FakeEmbedder(FAKE).embed_queries(TEXTS)).all()
    assert (vectors[0] == vectors[4]).all()
    assert embedder.calls == 6
    near, far, query = embedder.embed_passages(["refund window of days", "quite other words here", "the refund window"])
    assert near @ query > far @ query


def test_fingerprints_of_fake_embedders_differ_by_their_options() -> None:
    options = [FAKE, replace(FAKE, query_prefix="q"), replace(FAKE, passage_prefix="q"), replace(FAKE, pooling="cls")]
    found = [FakeEmbedder(each).fingerprint for each in options]
    assert len(set(found)) == 4 and FakeEmbedder(replace(FAKE)).fingerprint == found[0]


def test_a_vector_key_depends_on_the_exact_text_and_the_embedder() -> None:
    keys = [vector_key("m", "text"), vector_key("n", "text"), vector_key("m", "text "), vector_key("m", "Text")]
    assert len(set(keys)) == 4 and vector_key("m", "text") == keys[0]


def test_the_name_fake_opens_the_fake_ones() -> None:
    assert isinstance(open_embedder(FAKE), FakeEmbedder)
    assert isinstance(open_tokenizer(FAKE), FakeTokenizer)
    assert isinstance(open_tokenizer(REAL), FileTokenizer)


def test_a_query_prefix_makes_no_passage_vector_anew() -> None:
    found = [FakeEmbedder(each).passage_fingerprint for each in (FAKE, replace(FAKE, query_prefix="q"))]
    assert found[0] == found[1] != FakeEmbedder(replace(FAKE, passage_prefix="q")).passage_fingerprint


def test_parts_may_be_shorter_than_the_window_and_their_vectors_stay_the_same() -> None:
    whole, cut = EmbeddingOptions("fake"), EmbeddingOptions("fake", part_tokens=32)
    long, short = FakeEmbedder(whole), FakeEmbedder(cut)
    body = " ".join(f"word{n}" for n in range(100))
    assert parts("lead", body, long) == [f"lead\n{body}"]
    found = parts("lead", body, short)
    assert len(found) > 3 and all(len(short.tokenizer.encode(text).ids) <= 32 for text in found)
    assert all(text.startswith("lead\n") for text in found) and found[-1].endswith("word99")
    assert parts("lead", "few words", short) == ["lead\nfew words"]
    assert short.fingerprint == long.fingerprint and short.passage_fingerprint == long.passage_fingerprint
    assert FakeEmbedder(EmbeddingOptions("fake", part_tokens=1000)).window == long.window
    with pytest.raises(ConfigError, match=r"embedding\.part_tokens is 15"):
        EmbeddingOptions("fake", part_tokens=15)
