"""Sentences: text -> contiguous spans that tile it. The only place that knows `sentencex`.

The library gets one paragraph at a time: beyond about 10 kB it drops line breaks between paragraphs (1.0.32), and so
no sentence crosses a blank line. Its pieces are only hints at where to cut; the text is never taken from them.
"""

import sentencex

from enrichment.boundaries import SPACE, grapheme_floor, paragraph_ends
from enrichment.records import Span

SEARCH_AHEAD = 1_000
"""Code points ahead in which a piece is looked for that does not follow the one before: keeps the time linear."""


def sentences(text: str, language: str = "en") -> list[Span]:
    """Spans in code points that tile `text`; white space belongs to the sentence before it, at the start to the first.

    `language` is an ISO 639-1 code; an unknown one gets general rules. No end lies inside a grapheme.
    """
    if not text:
        return []
    spans = []
    start = 0
    first = _skip_space(text, 0)
    for hint in _hints(text, language):
        if hint <= max(start, first):
            continue
        end = grapheme_floor(text, _skip_space(text, hint), start)
        if start < end < len(text):
            spans.append(Span(start, end))
            start = end
    spans.append(Span(start, len(text)))
    return spans


def _hints(text: str, language: str) -> list[int]:
    """Offsets where a sentence may end, ascending."""
    hints = []
    start = 0
    for end in (*paragraph_ends(text), len(text)):
        paragraph = text[start:end].rstrip()
        position = 0
        for piece in sentencex.segment(language, paragraph):
            # Found where the last one ended, unless the library lost or changed something: then where it is, if it is.
            if not paragraph.startswith(piece, position):
                found = paragraph.find(piece, position, position + len(piece) + SEARCH_AHEAD)
                if found < 0:
                    continue
                position = found
            position += len(piece)
            hints.append(start + position)
        hints.append(end)
        start = end
    return hints


def _skip_space(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    return match.end() if match else position
