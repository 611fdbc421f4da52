"""Indexes with lists: one trained file for all segments makes them one index. Real FAISS throughout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enrichment.errors import OperationError
from indexing import dense_files, dense_kind
from indexing.dense import DenseIndex
from indexing.dense_files import Floats, Trained
from indexing.search import Indexes

DIMENSION, TOPICS, K = 32, 30, 10
KINDS = ("IVF24,SQfp16", "IVF24,SQ8", "IVF24,PQ8", "IVF24_HNSW8,SQfp16")


def unit(vectors: Any) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def clustered(seed: int, num_vectors: int) -> Floats:
    """Vectors of each topic one after the other, so that a cut is skewed; float16 values."""
    random = np.random.default_rng(seed)
    centres = unit(np.random.default_rng(7).standard_normal((TOPICS, DIMENSION)))
    topics = np.sort(random.integers(0, TOPICS, num_vectors))
    found = unit(centres[topics] + 0.25 * random.standard_normal((num_vectors, DIMENSION)))
    return found.astype(np.float16).astype(np.float32)


class Corpus:
    """Vectors of rows, several of some; duplicates far from each other; some rows dead."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        vectors = clustered(1, 6000)
        random = np.random.default_rng(2)
        same = random.integers(0, len(vectors), 40)
        self.vectors = np.concatenate([vectors, np.repeat(vectors[same], 15, axis=0)])
        self.rows = np.sort(random.integers(0, 4500, len(self.vectors)))  # a row has one, several or no vector
        self.rows = np.unique(self.rows, return_inverse=True)[1]
        self.num_rows = int(self.rows.max()) + 1
        self.dead = np.flatnonzero(random.random(self.num_rows) < 0.1)
        parsed = dense_kind.parse(kind)
        assert parsed is not None
        self.trained = Trained(folder / "trained.faiss", parsed)
        dense_files.train(self.vectors, parsed, self.trained.path)
        self.queries = unit(vectors[random.integers(0, 6000, 200)] + 0.1 * random.standard_normal((200, DIMENSION)))
        self.queries[:40] = vectors[same]  # each has fifteen bit-equal neighbours and itself

    def open(self, num_segments: int, nprobe: int = 3, shared: bool = True) -> Indexes:
        """Cut at topics, which come one after the other; every row in one segment."""
        cuts = [int(self.num_rows * n / num_segments) for n in range(num_segments + 1)]
        names, paths, parts, dead = [], [], [], {}
        for n in range(num_segments):
            inside = np.flatnonzero((self.rows >= cuts[n]) & (self.rows < cuts[n + 1]))
            names.append(f"s{n:02}")
            paths.append(self.folder / f"{num_segments}-{n}.faiss")
            parts.append(self.rows[inside] - cuts[n])
            dense_files.build(self.vectors[inside], paths[-1], self.trained)
            dead[names[-1]] = self.dead[(self.dead >= cuts[n]) & (self.dead < cuts[n + 1])] - cuts[n]
        index = DenseIndex.open(
            list(zip(names, paths, strict=True)), DIMENSION, [len(p) for p in parts], self.trained, nprobe
        )

        def order(segment: int, row: int) -> tuple[str, int]:
            return "document", cuts[segment] + row

        no_lexical: Any = None

        def embed(texts: Any) -> np.ndarray:
            return self.queries[[int(text) for text in texts]]

        return Indexes(names, index, no_lexical, parts, dead, embed, order, lambda filters: [])

    def answers(self, found: Indexes, k: int = K) -> list[list[tuple[int, float]]]:
        return [
            [(found.order(hit.segment, hit.row)[1], hit.score) for hit in found.search(str(number), k, "dense")]
            for number in range(len(self.queries))
        ]


@pytest.fixture(scope="module", params=KINDS)
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"), request.param)


def test_the_number_of_segments_changes_no_answer(corpus: Corpus) -> None:
    """P21: skewed segments, several vectors of a row, bit-equal duplicates, dead rows."""
    expected = corpus.answers(corpus.open(1))
    assert all(len(hits) == K for hits in expected)
    assert {row for hits in expected for row, _ in hits}.isdisjoint(corpus.dead.tolist())
    for num_segments in (2, 7, 30):
        found = corpus.answers(corpus.open(num_segments))
        assert [[row for row, _ in hits] for hits in found] == [[row for row, _ in hits] for hits in expected]
        np.testing.assert_allclose(
            [[score for _, score in hits] for hits in found],
            [[score for _, score in hits] for hits in expected],
            atol=1e-4,
        )


def test_lists_are_not_looked_at_all(corpus: Corpus) -> None:
    """Else the tests of this file would say nothing: with so few lists some neighbours are missed, and not many."""
    nearest = corpus.open(3).dense.search(corpus.queries, K)
    everywhere = corpus.open(3, nprobe=corpus.trained.kind.lists).dense.search(corpus.queries, K)
    shared = [len({h[:2] for h in a} & {h[:2] for h in b}) / len(b) for a, b in zip(nearest, everywhere, strict=True)]
    assert 0.5 < np.mean(shared) < 0.999


def test_a_batch_gets_the_answers_of_its_queries(corpus: Corpus) -> None:
    index = corpus.open(2).dense
    assert index.search(corpus.queries, K) == [index.search(query[None], K)[0] for query in corpus.queries]


def test_k_is_filled_however_much_is_filtered(corpus: Corpus) -> None:
    random = np.random.default_rng(3)
    found = corpus.open(7)
    sizes = dict(zip(found.segment_ids, map(len, found.rows_of_vectors), strict=True))
    allowed = {name: np.flatnonzero(random.random(size) < 0.01) for name, size in sizes.items()}
    num_allowed = sum(map(len, allowed.values()))
    assert 30 < num_allowed < 100
    dead = {name: np.setdiff1d(np.arange(size), allowed[name]) for name, size in sizes.items()}
    by_dead = found.dense.search(corpus.queries, 20, dead)
    by_allowed = found.dense.search(corpus.queries, 20, allowed=allowed)
    assert by_dead == by_allowed
    assert all(20 <= len(hits) <= num_allowed for hits in by_dead)
    assert {(h.segment_id, h.vector) for hits in by_dead for h in hits} <= {
        (name, int(vector)) for name, vectors in allowed.items() for vector in vectors
    }
    assert [len(hits) for hits in found.dense.search(corpus.queries, 10_000, dead)] == [num_allowed] * 200


def test_both_filters_at_once_and_segments_that_are_not_named(corpus: Corpus) -> None:
    index = corpus.open(2).dense
    allowed, dead = {"s01": np.array([1, 2, 3, 4])}, {"s00": np.array([5]), "s01": np.array([2])}
    for hits in index.search(corpus.queries[:5], 3, dead, allowed):
        assert sorted(hit[:2] for hit in hits) == [("s01", 1), ("s01", 3), ("s01", 4)]
    assert index.search(corpus.queries[:5], 3, dead, {}) == [[]] * 5
    with pytest.raises(OperationError, match="Allowed vectors of segment s01"):
        index.search(corpus.queries, 3, allowed={"s01": np.array([10_000])})
    after = index.search(corpus.queries[:5], 3, dead)
    assert after == index.search(corpus.queries[:5], 3, dict(dead)), "what was allowed once is not remembered"


def test_the_nearest_lists_alone_may_hold_fewer(corpus: Corpus) -> None:
    index = corpus.open(2, nprobe=1).dense
    few = index.search_nearest(corpus.queries, 3000)
    assert all(0 < len(hits) < 3000 for hits in few)
    assert all(len(hits) >= 3000 for hits in index.search(corpus.queries[:3], 3000))


def test_a_float16_code_is_the_stored_vector(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "IVF24,SQfp16")
    hits = corpus.open(2, nprobe=24).dense.search(corpus.queries, K)
    best = np.sort(corpus.queries @ corpus.vectors.T, axis=1)[:, ::-1][:, :K]
    np.testing.assert_allclose([[hit.score for hit in row[:K]] for row in hits], best, atol=1e-6)


def test_equal_vectors_are_in_one_list_whatever_is_added_beside_them(tmp_path: Path) -> None:
    """Vectors half way between two centroids, for which float32 sums in another order decide otherwise."""
    corpus = Corpus(tmp_path, "IVF24,SQfp16")
    index = dense_files.read_trained(corpus.trained, DIMENSION)
    centroids = index.quantizer.reconstruct_n(0, 24).astype(np.float64)
    nearest = np.argsort(-(centroids @ centroids.T), axis=1)[:, 1]
    between = unit(centroids + centroids[nearest])
    jitter = 1e-8 * np.random.default_rng(4).standard_normal((200, *between.shape))
    vectors = unit((between + jitter).reshape(-1, DIMENSION))
    lists = dense_files.Lists(index, corpus.trained.kind)
    expected = lists.of(vectors)
    for size in (1, 3, 19, 21, 256):
        parts = [lists.of(vectors[first : first + size]) for first in range(0, len(vectors), size)]
        assert np.array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_index_does_not_hold_is_found(kind: str, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, kind)
    path = tmp_path / "index"
    dense_files.build(corpus.vectors[:900], path, corpus.trained)
    assert dense_files.first_difference(path, corpus.vectors[:900], corpus.trained) is None
    other = corpus.vectors[:900].copy()
    other[471] = other[3]
    assert dense_files.first_difference(path, other, corpus.trained) == 471


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "IVF24,SQfp16")
    flat, listed = tmp_path / "flat.faiss", tmp_path / "listed.faiss"
    dense_files.build(corpus.vectors[:50], flat)
    dense_files.build(corpus.vectors[:50], listed, corpus.trained)
    other = dense_kind.parse("IVF24,SQ8")
    assert other is not None
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: dense_files.read(flat, DIMENSION, 50, corpus.trained), r"flat\.faiss has kind"),
        (lambda: dense_files.read(listed, DIMENSION, 50), r"listed\.faiss has kind"),
        (lambda: dense_files.read(listed, DIMENSION, 51, corpus.trained), r"listed\.faiss has vectors 50, not 51"),
        (lambda: dense_files.read(listed, DIMENSION, 50, Trained(flat, other)), r"listed\.faiss has quantizer"),
        (lambda: dense_files.read_trained(Trained(listed, corpus.trained.kind), DIMENSION), r"listed\.faiss has vect"),
        (lambda: dense_files.read_trained(Trained(corpus.trained.path, other), DIMENSION), "has quantizer"),
        (lambda: dense_files.read_trained(corpus.trained, DIMENSION + 1), "has dimension"),
    ]
    for refused, complaint in refusals:
        with pytest.raises(OperationError, match=complaint):
            refused()
    data = corpus.trained.path.read_bytes()
    for damaged in (data[:-1], b"", b"x" * len(data)):
        write(corpus.trained.path, damaged)
        with pytest.raises(OperationError, match=r"trained\.faiss"):
            dense_files.read_trained(corpus.trained, DIMENSION)


def test_a_segment_without_vectors_has_an_index_too(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "IVF24,SQ8")
    paths = [("a", tmp_path / "a"), ("b", tmp_path / "b")]
    dense_files.build(corpus.vectors[:0], paths[0][1], corpus.trained)
    dense_files.build(corpus.vectors[:9], paths[1][1], corpus.trained)
    index = DenseIndex.open(paths, DIMENSION, [0, 9], corpus.trained, 2)
    assert [len(hits) for hits in index.search(corpus.queries, 20)] == [9] * 200


def test_the_same_sample_gives_the_same_lists(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "IVF24,SQfp16")
    dense_files.train(corpus.vectors, corpus.trained.kind, tmp_path / "again")
    first, again = (
        dense_files.read_trained(Trained(path, corpus.trained.kind), DIMENSION)
        for path in (corpus.trained.path, tmp_path / "again")
    )
    np.testing.assert_allclose(first.quantizer.reconstruct_n(0, 24), again.quantizer.reconstruct_n(0, 24), atol=1e-5)
