"""A document's sections: headings -> contiguous parts that tile the text, and the heading path of any span of it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from enrichment.boundaries import SPACE, grapheme_floor
from enrichment.headings import heading_end, heading_paths
from enrichment.records import Document, Heading

NO_LEVEL = 7
"""Deeper than any heading: a part without content of its own must not decide where a section belongs."""


@dataclass(frozen=True, slots=True)
class Section:
    """From a heading to the next one of any level, or what stands before the first (level 0, empty path).

    `body` is where its content starts: behind the heading or the front matter and the white space that follows.
    """

    start: int
    end: int
    body: int
    level: int
    path: tuple[str, ...]

    @property
    def is_bare(self) -> bool:
        """Only a heading, front matter or blanks."""
        return self.body == self.end


class Outline:
    """The sections of one document, in order, tiling its text."""

    def __init__(self, document: Document, headings: Sequence[Heading]) -> None:
        self.sections = list(_sections(document, headings))
        self._starts = [section.start for section in self.sections]

    def path_at(self, position: int) -> tuple[str, ...]:
        """The heading path in force at a code point; a heading's own line counts as inside it."""
        return self.sections[self._index(position)].path

    def path_of(self, start: int, end: int) -> tuple[str, ...]:
        """What the paths of all content in the span have in common; of its headings, where there is no content."""
        first, last = self._index(start), self._index(end - 1)
        touched = self.sections[first : last + 1]
        filled = [section.path for section in touched if max(start, section.body) < min(end, section.end)]
        return common_path(filled or [section.path for section in touched])

    def _index(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1


def common_path(paths: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The longest common beginning of at least one path."""
    first, *others = paths
    length = len(first)
    for path in others:
        length = min(length, len(path))
        while first[:length] != path[:length]:
            length -= 1
    return first[:length]


def _sections(document: Document, headings: Sequence[Heading]) -> Iterable[Section]:
    text = document.text
    starts = [heading.start for heading in headings] + [len(text)]
    if starts[0] > 0:
        body = _skip_space(text, min(document.body_start, starts[0]), starts[0])
        yield Section(0, starts[0], body, NO_LEVEL if body == starts[0] else 0, ())
    for heading, path, end in zip(headings, heading_paths(headings), starts[1:], strict=True):
        body = _skip_space(text, heading_end(text, heading.start, end), end)
        yield Section(heading.start, end, body, heading.level, path)


def _skip_space(text: str, start: int, end: int) -> int:
    match = SPACE.match(text, start, end)
    return grapheme_floor(text, match.end(), start) if match else start
