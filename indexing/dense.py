"""Inner-product search over the dense indexes of many segments as if they were one. Their files are in `dense_files.py`.

Flat indexes are scanned whole. With lists, those nearest to a query are found once, by the centroids that all segments share,
and every segment scans the same ones; so what is looked at, and with it the answer, does not depend on the segments.

Invariants: a dead vector, or one that is not allowed, is never returned; tied vectors among those looked at are returned all or
not at all; k hits are found wherever there are k live vectors: a query for which the nearest lists hold too few is asked
of all of them. Not here: rows, parts and the order of tied hits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from enrichment.errors import OperationError
from indexing import dense_files
from indexing.dense_files import Floats, Ints, Trained

Dead = Mapping[str, Ints]
"""Ids of dead vectors by segment id."""
Allowed = Mapping[str, Ints]
"""Ids of the vectors that may be found, by segment id; a segment that is not named has none."""


class DenseHit(NamedTuple):
    segment_id: str
    vector: int
    score: float


@dataclass(frozen=True, slots=True)
class _Segment:
    id: str
    index: Any


@dataclass(frozen=True, slots=True)
class _Live:
    """A segment's vectors that may be found: FAISS's selector (None selects all), their number, the parameters of a search."""

    selector: Any
    number: int
    parameters: Any


@dataclass(frozen=True, slots=True)
class _Found:
    """What segments gave for m queries: for each segment (m, n) scores, best first, -inf where there is nothing, and ids; and
    whether that was all that it has of what was looked at, (segments, m) bool. n differs between segments.
    """

    scores: list[Floats]
    ids: list[Ints]
    exhausted: npt.NDArray[np.bool_]


Places = tuple[Ints, Floats]
"""For each query of a batch the lists to look at, (m, p), and their centroids' scores."""


class DenseIndex:
    """The open dense indexes of several segments, searched as one. Any number of threads may search."""

    def __init__(self, segments: Sequence[_Segment], dimension: int, lists: "_Lists | None" = None) -> None:
        self._segments = segments
        self._lists = lists
        self._filled = None if lists is None else lists.filled([segment.index for segment in segments])
        self.dimension = dimension
        self._known: tuple[Dead | None, list[_Live]] = (None, [self._live(s, None, None) for s in segments])

    @classmethod
    def open(
        cls,
        paths: Sequence[tuple[str, Path]],
        dimension: int,
        num_vectors: Sequence[int],
        trained: Trained | None = None,
        nprobe: int = 1,
    ) -> "DenseIndex":
        """Open (segment id, file) pairs with `num_vectors[i]` vectors each, flat or of the trained kind, `nprobe` of whose
        lists are looked at. OperationError if one is something else.
        """
        lists = _Lists(trained, dimension, nprobe) if trained else None
        segments = [
            _Segment(segment_id, dense_files.read(path, dimension, count, trained))
            for (segment_id, path), count in zip(paths, num_vectors, strict=True)
        ]
        if lists is not None:
            for segment in segments:
                lists.lend(segment.index)
        return cls([segment for segment in segments if segment.index.ntotal], dimension, lists)

    def search(
        self, queries: Floats, k: int, dead: Dead | None = None, allowed: Allowed | None = None
    ) -> list[list[DenseHit]]:
        """For each query of (m, d) the k best live vectors, best first, and every vector that ties with the k-th.

        What `dead` says is remembered for the mapping that was passed last: pass another one when vectors die, never the
        same one changed. `allowed` is not remembered. One vector more than k is fetched from each segment, and four times as
        many for the queries whose score has not dropped below the k-th.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension or not np.isfinite(queries).all():
            raise OperationError(f"Query vectors {queries.shape} must be finite, with {self.dimension} dimensions.")
        results: list[list[DenseHit]] = [[] for _ in queries]
        live = self._all_live(dead, allowed)
        wanted = min(k, sum(each.number for each in live))
        if wanted < 1:
            return results
        queries = np.ascontiguousarray(queries, np.float32)
        self._fill(results, queries, np.arange(len(queries)), k, live, self._nearest(queries))
        starved = np.array([n for n, hits in enumerate(results) if len(hits) < wanted], np.int64)
        if self._lists is not None and len(starved):
            self._fill(results, queries, starved, k, live, self._lists.all(len(queries)))
        return results

    def search_nearest(self, queries: Floats, k: int) -> list[list[DenseHit]]:
        """The same in the nearest lists alone, with all vectors alive: fewer than k hits where these lists hold fewer."""
        results: list[list[DenseHit]] = [[] for _ in queries]
        self._fill(results, queries, np.arange(len(queries)), k, self._all_live(None, None), self._nearest(queries))
        return results

    def _nearest(self, queries: Floats) -> Places | None:
        return None if self._lists is None else self._lists.nearest(queries)

    def _fill(
        self,
        results: list[list[DenseHit]],
        queries: Floats,
        pending: Ints,
        k: int,
        live: Sequence[_Live],
        places: Places | None,
    ) -> None:
        """Set the results of the pending queries."""
        fetch = k + 1
        while pending.size:
            batch = queries if pending.size == len(queries) else queries[pending]
            here = places and (places[0][pending], places[1][pending])
            found = self._found(batch, fetch, live, here)
            unfinished = []
            for position, query in enumerate(pending):
                hits = self._merge(found, position, k)
                if hits is None:
                    unfinished.append(query)
                else:
                    results[query] = hits
            pending = np.array(unfinished, np.int64)
            fetch *= 4

    def _found(self, queries: Floats, fetch: int, live: Sequence[_Live], places: Places | None) -> _Found:
        """The best `fetch` live vectors of each segment for each query, of those in the given lists."""
        numbers = np.array([each.number for each in live])
        widths = np.minimum(numbers, fetch)
        ends = np.cumsum(widths * len(queries))
        flat_scores, flat_ids = np.full(ends[-1], -np.inf, np.float32), np.full(ends[-1], -1, np.int64)
        shapes = list(zip((ends - widths * len(queries)).tolist(), ends.tolist(), widths.tolist(), strict=True))
        scores = [flat_scores[start:end].reshape(len(queries), width) for start, end, width in shapes]
        ids = [flat_ids[start:end].reshape(len(queries), width) for start, end, width in shapes]
        search = _scan if places is None else _ListSearch(queries, places)
        parts = zip(self._segments, live, self._reached(places), scores, ids, strict=True)
        for segment, each, is_reached, own_scores, own_ids in parts:
            if each.number and is_reached:
                search(segment.index, queries, each, own_scores, own_ids)
        flat_scores[flat_ids < 0] = -np.inf
        ended = [own[:, -1] < 0 if own.shape[1] else np.ones(len(queries), np.bool_) for own in ids]
        return _Found(scores, ids, np.array(ended) | (numbers <= fetch)[:, None])

    def _reached(self, places: Places | None) -> list[bool]:
        """Which segments have anything in any of the lists to look at: of a skewed corpus few."""
        if self._filled is None or places is None or places[0].shape[1] == self._filled.shape[1]:
            return [True] * len(self._segments)
        reached: Any = self._filled[:, places[0].ravel()].any(axis=1)
        return list(reached)

    def _merge(self, found: _Found, position: int, k: int) -> list[DenseHit] | None:
        """One query's hits over all segments, or None if a segment may have more that tie with the k-th."""
        parts = [own[position] for own in found.scores]
        scores = np.concatenate(parts)
        lowest = np.partition(scores, -k)[-k] if len(scores) >= k else -np.inf
        ends = np.cumsum([len(part) for part in parts])
        going_on = np.flatnonzero(~found.exhausted[:, position])
        if (scores[ends[going_on] - 1] >= lowest).any():
            return None
        kept = np.flatnonzero((scores >= lowest) & (scores > -np.inf))
        kept = kept[np.argsort(-scores[kept], kind="stable")]
        vectors = np.concatenate([own[position] for own in found.ids])[kept]
        owners = np.searchsorted(ends, kept, side="right")
        return [
            DenseHit(self._segments[owner].id, vector, score)
            for owner, vector, score in zip(owners.tolist(), vectors.tolist(), scores[kept].tolist(), strict=True)
        ]

    def _all_live(self, dead: Dead | None, allowed: Allowed | None) -> list[_Live]:
        """What may be found in each segment: bitmaps of a million vectors take a millisecond that a search need not."""
        known, live = self._known
        if allowed is None and known is dead:
            return live
        none = np.empty(0, np.int64)
        live = [
            self._live(s, (dead or {}).get(s.id), None if allowed is None else allowed.get(s.id, none))
            for s in self._segments
        ]
        if allowed is None:
            self._known = (dead, live)
        return live

    def _live(self, segment: _Segment, dead: Ints | None, allowed: Ints | None) -> _Live:
        library = dense_files.faiss()
        num_vectors = segment.index.ntotal
        selector, number = None, num_vectors
        if allowed is not None or (dead is not None and len(dead)):
            alive = np.full(num_vectors, allowed is None)
            for what, vectors, value in (("Allowed", allowed, True), ("Dead", dead, False)):
                if vectors is not None and len(vectors):
                    if vectors.min() < 0 or vectors.max() >= num_vectors:
                        raise OperationError(
                            f"{what} vectors of segment {segment.id} lie outside its {num_vectors} vectors."
                        )
                    alive[vectors] = value
            selector = library.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
            number = int(alive.sum())
        parameters: Any = None
        if self._lists is not None:
            parameters = library.SearchParametersIVF(sel=selector, nprobe=self._lists.nprobe)
        elif selector is not None:
            parameters = library.SearchParameters(sel=selector)
        return _Live(selector, number, parameters)


class _Lists:
    """The lists' centroids, opened once for all segments."""

    def __init__(self, trained: Trained, dimension: int, nprobe: int) -> None:
        self._index = dense_files.read_trained(trained, dimension)
        self._number = trained.kind.lists
        self.nprobe = min(nprobe, self._number)
        self._centroids = self._index.quantizer
        if not trained.kind.links:  # the same bits for the same query, whatever is asked beside it
            library = dense_files.faiss()
            self._centroids = library.IndexScalarQuantizer(
                dimension, library.ScalarQuantizer.QT_fp16, library.METRIC_INNER_PRODUCT
            )
            self._centroids.add(self._index.quantizer.reconstruct_n(0, self._number))

    def lend(self, index: Any) -> None:
        """Give a segment's index the centroids, which residuals are taken from; they stay this object's."""
        index.quantizer = self._index.quantizer
        index.own_fields = False

    def filled(self, indexes: Sequence[Any]) -> npt.NDArray[np.bool_]:
        """Which lists of each segment hold vectors: (segments, lists)."""
        sizes = [[index.invlists.list_size(number) for number in range(self._number)] for index in indexes]
        return np.array(sizes, np.int64).reshape(len(indexes), self._number) > 0

    def nearest(self, queries: Floats) -> Places:
        """The lists to look at, best first."""
        scores, lists = self._centroids.search(queries, self.nprobe)
        return lists, scores

    def all(self, num_queries: int) -> Places:
        """All lists. Their scores are zeros: no code's score contains them."""
        lists = np.broadcast_to(np.arange(self._number), (num_queries, self._number))
        return lists, np.broadcast_to(np.float32(0), lists.shape)


def _scan(index: Any, queries: Floats, live: _Live, scores: Floats, ids: Ints) -> None:
    """The best live vectors of a flat index for each query, into (m, n) `scores` and `ids`."""
    index.search(queries, scores.shape[1], params=live.parameters, D=scores, I=ids)


class _ListSearch:
    """The same of what is in the given lists, one segment after the other."""

    def __init__(self, queries: Floats, places: Places) -> None:
        self._kept = (queries, *map(np.ascontiguousarray, places))  # what the pointers point to
        self._asked = [dense_files.faiss().swig_ptr(each) for each in self._kept]
        self._number, self._nprobe = places[0].shape

    def __call__(self, index: Any, queries: Floats, live: _Live, scores: Floats, ids: Ints) -> None:
        library, (asked, lists, own) = dense_files.faiss(), self._asked
        parameters = live.parameters
        if self._nprobe != parameters.nprobe:
            parameters = library.SearchParametersIVF(sel=live.selector, nprobe=self._nprobe)
        found = library.swig_ptr(scores), library.swig_ptr(ids)
        index.search_preassigned_c(self._number, asked, scores.shape[1], lists, own, *found, False, parameters)
