"""Recall as the manifest has it, against a recall that is counted in the plain way."""

from pathlib import Path

import numpy as np
import pytest

from indexing import dense_files, recall, trained
from indexing.dense import DenseIndex
from indexing.dense_files import Trained
from indexing.dense_kind import Kind

DIMENSION = 24
KIND = Kind(32)


def vectors(number: int) -> trained.Stored:
    random = np.random.default_rng(3)
    centres = random.standard_normal((40, DIMENSION))
    found = centres[np.sort(random.integers(0, 40, number))] + 0.8 * random.standard_normal((number, DIMENSION))
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float16)


def plainly(corpus: trained.Stored, queries: trained.Stored, index: DenseIndex) -> float:
    """Ids of the ten nearest others, by sorting all, that are among the ten nearest others of the index."""
    shares = []
    for query in queries.astype(np.float32):
        own = int(np.argmax(corpus.astype(np.float32) @ query))
        exact = np.argsort(-(corpus.astype(np.float32) @ query), kind="stable")
        wanted = [int(n) for n in exact if n != own][:10]
        found = [hit.vector for hit in index.search(query[None], 11)[0] if hit.vector != own][:10]
        shares.append(len(set(wanted) & set(found)) / 10)
    return float(np.mean(shares))


@pytest.mark.parametrize("num_segments", [1, 3])
def test_recall_is_what_counting_gives_however_the_corpus_is_cut(num_segments: int, tmp_path: Path) -> None:
    corpus = vectors(4000)
    sample = trained.sample([corpus], 4000, 2000)
    lists = Trained(tmp_path / "trained", KIND)
    dense_files.train(sample.vectors, KIND, lists.path)
    cuts = [4000 * n // num_segments for n in range(num_segments + 1)]
    parts = []
    for first, last in zip(cuts, cuts[1:], strict=False):
        dense_files.build(corpus[first:last], tmp_path / "part", lists)
        parts.append(recall.measure_file(tmp_path / "part", corpus[first:last], lists, sample.queries))
    found = recall.merged(parts)
    assert list(found) == [1, 2, 4, 8, 16]
    dense_files.build(corpus, tmp_path / "whole", lists)
    for nprobe in (1, 4, 16):
        index = DenseIndex.open([("s", tmp_path / "whole")], DIMENSION, [4000], lists, nprobe)
        assert found[nprobe] == pytest.approx(plainly(corpus, sample.queries, index), abs=0.002)
    assert 0.3 < found[1] < found[2] < found[4] < 0.999


def test_the_fewest_lists_that_reach_the_target_are_picked() -> None:
    recalls = {1: 0.5, 2: 0.94, 4: 0.951, 8: 0.97, 16: 0.99}
    assert recall.pick(recalls, 0.9) == (4, 0.951)
    assert recall.pick(recalls, 0.98) == (16, 0.99)
    assert recall.pick(recalls, 0.999) == (16, 0.99), "the most that were tried, for the floor to judge"


def test_an_eighth_of_the_lists_is_looked_at_and_sixteen_of_few() -> None:
    assert recall.probes(Kind(4096)) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert recall.probes(Kind(8)) == [1, 2, 4, 8]
    assert recall.probes(Kind(24)) == [1, 2, 4, 8, 16]


def test_tied_vectors_are_as_good_as_each_other(tmp_path: Path) -> None:
    """Fifty bit-equal copies: whichever ten of them are found, nothing is missing."""
    corpus = np.concatenate([vectors(1000), np.repeat(vectors(1)[:1], 50, axis=0)])
    lists = Trained(tmp_path / "trained", Kind(4))
    dense_files.train(corpus, lists.kind, lists.path)
    dense_files.build(corpus, tmp_path / "index", lists)
    measured = recall.measure_file(tmp_path / "index", corpus, lists, corpus[-1:])
    assert set(recall.merged([measured]).values()) == {1.0}


def test_a_corpus_smaller_than_ten_is_found_whole(tmp_path: Path) -> None:
    corpus = vectors(6)
    lists = Trained(tmp_path / "trained", Kind(1))
    dense_files.train(corpus, lists.kind, lists.path)
    dense_files.build(corpus, tmp_path / "index", lists)
    assert recall.merged([recall.measure_file(tmp_path / "index", corpus, lists, corpus)]) == {1: 1.0}
