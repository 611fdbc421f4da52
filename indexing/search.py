"""Hits over all segments of a snapshot: dense, lexical, or both fused. Sharding never changes the answer.

A hit is a row. Ties at the last place are fetched through and ordered by (document id, chunk index), so the same rows in one
segment or in thirty give the same hits in the same order. A row with several vectors scores as its best part.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, Protocol

import numpy as np

from indexing.dense import DenseIndex
from indexing.filters import NO_FILTER, Filter, Mask
from indexing.fusion import Fusion, fused, with_documents
from indexing.lexical import LexicalIndex

Mode = Literal["hybrid", "dense", "lexical"]
FUSION_DEPTH = 100
"""Rows of each ranking that are fused with each other; those that are deeper come behind them, if so many are wanted."""
FILTERS_KEPT = 4
"""Filters that are remembered as what they leave out: 8 bytes for each row and each vector that they refuse."""

Row = tuple[int, int]
"""A segment's place and a row of it."""
Ranking = dict[Row, float]
"""Rows with their scores, best first."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A row of a segment with its score in the mode asked for, and its scores in each index (null: not among the best).

    `rerank` is a cross-encoder's score, which then decides the order; null for hits that it was not asked about.
    """

    segment: int
    row: int
    score: float
    dense: float | None = None
    lexical: float | None = None
    rerank: float | None = None


class RowOrder(Protocol):
    """What breaks ties: a row's (document id, chunk index)."""

    def __call__(self, segment: int, row: int) -> tuple[str, int]: ...


class _LeftOut(NamedTuple):
    """What a search does not see, by segment id, `(n,) int64`; segments without any are left out."""

    rows: Mapping[str, np.ndarray]
    vectors: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Indexes:
    """The open indexes of a snapshot's segments, in manifest order. `rows_of_vectors[s]` maps vector to row, `(n,) int64`.

    What is dead or refused by a filter is left out inside each search, so that k hits are k distinct rows that may be found.
    """

    segment_ids: Sequence[str]
    dense: DenseIndex
    lexical: LexicalIndex
    rows_of_vectors: Sequence[np.ndarray]
    dead_rows: Mapping[str, np.ndarray]  # by segment id, `(n,) int64`; segments without any are left out
    embed_queries: Callable[[Sequence[str]], np.ndarray]
    order: RowOrder
    admitted: Callable[[Filter], Sequence[Mask]]  # rows that a filter lets through, dead or not, by segment
    fusion: Fusion = Fusion()

    def search(
        self, query: str, k: int, mode: Mode = "hybrid", filters: Filter = NO_FILTER, fusion: Fusion | None = None
    ) -> list[Hit]:
        """The best k rows; fewer only where fewer pass the filter (lexical: fewer that share a word with the query)."""
        return self.search_many([query], k, mode, filters, fusion)[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode = "hybrid",
        filters: Filter = NO_FILTER,
        fusion: Fusion | None = None,
    ) -> list[list[Hit]]:
        """The hits of each query as `search` finds them; all are embedded at once and asked of the dense index at once."""
        queries = [query.encode("utf-8", "replace").decode() for query in queries]  # a terminal may hand on no text
        left_out = self._left_out(filters) if filters else self._dead
        if mode == "dense":
            return [_hits(ranking, dense=ranking) for ranking in self._dense(queries, k, left_out)]
        if mode == "lexical":
            return [_hits(ranking, lexical=ranking) for ranking in self._lexical(queries, k, left_out)]
        depth, how = max(k, FUSION_DEPTH), fusion or self.fusion
        found = []
        rankings = zip(self._dense(queries, depth, left_out), self._lexical(queries, depth, left_out), strict=True)
        for dense, lexical in rankings:
            found.append(_hits(self._fused(dense, lexical, how, k), dense, lexical))
        return found

    def _fused(self, dense: Ranking, lexical: Ranking, how: Fusion, k: int) -> Ranking:
        """The first hits do not depend on how many are wanted: no deeper row is among them, or lowers what its document is."""
        one, other = (dict(islice(ranking.items(), FUSION_DEPTH)) for ranking in (dense, lexical))
        scores = with_documents(fused(one, other, how, FUSION_DEPTH), how.document_weight, self._document)
        first = self._ranked(scores, k)
        if k > FUSION_DEPTH:
            deeper = fused(dense, lexical, how, k)
            rest = self._ranked({row: score for row, score in deeper.items() if row not in first}, k - len(first))
            lowest = min(first.values(), default=0.0)
            first |= {row: min(score, lowest) for row, score in rest.items()}
        return first

    def _document(self, row: Row) -> str:
        return self.order(*row)[0]

    def _dense(self, queries: Sequence[str], k: int, left_out: _LeftOut) -> list[Ranking]:
        """A row may have many vectors: twice as many are fetched for the queries that lack rows, until all are."""
        number = {segment_id: place for place, segment_id in enumerate(self.segment_ids)}
        total = sum(map(len, self.rows_of_vectors)) - sum(map(len, left_out.vectors.values()))
        vectors = self.embed_queries(queries)
        found: list[Ranking] = [{} for _ in queries]
        pending, fetch = list(range(len(queries))), k
        while pending:
            for query, hits in zip(pending, self.dense.search(vectors[pending], fetch, left_out.vectors), strict=True):
                scores: Ranking = {}
                for segment_id, vector, score in hits:
                    row = (number[segment_id], int(self.rows_of_vectors[number[segment_id]][vector]))
                    scores[row] = max(score, scores.get(row, score))
                found[query] = scores
            pending = [query for query in pending if len(found[query]) < k] if fetch < total else []
            fetch = min(total, 2 * fetch)
        return [self._ranked(scores, k) for scores in found]

    def _lexical(self, queries: Sequence[str], k: int, left_out: _LeftOut) -> list[Ranking]:
        number = {segment_id: place for place, segment_id in enumerate(self.segment_ids)}
        found = (self.lexical.search(query, k, left_out.rows) for query in queries)
        return [self._ranked({(number[name], row): score for name, row, score in hits}, k) for hits in found]

    def _ranked(self, scores: Ranking, k: int) -> Ranking:
        return dict(sorted(scores.items(), key=lambda item: (-item[1], self.order(*item[0])))[:k])

    @functools.cached_property
    def _dead(self) -> _LeftOut:
        return _LeftOut(self.dead_rows, self._vectors_of(self.dead_rows))

    @functools.cached_property
    def _left_out(self) -> Callable[[Filter], _LeftOut]:
        """What is dead or refused; the same object for a filter that was used lately, because the indexes remember it."""
        return functools.lru_cache(FILTERS_KEPT)(self._new_left_out)

    def _new_left_out(self, filters: Filter) -> _LeftOut:
        rows = {}
        for segment_id, admitted in zip(self.segment_ids, self.admitted(filters), strict=True):
            refused = ~admitted
            refused[self.dead_rows.get(segment_id, np.zeros(0, np.int64))] = True
            if refused.any():
                rows[segment_id] = np.flatnonzero(refused)
        return _LeftOut(rows, self._vectors_of(rows))

    def _vectors_of(self, rows: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        owners = dict(zip(self.segment_ids, self.rows_of_vectors, strict=True))
        return {name: np.flatnonzero(np.isin(owners[name], listed)) for name, listed in rows.items()}


def _hits(
    ranking: Ranking, dense: Mapping[Row, float] | None = None, lexical: Mapping[Row, float] | None = None
) -> list[Hit]:
    known = dense or {}, lexical or {}
    return [Hit(*row, score, *(scores.get(row) for scores in known)) for row, score in ranking.items()]
