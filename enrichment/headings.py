"""Headings of Markdown text: text -> headings in order of their offsets.

markdown-it decides what a heading is (its block rules only: inline markup is never parsed), so a `#` inside a fence, an
HTML block, a quote or a list is none. It counts lines of a normalised copy; the offsets here are code points into the
original text. Time is linear in the text.
"""

import html
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt

from enrichment.records import Heading

MAX_TITLE_SOURCE = 1_000
"""Code points of a heading that are read: a 1 MB line is no title, and the patterns below stay linear."""

NEWLINE = re.compile(r"\r\n?|\n")
# A line that could make a heading, ATX or the underline of a setext one. Most plain text has none and is not parsed.
CANDIDATE = re.compile(r"(?:\A|[\r\n]) {0,3}(?:#{1,6}(?:[ \t\r\n]|\Z)|(?:=+|-+)[ \t]*(?:[\r\n]|\Z))")
ATX_LINE = re.compile(r" {0,3}#{1,6}(?:[ \t][^\r\n]*)?(?>\r\n|\r|\n|\Z)")
SETEXT_LINES = re.compile(r"(?>[^\r\n]*(?>\r\n|\r|\n))+? {0,3}(?>=+|-+)[ \t]*(?>\r\n|\r|\n|\Z)")
LINE = re.compile(r"[^\r\n]*(?>\r\n|\r|\n|\Z)")

LINK = re.compile(r"!?\[([^\[\]]*)\]\((?:[^()]|\([^()]*\))*\)")
MARKUP = re.compile(
    r"(?P<ticks>`+)(?P<code>[^`]+)(?P=ticks)"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|(?P<entity>&#?\w{1,32};)"
    r"|(?P<dropped></?[A-Za-z][^<>]*>|(?<!\s)\*+|\*+(?!\s)|`)"
)


def headings(text: str, start: int = 0) -> list[Heading]:
    """The top-level headings from code point `start` (a line start: front matter lies before it) on, sorted."""
    body = text[start:]
    if not CANDIDATE.search(body):
        return []
    tokens = _parser().parse(body)
    lines = [start, *(start + match.end() for match in NEWLINE.finditer(body))]
    found = []
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            found.append(Heading(lines[token.map[0]], int(token.tag[1]), clean_title(inline.content)))
    return found


def heading_paths(headings: Sequence[Heading]) -> list[tuple[str, ...]]:
    """For each heading the titles in force behind it, its own last; an empty title closes others but is not named."""
    paths = []
    open_: list[Heading] = []
    for heading in headings:
        while open_ and open_[-1].level >= heading.level:
            open_.pop()
        open_.append(heading)
        paths.append(tuple(each.title for each in open_ if each.title))
    return paths


def heading_end(text: str, start: int, limit: int) -> int:
    """Where the lines of the heading that starts at `start` end, their last line break included; at most `limit`."""
    for pattern in (ATX_LINE, SETEXT_LINES, LINE):
        match = pattern.match(text, start, limit)
        if match:
            return match.end()
    return limit


def clean_title(source: str) -> str:
    """A heading's text on one line: links by their text, code by its content, emphasis and tags dropped."""
    source = source[:MAX_TITLE_SOURCE]
    for _ in range(2):  # an image may be the text of a link
        source = LINK.sub(r"\1", source)
    return " ".join(MARKUP.sub(_plain, source).split())


def _plain(match: re.Match[str]) -> str:
    if match["entity"]:
        return html.unescape(match["entity"])
    return match["code"] or match["escaped"] or ""


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser
