"""Where a text may be cut without harm: graphemes and paragraphs. Offsets are code points.

A grapheme is what a reader takes for one character (UAX 29), CR LF included. Looking for one is local: it costs the
distance to the last known boundary at most, whatever the length of the text.
"""

import re

import regex

FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
# Two flag letters make a flag. `\X` alone would count the whole run of them before each one: quadratic.
GRAPHEME = regex.compile(rf"[{FLAG_LETTERS}]{{2}}[\p{{GCB=Extend}}\p{{GCB=ZWJ}}\p{{GCB=SpacingMark}}]*|\X")
LOOK_BEHIND = 256
"""Code points read before a position; where a longer grapheme hides the boundary, all from the known one on."""

SPACE = re.compile(r"\s*")
# A paragraph ends behind its blank lines. Atomic: a line break is never taken apart, and nothing is tried twice.
BLANK_LINES = re.compile(r"(?>\r\n|\r|\n)(?>[^\S\r\n]*(?>\r\n|\r|\n))+")


def grapheme_floor(text: str, position: int, low: int = 0) -> int:
    """The last grapheme boundary in `[low, position]`; `low` counts as one."""
    if not low < position < len(text):
        return min(max(position, low), len(text))
    before, behind = text[position - 1], text[position]
    if before.isascii() and behind.isascii():
        return position - (before == "\r" and behind == "\n")
    start = max(low, position - LOOK_BEHIND)
    start -= _num_flag_letters(text, low, start) % 2
    edges = _edges(text, start, position)
    if len(edges) < 2 and start > low:  # the window may open inside a grapheme: its first edge is not sure
        edges = _edges(text, low, position)
    return edges[-1] if edges else low


def grapheme_ceil(text: str, position: int, low: int, high: int) -> int:
    """The first grapheme boundary in `[position, high]`; `high` counts as one, `low` before them is a known one."""
    floor = grapheme_floor(text, position, low)
    if floor == position:
        return position
    match = GRAPHEME.match(text, floor, high)
    return match.end() if match else high


def paragraph_ends(text: str) -> list[int]:
    """The offsets behind runs of blank lines, ascending; the end of the text only if it ends with such a run."""
    return [match.end() for match in BLANK_LINES.finditer(text)]


def _edges(text: str, start: int, position: int) -> list[int]:
    # Whether two code points are joined depends on nothing behind them, so reading one past `position` is enough.
    ends = [start + match.end() for match in GRAPHEME.finditer(text[start : position + 1])]
    return ends if ends[-1] <= position else ends[:-1]


def _num_flag_letters(text: str, low: int, position: int) -> int:
    """The length of the run of flag letters that ends at `position` and starts at `low` or later."""
    if position == low or text[position - 1] not in FLAG_LETTERS:
        return 0
    run = text[low:position]
    return len(run) - len(run.rstrip(FLAG_LETTERS))
