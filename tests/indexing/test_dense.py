"""Real FAISS throughout."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from enrichment.errors import OperationError
from indexing import dense, dense_files
from indexing.dense import DenseIndex

Floats = npt.NDArray[np.float32]
DIMENSION = 24


def random_vectors(count: int, seed: int, dimension: int = DIMENSION) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


QUERIES = random_vectors(30, 99)


@pytest.fixture
def open_parts(tmp_path: Path) -> Callable[[Sequence[Floats]], DenseIndex]:
    """Build an index of each part, as segments s0, s1, ..., and open them together."""

    def build_and_open(parts: Sequence[Floats]) -> DenseIndex:
        paths = [(f"s{number}", tmp_path / f"{number}.faiss") for number in range(len(parts))]
        for part, (_, path) in zip(parts, paths, strict=True):
            dense_files.build(part, path)
        return DenseIndex.open(paths, DIMENSION, [len(part) for part in parts])

    return build_and_open


Open = Callable[[Sequence[Floats]], DenseIndex]


def test_scores_are_those_of_the_rounded_vectors(open_parts: Open) -> None:
    vectors = random_vectors(200, 1)
    hits = open_parts([vectors]).search(QUERIES, 5)
    truth = QUERIES @ vectors.astype(np.float16).astype(np.float32).T
    assert [[hit.vector for hit in row] for row in hits] == np.argsort(-truth, axis=1)[:, :5].tolist()
    np.testing.assert_allclose([[hit.score for hit in row] for row in hits], -np.sort(-truth)[:, :5], atol=1e-6)


def test_float16_and_float32_give_the_same_file(tmp_path: Path) -> None:
    vectors = random_vectors(50, 1)
    dense_files.build(vectors, tmp_path / "32")
    dense_files.build(vectors.astype(np.float16), tmp_path / "16")
    assert (tmp_path / "32").read_bytes() == (tmp_path / "16").read_bytes()


def test_a_file_does_not_depend_on_how_much_is_added_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random_vectors(50, 1)
    dense_files.build(vectors, tmp_path / "once")
    monkeypatch.setattr(dense_files, "ADDED_AT_ONCE", 16)
    dense_files.build(vectors, tmp_path / "often")
    assert (tmp_path / "often").read_bytes() == (tmp_path / "once").read_bytes()


def test_segments_and_batches_change_no_bit_of_the_answer(open_parts: Open) -> None:
    vectors = random_vectors(500, 2)
    cuts = [0, 1, 2, 2, 300, 311, 500]

    def flat(rows: list[list[dense.DenseHit]]) -> list[list[tuple[int, float]]]:
        return [[(cuts[int(hit.segment_id[1:])] + hit.vector, hit.score) for hit in row] for row in rows]

    expected = [[(hit.vector, hit.score) for hit in row] for row in open_parts([vectors]).search(QUERIES, 7)]
    index = open_parts([vectors[first:last] for first, last in pairwise(cuts)])
    assert flat(index.search(QUERIES, 7)) == expected
    assert [flat(index.search(query[None], 7))[0] for query in QUERIES] == expected
    assert flat(index.search(QUERIES, 7, {"s5": np.array([], np.int64)})) == expected


def test_ties_at_the_last_place_are_complete(open_parts: Open) -> None:
    same, others = random_vectors(1, 3), random_vectors(60, 4)
    index = open_parts([np.repeat(same, 90, axis=0), np.concatenate([others, np.repeat(same, 10, axis=0)])])
    tied, plain = index.search(np.concatenate([same, -same]), 3)
    assert {hit[:2] for hit in tied} == {("s0", n) for n in range(90)} | {("s1", n) for n in range(60, 70)}
    assert len(tied) == 100
    assert len({hit.score for hit in tied}) == 1
    assert len(plain) == 3
    assert len(index.search(same, 101)[0]) == 101


def test_dead_vectors_are_never_returned_and_k_is_still_filled(open_parts: Open) -> None:
    index = open_parts([random_vectors(70, 5), random_vectors(33, 6)])
    everything = index.search(QUERIES, 103)
    dead = {"s0": np.arange(0, 70, 2), "s1": np.array([32, 0, 0]), "unknown": np.array([1])}
    gone = {(name, int(vector)) for name, vectors in dead.items() for vector in vectors}
    expected = [[hit for hit in row if hit[:2] not in gone] for row in everything]
    assert index.search(QUERIES, 103, dead) == expected
    assert index.search(QUERIES, 9, dead) == [row[:9] for row in expected]
    assert index.search(QUERIES, 2, {"s0": np.arange(70), "s1": np.arange(33)}) == [[]] * len(QUERIES)
    with pytest.raises(OperationError, match="segment s1"):
        index.search(QUERIES, 2, {"s1": np.array([33])})


def test_fewer_vectors_than_k_and_none_at_all(open_parts: Open, tmp_path: Path) -> None:
    none = np.empty((0, DIMENSION), np.float32)
    assert [len(row) for row in open_parts([none, random_vectors(3, 7)]).search(QUERIES, 10)] == [3] * len(QUERIES)
    assert open_parts([none]).search(QUERIES, 10) == [[]] * len(QUERIES)
    assert DenseIndex.open([], DIMENSION, []).search(QUERIES, 10) == [[]] * len(QUERIES)
    assert open_parts([random_vectors(3, 7)]).search(QUERIES[:0], 10) == []


def write(index: faiss.Index, path: Path) -> None:
    if index.ntotal == 0:
        index.add(random_vectors(8, 8, index.d))
    faiss.write_index(index, str(path))


SCALAR, INNER_PRODUCT = faiss.ScalarQuantizer, faiss.METRIC_INNER_PRODUCT


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        (faiss.IndexFlatIP(DIMENSION), "kind IndexFlatIP"),
        (faiss.IndexScalarQuantizer(DIMENSION + 1, SCALAR.QT_fp16, INNER_PRODUCT), "dimension 25"),
        (faiss.IndexScalarQuantizer(DIMENSION, SCALAR.QT_fp16, faiss.METRIC_L2), "metric 1"),
        (faiss.IndexScalarQuantizer(DIMENSION, SCALAR.QT_bf16, INNER_PRODUCT), "quantizer"),
    ],
)
def test_another_kind_of_index_is_refused_by_name(index: faiss.Index, complaint: str, tmp_path: Path) -> None:
    write(index, tmp_path / "other.faiss")
    with pytest.raises(OperationError, match=rf"other\.faiss has {complaint}"):
        DenseIndex.open([("s", tmp_path / "other.faiss")], DIMENSION, [8])


def test_another_number_of_vectors_is_refused_by_name(tmp_path: Path) -> None:
    dense_files.build(random_vectors(8, 8), tmp_path / "a.faiss")
    with pytest.raises(OperationError, match=r"a\.faiss has vectors 8, not 9"):
        DenseIndex.open([("s", tmp_path / "a.faiss")], DIMENSION, [9])


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"x" * len(data)])
def test_a_damaged_or_missing_file_is_refused_by_name(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    dense_files.build(random_vectors(8, 8), tmp_path / "a.faiss")
    (tmp_path / "a.faiss").write_bytes(damage((tmp_path / "a.faiss").read_bytes()))
    for name in ("a.faiss", "missing.faiss"):
        with pytest.raises(OperationError, match=name):
            DenseIndex.open([("s", tmp_path / name)], DIMENSION, [8])


@pytest.mark.parametrize("count", [0, 3, 50_000])
def test_a_full_disk_is_noticed_also_for_a_small_index(count: int, tmp_path: Path) -> None:
    (tmp_path / "full.faiss").symlink_to("/dev/full")
    with pytest.raises(OperationError, match=r"full\.faiss cannot be written: .*No space left"):
        dense_files.build(random_vectors(count, 9), tmp_path / "full.faiss")


@pytest.mark.parametrize("value", [np.nan, np.inf, 70_000.0])
def test_a_value_that_float16_cannot_hold_is_refused_with_its_line(value: float, tmp_path: Path) -> None:
    vectors = random_vectors(6, 10)
    vectors[4, 2] = value
    with pytest.raises(OperationError, match=r"Vector 4 for .*a\.faiss"):
        dense_files.build(vectors, tmp_path / "a.faiss")


def test_a_query_of_another_kind_is_refused(open_parts: Open) -> None:
    index = open_parts([random_vectors(4, 11)])
    for query in (QUERIES[:, :5], QUERIES[0], QUERIES * np.nan):
        with pytest.raises(OperationError):
            index.search(query, 1)


def test_threads_get_the_same_answers(open_parts: Open) -> None:
    index = open_parts([random_vectors(300, 12), random_vectors(200, 13)])
    dead = {"s0": np.arange(50)}
    expected = index.search(QUERIES, 5, dead)
    with ThreadPoolExecutor(4) as pool:
        assert all(hits == expected for hits in pool.map(lambda _: index.search(QUERIES, 5, dead), range(40)))
