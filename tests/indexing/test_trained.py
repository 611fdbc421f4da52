"""What is trained, on which vectors, and that the stored file is the one that is used."""

from itertools import pairwise
from pathlib import Path

import faiss
import numpy as np
import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import dense_files, dense_kind, layout, trained
from indexing.dense_kind import Kind
from indexing.storage import DirectoryStorage, Storage

DIMENSION = 16
KIND = Kind(4)


def vectors(number: int, seed: int = 1) -> trained.Stored:
    found = np.random.default_rng(seed).standard_normal((number, DIMENSION))
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float16)


def bits(matrix: trained.Stored) -> set[bytes]:
    return {row.tobytes() for row in matrix}


@pytest.mark.parametrize("size", [50, 400, 5000])
def test_a_sample_depends_on_the_set_of_vectors_alone(size: int) -> None:
    corpus = vectors(3000)
    whole = trained.sample([corpus], 3000, size)
    random = np.random.default_rng(2)
    for _ in range(3):
        shuffled = corpus[random.permutation(3000)]
        cuts = [0, *np.sort(random.integers(0, 3000, 6)).tolist(), 3000]
        parts = trained.sample((shuffled[a:b] for a, b in pairwise(cuts)), 3000, size)
        assert np.array_equal(parts.vectors, whole.vectors) and np.array_equal(parts.queries, whole.queries)


def test_a_sample_has_about_the_size_that_was_asked_for() -> None:
    corpus = vectors(20_000)
    found = trained.sample([corpus], 20_000, 2000)
    assert 1800 < len(found.vectors) < 2200 and len(found.queries) == trained.QUERIES
    assert bits(found.vectors).isdisjoint(bits(found.queries))
    assert bits(found.vectors) | bits(found.queries) <= bits(corpus)
    everything = trained.sample([corpus[:300]], 300, 2000)
    assert (len(everything.vectors), len(everything.queries)) == (270, 30)


def test_chosen_vectors_are_like_the_others() -> None:
    """Not those with some first value or norm: the means and the spread of all values agree."""
    corpus = vectors(40_000)
    found = trained.sample([corpus], 40_000, 4000).vectors.astype(np.float64)
    np.testing.assert_allclose(found.mean(axis=0), corpus.astype(np.float64).mean(axis=0), atol=0.02)
    np.testing.assert_allclose(found.std(axis=0), corpus.astype(np.float64).std(axis=0), rtol=0.05)


def test_equal_vectors_count_once() -> None:
    corpus = np.repeat(vectors(60), 30, axis=0)
    found = trained.sample([corpus], len(corpus), 10_000)
    assert len(bits(found.vectors) | bits(found.queries)) == 60 == len(found.vectors) + len(found.queries)


def test_too_few_different_vectors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be IVF4,SQfp16: only 19 different vectors"):
        trained.train(DirectoryStorage(tmp_path), vectors(19), KIND, 1000)


def test_what_is_fetched_is_what_was_stored(storage: Storage, tmp_path: Path) -> None:
    entry = trained.train(storage, vectors(400), KIND, 1000)
    assert (entry.kind, entry.num_vectors, entry.corpus_vectors) == ("IVF4,SQfp16", 400, 1000)
    again = trained.train(storage, vectors(400), KIND, 1000)
    assert again.id != entry.id, "a name is never written twice"
    found = trained.fetched(storage, entry, tmp_path)
    assert found.kind == KIND and dense_files.read_trained(found, DIMENSION).nlist == 4
    name = layout.trained(entry.id)
    data = storage.get(name)
    for damaged in (data[:-1], data[:300] + bytes([data[300] ^ 1]) + data[301:]):
        storage.put(name, damaged)
        with pytest.raises(OperationError, match=f"{name} differs from its manifest"):
            trained.fetched(storage, entry, tmp_path)
    storage.delete(name)
    with pytest.raises(OperationError, match=name):
        trained.fetched(storage, entry, tmp_path)


def test_the_last_iteration_puts_centroids_at_the_means_of_their_vectors() -> None:
    """Two lists that begin off their middle; a third, near a single vector, takes four more from the nearest of them."""
    sample = np.zeros((2 * dense_files.LEAST_IN_MEAN + 1, 4), np.float32)
    sample[:-1:2, 0], sample[1:-1:2, 1], sample[-1, 3] = 1, 1, -1
    quantizer = faiss.IndexFlatIP(4)
    quantizer.add(np.array([[0.8, 0, 0.6, 0], [0, 0.8, 0, 0.6], [0, 0.28, 0, -0.96]], np.float32))
    assert dense_files._last_iteration(quantizer, sample) == pytest.approx((10 * 0.8 + 0.96) / 11)
    few = np.array([0, 4, 0, -1]) / np.sqrt(17)
    np.testing.assert_allclose(quantizer.reconstruct_n(0, 3), [[1, 0, 0, 0], [0, 1, 0, 0], few], atol=1e-6)
    assert quantizer.ntotal == 3


@pytest.mark.parametrize("text", ["IVF24,SQfp16", "IVF24_HNSW8,SQ8"])
def test_no_centroid_is_the_vector_of_one_document(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors far from each other, some of which k-means gives lists of their own, beside a crowd."""
    random = np.random.default_rng(5)
    alone, crowd = random.standard_normal((48, 64)), 1 + 0.1 * random.standard_normal((120, 64))
    sample = np.concatenate([alone, crowd])
    sample = np.asarray(sample / np.linalg.norm(sample, axis=1, keepdims=True), np.float32)
    kind = dense_kind.parse(text)
    assert kind is not None

    def nearest() -> tuple[float, float]:
        """The highest cosine of a lone vector and a centroid, and of one and a centroid mirrored in another: v in v + w."""
        dense_files.train(sample, kind, tmp_path / "trained")
        index = dense_files.read_trained(dense_files.Trained(tmp_path / "trained", kind), 64)
        centroids = index.quantizer.reconstruct_n(0, 24)
        np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-4)
        mirrored = 2 * (centroids @ centroids.T)[:, :, None] * centroids[:, None] - centroids[None]
        others = mirrored[~np.eye(24, dtype=bool)]  # in itself it is itself
        return float((sample[:48] @ centroids.T).max()), float((sample[:48] @ others.T).max())

    stored, undone = nearest()
    assert stored < 0.9 and undone < 0.9
    monkeypatch.setattr(dense_files, "LEAST_IN_MEAN", 1)
    assert nearest()[0] > 0.999, "else this test would say nothing"
