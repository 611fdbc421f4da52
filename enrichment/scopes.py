"""Oversized documents -> scopes that fit the model. A document that fits is one scope.

Scopes cover the chunks in order, each chunk once; a cut falls at a heading in the later half of a scope, else behind a
blank line, else between chunks. Lengths are in tokens of the language model.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enrichment.boundaries import BLANK_LINES
from enrichment.records import Chunk, Document, Heading, Span
from enrichment.tokens import TokenOffsets


@dataclass(frozen=True, slots=True)
class Scope:
    """The contiguous part of a document that is the prefix for a run of chunks."""

    span: Span
    chunks: tuple[Chunk, ...]


def scopes(
    document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], offsets: TokenOffsets, max_tokens: int
) -> list[Scope]:
    """Cut a document's chunks into runs of at most `max_tokens` tokens; a chunk longer than that stands alone."""
    starts = np.searchsorted(offsets.ends, [chunk.start for chunk in chunks], side="right")
    ends = np.searchsorted(offsets.starts, [chunk.end for chunk in chunks])
    found, first = [], 0
    while first < len(chunks):
        last = first + 1
        while last < len(chunks) and ends[last] - starts[first] <= max_tokens:
            last += 1
        if last < len(chunks):
            last = _snap(document, headings, chunks, first, last)
        found.append(Scope(Span(chunks[first].start, chunks[last - 1].end), tuple(chunks[first:last])))
        first = last
    return found


def _snap(document: Document, headings: Sequence[Heading], chunks: Sequence[Chunk], first: int, last: int) -> int:
    """The best index to cut before, in the later half of `chunks[first:last]`."""
    heading_starts = [heading.start for heading in headings]
    candidates = range(last, max(first + 1, (first + last) // 2), -1)
    for index in candidates:
        position = bisect.bisect_left(heading_starts, chunks[index - 1].end)
        if position < len(heading_starts) and heading_starts[position] < chunks[index].end:
            leading = document.text[chunks[index].start : heading_starts[position]]
            if not leading.strip():
                return index
    for index in candidates:
        before = document.text[chunks[index - 1].start : chunks[index].start]
        if BLANK_LINES.search(before, len(before.rstrip())):
            return index
    return last
