"""Recall@10 of a corpus's dense indexes against exact search, by the number of lists looked at, measured on what was stored.

A segment at a time (`measure`, a task for any worker), then together (`merged`): the best of all segments are the best of their
bests, so no machine needs all of them. The queries are vectors of the corpus; what a query finds of itself is not counted.
A hit counts if its exact score is as good as the tenth: tied vectors are as good as each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexing import disk, layout, tables, trained
from indexing.dense import DenseIndex
from indexing.dense_files import Floats, Trained
from indexing.dense_kind import Kind
from indexing.local_files import LocalFiles
from indexing.manifest import SegmentEntry, TrainedEntry
from indexing.storage import Storage
from indexing.trained import Stored

K = 10
TARGET = 0.95
"""A search looks at as few lists as reach this, or the configured floor if that is higher."""
_MOST_SHARE, _MOST_AT_LEAST = 8, 16
"""At most an eighth of the lists is looked at: more is hardly faster than a flat index. Sixteen are looked at in any case."""
_SLACK = 1e-6  # of two float32 sums of the same products
_SCORED_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one segment: the best exact scores of each query, (q, K + 1), and by number of lists what was found, its scores and
    the exact scores of the same vectors, (q, K + 1) each. The query itself is among them; -inf where there are fewer.
    """

    exact: Floats
    found: Mapping[int, tuple[Floats, Floats]]


Task = Callable[[Storage], Measured]


def probes(kind: Kind) -> list[int]:
    """The numbers of lists that are tried: powers of two."""
    most = min(kind.lists, max(_MOST_AT_LEAST, kind.lists // _MOST_SHARE))
    return [1 << exponent for exponent in range(most.bit_length())]


def measure(storage: Storage, segment: SegmentEntry, dimension: int, entry: TrainedEntry, queries: Stored) -> Measured:
    """Ask one segment's index, as it is stored, and its vectors."""
    files = LocalFiles(storage)
    path = files.named(segment, layout.DENSE)
    table = tables.read(files.named(segment, layout.VECTORS), tables.vectors(dimension))
    with disk.temporary("situate-recall-") as work:
        return measure_file(path, tables.as_matrix(table, dimension), trained.fetched(storage, entry, work), queries)


def measure_file(path: Path, vectors: Stored, lists: Trained, queries: Stored) -> Measured:
    """Ask an index and the vectors (n, d) that it is of."""
    asked = np.asarray(queries, np.float32)
    found = {
        number: _found(DenseIndex.open([("", path)], vectors.shape[1], [len(vectors)], lists, number), vectors, asked)
        for number in probes(lists.kind)
    }
    return Measured(_best(vectors, asked), found)


def _best(vectors: Stored, queries: Floats) -> Floats:
    """The best exact scores of each query."""
    best = np.full((len(queries), K + 1), -np.inf, np.float32)
    for first in range(0, len(vectors), _SCORED_AT_ONCE):
        scores = queries @ np.asarray(vectors[first : first + _SCORED_AT_ONCE], np.float32).T
        best = np.partition(np.concatenate([best, scores], axis=1), -(K + 1), axis=1)[:, -(K + 1) :]
    return best


def _found(index: DenseIndex, vectors: Stored, queries: Floats) -> tuple[Floats, Floats]:
    scores, exact = (np.full((len(queries), K + 1), -np.inf, np.float32) for _ in range(2))
    for row, hits in enumerate(index.search_nearest(queries, K + 1)):
        hits = hits[: K + 1]
        scores[row, : len(hits)] = [hit.score for hit in hits]
        exact[row, : len(hits)] = np.asarray(vectors[[hit.vector for hit in hits]], np.float32) @ queries[row]
    return scores, exact


def merged(parts: Sequence[Measured]) -> dict[int, float]:
    """Recall@10 of all segments together, by the number of lists; 1 where a query has no neighbour."""
    exact = -np.sort(-np.concatenate([part.exact for part in parts], axis=1), axis=1)[:, : K + 1]
    there = (exact > -np.inf).sum(axis=1) - 1  # without the query itself
    last = np.take_along_axis(exact, np.maximum(there, 0)[:, None], axis=1) - _SLACK
    recalls = {}
    for number in parts[0].found:
        scores, own = (np.concatenate([part.found[number][i] for part in parts], axis=1) for i in (0, 1))
        best = np.take_along_axis(own, np.argsort(-scores, axis=1, kind="stable")[:, : K + 1], axis=1)
        good = ((best >= last) & (best > -np.inf)).sum(axis=1) - 1
        recalls[number] = float(np.mean(np.where(there > 0, good / np.maximum(there, 1), 1.0)))
    return recalls


def pick(recalls: Mapping[int, float], floor: float) -> tuple[int, float]:
    """The fewest lists that reach the target, or the most that were tried; with their recall."""
    enough = [number for number, recall in recalls.items() if recall >= max(TARGET, floor)]
    number = min(enough) if enough else max(recalls)
    return number, recalls[number]
