"""The lexical indexes of a snapshot's segments, open: BM25 search over all of them as over one.

`lexical_build` makes them; Lucene runs inside this process. Invariants:
* Scores are those of one big index: all segments are searched through one MultiReader. Rows that are left out (dead, or
  refused by a filter) are never returned but count in the statistics: dead ones until compaction.
* Not here: the order of tied hits, and any parsing of queries. A query is a bag of words, never Lucene's syntax.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from enrichment.errors import OperationError
from indexing.analyzers import SNOWBALL, QueryAnalyzer, Stopwords, check_language
from indexing.jvm import in_jvm, java_class, live_rows_reader
from indexing.lexical_build import FIELD

Dead = Mapping[str, Collection[int]]
"""Rows to leave out, dead or refused by a filter, by segment id."""

MAX_QUERY_TERMS = 1024
"""Lucene's own bound on the clauses of a query; the first ones of a longer query count."""

SEARCHERS_KEPT = 8
"""Of those that leave rows out: a bitmap of a million rows takes 125 kB, and the time of some searches to make."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """An open index: rows `base` to `base + num_rows` of the whole; `leaf` is null if it has none."""

    id: str
    base: int
    num_rows: int
    leaf: Any


class LexicalHit(NamedTuple):
    segment_id: str
    row: int
    score: float


class LexicalIndex:
    """The open lexical indexes of several segments, searched as one. Any number of threads may search: they take turns
    (see `jvm`). The methods without a leading underscore enter the JVM's thread, the others are in it."""

    def __init__(
        self, segments: Sequence[_Segment], analyzer: QueryAnalyzer, k1: float, b: float, resources: ExitStack
    ) -> None:
        self._analyzer = analyzer
        self._similarity = java_class("org.apache.lucene.search.similarities.BM25Similarity")(k1, b)
        self._segments = [segment for segment in segments if segment.num_rows]
        self._bases = [segment.base for segment in self._segments]
        self._resources = resources
        self._all = self._new_searcher({})
        self._kept: list[tuple[Dead, Any]] = []  # searchers by what they leave out, the last used one at the end
        self.num_rows = {segment.id: segment.num_rows for segment in segments}

    @classmethod
    def open(
        cls,
        directories: Sequence[tuple[str, Path]],
        language: str,
        k1: float = 0.9,
        b: float = 0.4,
        stopwords: Stopwords = SNOWBALL,
    ) -> "LexicalIndex":
        """Open (segment id, directory) pairs. Raises OperationError for a directory that is not that segment's."""
        check_language(language)
        return in_jvm(lambda: cls._open(directories, QueryAnalyzer(language, stopwords), k1, b))

    def search(self, query: str, k: int, dead: Dead | None = None) -> list[LexicalHit]:
        """The k best live rows by BM25, best first, and every row that ties with the k-th; none for an empty query.

        What `dead` says is remembered for the mappings that were passed last: pass another one when rows die, never the
        same one changed.
        """
        return in_jvm(lambda: self._search(query, k, dead or {})) if k > 0 and self._segments else []

    def close(self) -> None:
        """Release the files; later searches fail."""
        in_jvm(self._resources.close)

    @classmethod
    def _open(
        cls, directories: Sequence[tuple[str, Path]], analyzer: QueryAnalyzer, k1: float, b: float
    ) -> "LexicalIndex":
        with ExitStack() as resources:
            segments: list[_Segment] = []
            for segment_id, directory in directories:
                base = segments[-1].base + segments[-1].num_rows if segments else 0
                segments.append(_open_segment(segment_id, directory, base, resources))
            return cls(segments, analyzer, k1, b, resources.pop_all())

    def _search(self, query: str, k: int, dead: Dead) -> list[LexicalHit]:
        """Fetch one row more than k, and four times as many until the score drops below the k-th."""
        lucene_query = self._new_query(query)
        if lucene_query is None:
            return []
        searcher = self._searcher(dead)
        k = min(k, self._segments[-1].base + self._segments[-1].num_rows)
        fetch = k + 1
        while True:
            hits = [(hit.doc, hit.score) for hit in searcher.search(lucene_query, fetch).scoreDocs]
            if len(hits) < fetch or hits[-1][1] < hits[k - 1][1]:
                break
            fetch *= 4
        lowest = hits[k - 1][1] if len(hits) >= k else 0.0
        return [self._hit(number, score) for number, score in hits if score >= lowest]

    def _hit(self, number: int, score: float) -> LexicalHit:
        segment = self._segments[bisect_right(self._bases, number) - 1]
        return LexicalHit(segment.id, number - segment.base, score)

    def _new_query(self, text: str) -> Any:
        """A disjunction of the text's terms, each weighted by how often it occurs, as Anserini's bag of words does."""
        counts = self._analyzer.terms(text)
        if not counts:
            return None
        new_term = java_class("org.apache.lucene.index.Term")
        new_term_query = java_class("org.apache.lucene.search.TermQuery")
        new_boost_query = java_class("org.apache.lucene.search.BoostQuery")
        should = java_class("org.apache.lucene.search.BooleanClause$Occur").SHOULD
        builder = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
        for term, count in islice(counts.items(), MAX_QUERY_TERMS):
            builder.add(new_boost_query(new_term_query(new_term(FIELD, term)), float(count)), should)
        return builder.build()

    def _searcher(self, dead: Dead) -> Any:
        if not dead:
            return self._all
        searcher = next((kept for given, kept in self._kept if given is dead), None) or self._new_searcher(dead)
        self._kept = [*(entry for entry in self._kept if entry[0] is not dead), (dead, searcher)][-SEARCHERS_KEPT:]
        return searcher

    def _new_searcher(self, dead: Dead) -> Any:
        """A searcher over all segments that does not see the dead rows.

        Its MultiReader is never closed: with `True` it takes no references, so closing the segments is enough.
        """
        from jnius import cast

        leaves = [_without(segment, dead.get(segment.id, ())) for segment in self._segments]
        readers = [cast("org.apache.lucene.index.IndexReader", leaf) for leaf in leaves]
        reader = java_class("org.apache.lucene.index.MultiReader")(readers, True)
        searcher = java_class("org.apache.lucene.search.IndexSearcher")(reader.getContext())
        searcher.setSimilarity(self._similarity)
        return searcher


def stored_rows(directory: Path, segment_id: str) -> tuple[int, int | None]:
    """The number of rows in an index, and the first whose stored id is not its own. Raises OperationError like `open`."""

    def read() -> tuple[int, int | None]:
        with ExitStack() as resources:
            segment = _open_segment(segment_id, directory, 0, resources)
            wrong = (n for n in range(segment.num_rows) if segment.leaf.document(n).get("id") != f"{segment_id}-{n}")
            return segment.num_rows, next(wrong, None)

    return in_jvm(read)


def _open_segment(segment_id: str, directory: Path, base: int, resources: ExitStack) -> _Segment:
    """Open one index and see by its first and last id that it is the segment's, whole and in order."""
    from jnius import JavaException

    try:
        path = java_class("java.nio.file.Paths").get(str(directory))
        files = resources.enter_context(closing(java_class("org.apache.lucene.store.FSDirectory").open(path)))
        reader = resources.enter_context(closing(java_class("org.apache.lucene.index.DirectoryReader").open(files)))
        num_rows = reader.maxDoc()
        if num_rows == 0:
            return _Segment(segment_id, base, 0, None)
        ids = [reader.document(0).get("id"), reader.document(num_rows - 1).get("id")]
        if ids != [f"{segment_id}-0", f"{segment_id}-{num_rows - 1}"] or reader.leaves().size() != 1:
            raise OperationError(f"The lexical index {directory} is not segment {segment_id}'s: its ids are {ids}.")
        return _Segment(segment_id, base, num_rows, reader.leaves().get(0).reader())
    except JavaException as error:
        raise OperationError(f"The lexical index {directory} cannot be opened: {error}") from error


def _without(segment: _Segment, dead: Collection[int]) -> Any:
    """The segment's reader, with a bitmap of live rows laid over it if some are dead.

    The overlay costs nothing at search time, whatever the number of dead rows; a query that excludes their ids would
    have to be built term by term.
    """
    if not len(dead):
        return segment.leaf
    from jnius import cast

    rows = np.fromiter(dead, np.int64, len(dead))
    if rows.min() < 0 or rows.max() >= segment.num_rows:
        raise OperationError(f"Dead rows of segment {segment.id} lie outside its {segment.num_rows} rows.")
    alive = np.zeros(-(-segment.num_rows // 64) * 64, bool)
    alive[: segment.num_rows] = True
    alive[rows] = False
    words = np.packbits(alive, bitorder="little").view("<i8").tolist()
    bits = java_class("org.apache.lucene.util.FixedBitSet")(words, segment.num_rows)
    leaf = cast("org.apache.lucene.index.LeafReader", segment.leaf)
    return live_rows_reader()(leaf, bits, int(alive.sum()))
