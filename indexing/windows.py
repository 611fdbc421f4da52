"""Spans of hits: widened by chunks, kept to a budget, merged where they touch or overlap.

A window by chunks is the hit's neighbours by chunk index in the same document, so it never crosses a document;
`within_section` also stops it where the heading path changes. Merged spans keep every hit and rank by their best one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enrichment.errors import ConfigError
from enrichment.records import Span

Row = Mapping[str, Any]
"""A stored row, by its columns."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What a window needs to know of a row: its span and the section it is in."""

    span: Span
    heading_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A contiguous span of one document that covers one hit or several, best first."""

    document: int
    span: Span
    hits: tuple[int, ...]


def widen(rows: Sequence[Neighbour], index: int, window: int, within_section: bool) -> Span:
    """The span from `window` chunks before chunk `index` to as many behind it, of one document's `rows`."""
    first = last = index
    for _ in range(min(window, len(rows))):
        if first > 0 and (not within_section or rows[first - 1].heading_path == rows[index].heading_path):
            first -= 1
        if last + 1 < len(rows) and (not within_section or rows[last + 1].heading_path == rows[index].heading_path):
            last += 1
    return covering(rows[first : last + 1])


def covering(rows: Sequence[Neighbour]) -> Span:
    """From the first to the last code point of some chunks, which may overlap."""
    return Span(min(row.span.start for row in rows), max(row.span.end for row in rows))


def neighbours(rows: Sequence[Row]) -> list[Neighbour]:
    """Of a document's stored rows, in chunk order."""
    return [Neighbour(Span(row["start"], row["end"]), tuple(row["heading_path"])) for row in rows]


def inside(rows: Sequence[Row], span: Span) -> list[Row]:
    """The stored rows that a span covers."""
    return [row for row in rows if span.start <= row["start"] and row["end"] <= span.end]


def bytes_of(rows: Sequence[Row]) -> tuple[int, int]:
    """The bytes of the original from the first to the last of some stored rows."""
    return min(row["byte_start"] for row in rows), max(row["byte_end"] for row in rows)


def check_chunk(document_id: str, num_chunks: int, index: int) -> None:
    """Raise ConfigError for a chunk that the document does not have."""
    if not 0 <= index < num_chunks:
        has = f"chunks 0 to {num_chunks - 1}" if num_chunks else "no chunks"
        raise ConfigError(f"the document {document_id} has {has}; {index} is none of them")


def merge(hits: Sequence[tuple[int, Span]], touching: bool = True) -> list[Stretch]:
    """Merge the spans of hits, given best first as (document, span); hits are named by their place in `hits`.

    Those that overlap become one; so do those that touch, unless `touching` is false.
    """
    by_document: dict[int, list[int]] = {}
    for place, (document, _) in enumerate(hits):
        by_document.setdefault(document, []).append(place)
    found = []
    for document, places in by_document.items():
        places.sort(key=lambda place: (hits[place][1], place))
        group, span = [places[0]], hits[places[0]][1]
        for place in places[1:]:
            other = hits[place][1]
            if other.start < span.end + touching:
                group.append(place)
                span = Span(span.start, max(span.end, other.end))
            else:
                found.append(Stretch(document, span, tuple(sorted(group))))
                group, span = [place], other
        found.append(Stretch(document, span, tuple(sorted(group))))
    return sorted(found, key=lambda stretch: stretch.hits[0])


def length(spans: Sequence[tuple[int, Span]]) -> int:
    """The code points of spans of documents; shared text counts once."""
    return sum(stretch.span.end - stretch.span.start for stretch in merge(spans))


def fitted(hits: Sequence[tuple[int, Sequence[Span]]], budget: int | None) -> dict[int, tuple[int, Span]]:
    """By the places of the hits, given best first as (document, spans that would do): what fits together into `budget`.

    Of each hit it is the first of its spans with which all fits; none is ever cut. A hit of which none fits is left out, and
    the next ones are tried. The budget counts code points, shared text once.
    """
    kept: dict[int, tuple[int, Span]] = {}
    for place, (document, spans) in enumerate(hits):
        for span in spans:
            if budget is None or length([*kept.values(), (document, span)]) <= budget:
                kept[place] = document, span
                break
    return kept
