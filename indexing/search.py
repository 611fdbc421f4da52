"""Hits over all segments of a snapshot: dense, lexical, or both fused. Sharding never changes the answer.

A hit is a row. Ties at the last place are fetched through and ordered by (document id, chunk index), so the same rows in one
segment or in thirty give the same hits in the same order. A row with several vectors scores as its best part.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from indexing.dense import DenseIndex
from indexing.lexical import LexicalIndex
from indexing.windows import reciprocal_rank_fusion

Mode = Literal["hybrid", "dense", "lexical"]
FUSION_DEPTH = 100  # rows of each ranking that are fused: deeper ranks add less than 1/160 to a score


@dataclass(frozen=True, slots=True)
class Hit:
    """A row of a segment with its score in the mode asked for, and its scores in each index (null: not among the best)."""

    segment: int
    row: int
    score: float
    dense: float | None = None
    lexical: float | None = None


class RowOrder(Protocol):
    """What breaks ties: a row's (document id, chunk index)."""

    def __call__(self, segment: int, row: int) -> tuple[str, int]: ...


@dataclass(frozen=True)
class Indexes:
    """The open indexes of a snapshot's segments, in manifest order. `rows_of_vectors[s]` maps vector to row, `(n,) int64`.

    What is dead is left out inside each search, so that k hits are k distinct live rows.
    """

    segment_ids: Sequence[str]
    dense: DenseIndex
    lexical: LexicalIndex
    rows_of_vectors: Sequence[np.ndarray]
    dead_rows: Mapping[str, np.ndarray]  # by segment id, `(n,) int64`; segments without any are left out
    embed_query: Callable[[str], np.ndarray]
    order: RowOrder

    @functools.cached_property
    def dead_vectors(self) -> Mapping[str, np.ndarray]:
        """By segment id, `(n,) int64`."""
        rows = dict(zip(self.segment_ids, self.rows_of_vectors, strict=True))
        return {name: np.flatnonzero(np.isin(rows[name], dead)) for name, dead in self.dead_rows.items()}

    def search(self, query: str, k: int, mode: Mode = "hybrid") -> list[Hit]:
        """The best k rows; fewer only where the snapshot has fewer (lexical: fewer that share a word with the query)."""
        query = query.encode("utf-8", "replace").decode()  # a terminal may hand on bytes that are no text
        if mode == "dense":
            return [Hit(s, r, score, dense=score) for (s, r), score in self._dense(query, k)]
        if mode == "lexical":
            return [Hit(s, r, score, lexical=score) for (s, r), score in self._lexical(query, k)]
        depth = max(k, FUSION_DEPTH)
        dense, lexical = dict(self._dense(query, depth)), dict(self._lexical(query, depth))
        rows = list({**dense, **lexical})
        places = {row: place for place, row in enumerate(rows)}
        fused = reciprocal_rank_fusion(
            {"dense": [places[row] for row in dense], "lexical": [places[row] for row in lexical]}
        )
        ranked = self._ranked({rows[place]: score for place, score in fused.items()}, k)
        return [Hit(*row, score, dense.get(row), lexical.get(row)) for row, score in ranked]

    def _dense(self, query: str, k: int) -> list[tuple[tuple[int, int], float]]:
        number = {segment_id: place for place, segment_id in enumerate(self.segment_ids)}
        total = sum(map(len, self.rows_of_vectors)) - sum(map(len, self.dead_vectors.values()))
        vector = self.embed_query(query)
        fetch = k
        while True:
            found: dict[tuple[int, int], float] = {}
            hits = self.dense.search(vector, fetch, self.dead_vectors)[0]
            for segment_id, vector_id, score in hits:
                segment = number[segment_id]
                row = (segment, int(self.rows_of_vectors[segment][vector_id]))
                found[row] = max(score, found.get(row, score))
            if len(found) >= k or len(hits) >= total:
                return self._ranked(found, k)
            fetch = min(total, 2 * fetch)

    def _lexical(self, query: str, k: int) -> list[tuple[tuple[int, int], float]]:
        number = {segment_id: place for place, segment_id in enumerate(self.segment_ids)}
        hits = self.lexical.search(query, k, self.dead_rows)
        return self._ranked({(number[segment_id], row): score for segment_id, row, score in hits}, k)

    def _ranked(self, scores: dict[tuple[int, int], float], k: int) -> list[tuple[tuple[int, int], float]]:
        return sorted(scores.items(), key=lambda item: (-item[1], self.order(*item[0])))[:k]
