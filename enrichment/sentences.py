"""Sentences: text -> contiguous spans that tile it. The only place that knows `sentencex`.

The library gets one paragraph at a time: beyond about 10 kB it drops line breaks between paragraphs (1.0.32), and so
no sentence crosses a blank line. Its pieces are only hints at where to cut; the text is never taken from them.
"""

import re

import sentencex

from enrichment.boundaries import SPACE, grapheme_floor, paragraph_ends
from enrichment.records import Span

SEARCH_AHEAD = 1_000
"""Code points ahead in which a piece is looked for that does not follow the one before: keeps the time linear."""

# The library panics (1.0.32) on a capital, white space of several bytes, and a full stop: "plan B\xa0.".
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_TERMINATORS = ".!?。！？।"
# A whole word and what follows it. In scripts without spaces, where a word has no visible end: twenty letters.
_NEXT_WORD = re.compile(r"\w+[^\w.]|\w{20}")
_NO_SPACE_NEEDED = "。！？"  # behind another terminator it is: `www.` and `1.` go on
_MARKS = r"\"“”„‟«»‹›‘’‚‛「」『』〈〉《》()（）\[\]{}<>"
_MARK = re.compile(rf"[{_MARKS}]|(?<!\w)'")
_PAIRS = ('""', "“”", "„“", "«»", "「」", "『』", "《》", "()", "（）", "[]")
_CLOSED = re.compile("|".join(f"{re.escape(pair[0])}[^{_MARKS}]+{re.escape(pair[1])}" for pair in _PAIRS))


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
        if max(start, first) < end < len(text):  # the grapheme may reach back to the white space in front
            spans.append(Span(start, end))
            start = end
    spans.append(Span(start, len(text)))
    return spans


def enough(text: str, count: int) -> bool:
    """Whether a text that still grows has its first line, or `count` sentences of it, for good.

    True means that no continuation changes these sentences; False may mean "not sure yet". Cheap enough to be asked for every
    piece of a stream: without `count` terminators nothing is split. The splitter takes a boundary back when an abbreviation
    goes on (`U.S.` `Army`), so the next word must stand there whole; and when a quotation or bracket that was open before it
    closes behind it (also from one ’ to the next), so none may be open.
    """
    text = text.lstrip()
    if "\n" in text:
        return True
    if sum(map(text.count, _TERMINATORS)) < count:
        return False
    ends = [span.end for span in sentences(text)]
    if len(ends) <= count or not _NEXT_WORD.match(text, ends[count - 1]):
        return False
    if not all(text[end - 1].isspace() or text[end - 1] in _NO_SPACE_NEEDED for end in ends[:count]):
        return False
    return not _MARK.search(_CLOSED.sub("", text[: ends[count - 1]]))


def _hints(text: str, language: str) -> list[int]:
    """Offsets where a sentence may end, ascending."""
    hints = []
    start = 0
    for end in (*paragraph_ends(text), len(text)):
        paragraph = _WIDE_SPACE.sub(" ", text[start:end].rstrip())
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
