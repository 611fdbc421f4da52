"""What the passages of one question are cut from: the chunks of its documents, and pieces of their originals.

Pieces are read between chunk edges, of which the rows know code points and bytes; a span in between is cut out of the text.
Whatever is asked for at once is read at once, what overlaps in one read, and nothing is read twice.
"""

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from enrichment.records import Span
from indexing.documents import Documents, Owner
from indexing.originals import Slice
from indexing.windows import Neighbour, merge, neighbours

_COLUMNS = ["start", "end", "byte_start", "byte_end", "heading_path"]


class Excerpt(NamedTuple):
    """A piece of an original that begins at code point `start`."""

    start: int
    text: str
    last: bool
    """Whether the document ends with it."""

    @property
    def end(self) -> int:
        """The code point behind it."""
        return self.start + len(self.text)

    def cut(self, span: Span) -> "Excerpt":
        """The part of it that lies in a span."""
        start = min(max(span.start, self.start), self.end)
        end = min(max(span.end, start), self.end)
        return Excerpt(start, self.text[start - self.start : end - self.start], self.last and end == self.end)


class _Edges(NamedTuple):
    """Between which chunk edges a piece lies: the code point and the byte where it begins, the byte where it ends."""

    start: int
    byte_start: int
    byte_end: int


class _Source:
    """A document's chunks, and the code points and bytes of their edges, in order."""

    def __init__(self, documents: Documents, owner: Owner) -> None:
        self.owner = owner
        rows = documents.rows_of(owner).select(_COLUMNS).to_pylist()
        self.chunks = neighbours(rows)
        self.num_bytes: int = documents.record(owner)["length"]
        edges = {(row[start], row[f"byte_{start}"]) for row in rows for start in ("start", "end")}
        self._edges = sorted(edges | {(0, 0)})

    def around(self, span: Span) -> _Edges:
        """The edges nearest to a span, not inside it; behind the last chunk it is the end of the document."""
        start, byte_start = self._edges[bisect_right(self._edges, span.start, key=itemgetter(0)) - 1]
        place = bisect_left(self._edges, span.end, key=itemgetter(0))
        return _Edges(start, byte_start, self._edges[place][1] if place < len(self._edges) else self.num_bytes)


class Excerpts:
    """Of the given documents, which are named by their places in `owners`."""

    def __init__(self, documents: Documents, owners: Sequence[Owner]) -> None:
        self._documents = documents
        self._source = functools.cache(lambda document: _Source(documents, owners[document]))
        self._pieces: list[list[Excerpt]] = [[] for _ in owners]

    def chunks(self, document: int) -> Sequence[Neighbour]:
        """A document's chunks, in order."""
        return self._source(document).chunks

    def read(self, wanted: Sequence[tuple[int, Span]]) -> None:
        """Read spans of documents as far as they are not there. A span may reach behind the end of its document."""
        missing = merge([each for each in wanted if self._piece(*each) is None])
        sources = [self._source(stretch.document) for stretch in missing]
        edges = [source.around(stretch.span) for source, stretch in zip(sources, missing, strict=True)]
        slices = [Slice(*source.owner, *found[1:]) for source, found in zip(sources, edges, strict=True)]
        texts = self._documents.originals.read(slices)
        for stretch, source, found, text in zip(missing, sources, edges, texts, strict=True):
            last = found.byte_end == source.num_bytes
            self._pieces[stretch.document].append(Excerpt(found.start, text, last))

    def around(self, document: int, span: Span) -> Excerpt:
        """A piece that was read and holds a span as far as its document goes; it begins at a chunk's edge."""
        piece = self._piece(document, span)
        if piece is None:
            raise ValueError(f"the span {span} of document {document} was not read")
        return piece

    def text(self, document: int, span: Span) -> str:
        """The text of a span that was read."""
        return self.around(document, span).cut(span).text

    def _piece(self, document: int, span: Span) -> Excerpt | None:
        for piece in self._pieces[document]:
            if piece.start <= span.start and (span.end <= piece.end or piece.last):
                return piece
        return None
