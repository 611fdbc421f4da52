"""Cutting a run of text under limits: start and end -> spans of at most the allowed size, cut where it reads best.

Best is behind a paragraph, then a sentence, then a line, then a word, then a grapheme. The tail is not left tiny: where
two chunks suffice for the rest, the cut nearest to their middle is taken. The search from one cut to the next is bounded
by the chunk, so time is linear in the text.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cached_property

import regex

from enrichment.boundaries import grapheme_ceil, grapheme_floor, paragraph_ends
from enrichment.limits import Limits
from enrichment.records import Span
from enrichment.sentences import sentences

# Searched backwards: the last line break, the last white space.
LINE_BREAK = regex.compile(r"(?r)\r\n|\r|\n")
WHITE_SPACE = regex.compile(r"(?r)\s")
WORD_START = regex.compile(r"(?<=\s)\S")

Window = tuple[int, int, int]
"""Where a cut is looked for: the first offset allowed, the one wished for, the last one allowed."""


class Cutter:
    """Cuts parts of one text. `line_starts` are offsets as good as a paragraph's end: headings."""

    def __init__(self, text: str, language: str, limits: Limits, overlap: Limits | None, line_starts: Iterable[int]):
        self._text = text
        self._language = language
        self._limits = limits
        self._overlap = overlap
        self._paragraphs = sorted({*paragraph_ends(text), *line_starts})

    @cached_property
    def _sentences(self) -> list[int]:
        return [span.end for span in sentences(self._text, self._language)]

    def cut(self, start: int, end: int, body: int) -> list[Span]:
        """Spans from `start` to `end`, each behind the one before; contiguous unless chunks overlap.

        What precedes `body`, headings, is not cut off from it where some of it fits in.
        """
        spans: list[Span] = []
        begin = after = start
        while after < end:
            stop = self._stop(begin, after, end, body)
            if stop <= after:  # the overlap left no room for anything new
                begin = after
                stop = self._stop(begin, after, end, body)
            spans.append(Span(begin, stop))
            after = stop
            begin = self._begin(begin, stop)
        return spans

    def _stop(self, start: int, after: int, end: int, body: int) -> int:
        """Where the chunk from `start` ends: behind `after`, or not if `start` lies before it and nothing fits."""
        high = self._limits.reach(start)
        if high >= end:
            return end
        least = (max(after, body) if body < high else after) + 1
        windows = self._windows(start, least, end, high)
        stop = self._at_paragraph_or_sentence(windows) or self._at_line_or_word(start, [*windows, (least, high, high)])
        if stop:
            return stop
        stop = grapheme_floor(self._text, high, start)
        if stop > after or start < after:
            return stop
        # One grapheme is larger than a chunk may be. CR LF stays whole all the same.
        stop = max(high, start + 1)
        return stop + (self._text[stop - 1 : stop + 1] == "\r\n")

    def _windows(self, start: int, least: int, end: int, high: int) -> list[Window]:
        """The middle of the rest if two chunks suffice, the last half of what fits, the last three quarters of it."""
        half = (max((start + high) // 2, least), high, high)
        most = (max((3 * start + high) // 4, least), high, high)
        low = max(self._limits.back(end), least)
        if self._overlap is None and low <= high:
            return [(low, (low + high) // 2, high), half, most]
        return [half, most]

    def _at_paragraph_or_sentence(self, windows: list[Window]) -> int | None:
        for window in windows[:-1]:
            if found := _nearest(self._paragraphs, window):
                return found
        for window in windows:
            if found := _nearest(self._sentences, window):
                return found
        return None

    def _at_line_or_word(self, start: int, windows: list[Window]) -> int | None:
        for pattern in (LINE_BREAK, WHITE_SPACE):
            for low, wished, _ in windows if pattern is WHITE_SPACE else windows[:-1]:
                match = pattern.search(self._text, low - 1, wished) if low <= wished else None
                stop = grapheme_floor(self._text, match.end(), start) if match else 0
                if stop >= low:
                    return stop
        return None

    def _begin(self, begin: int, stop: int) -> int:
        """Where the next chunk begins: at a word inside the overlap, a grapheme where no word starts, or `stop`."""
        if self._overlap is None:
            return stop
        low = max(self._overlap.back(stop), begin + 1)
        match = WORD_START.search(self._text, low, stop)
        if match and grapheme_floor(self._text, match.start(), begin) == match.start():
            return match.start()
        return grapheme_ceil(self._text, low, begin, stop) if low < stop else stop


def _nearest(ends: list[int], window: Window) -> int | None:
    """The offset in the window that is nearest to the wished one; the earlier of two."""
    low, wished, high = window
    first, last = bisect_left(ends, low), bisect_right(ends, high)
    middle = bisect_left(ends, wished, first, last)
    return min(ends[max(first, middle - 1) : min(middle + 1, last)], key=lambda end: abs(end - wished), default=None)
