"""Headings: what counts as one, where it starts, what it is called."""

import gc
import time
from collections.abc import Callable

import pytest

from enrichment.headings import clean_title, heading_end, heading_paths, headings
from enrichment.records import Heading


def titles(text: str) -> list[tuple[int, str]]:
    return [(heading.level, heading.title) for heading in headings(text)]


def test_atx_and_setext_headings_start_at_their_first_line() -> None:
    text = "# One #\n\ntext\n\nTwo\nlines\n---\n\n   ### Three\n"
    assert headings(text) == [
        Heading(0, 1, "One"),
        Heading(text.index("Two"), 2, "Two lines"),
        Heading(text.index("   ###"), 3, "Three"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```sh\n# no\n```\n",
        "~~~\n# no\n~~~\n",
        "```\n# no, the fence is never closed\n",
        "    # no\n",
        "> # no\n",
        "- # no\n\n  # no\n",
        "<pre>\n# no\n</pre>\n",
        "<!--\n# no\n-->\n",
        "#no\n",
        "####### no\n",
        "\\# no\n",
        "text\u2028# no",
        "\f# no",
        "[a]: /url\n---\n",
    ],
)
def test_what_only_looks_like_a_heading_is_none(text: str) -> None:
    assert headings(text) == []


def test_offsets_are_those_of_the_original_text() -> None:
    text = "a\rb\r\n\r\nn\x00l\u2028x\u0085y\fz\n\r👩\u200d👧 e\u0301\r# One\r\n\x00\r\nTwo\r\n===\r# Three"
    assert [text[heading.start :][:5] for heading in headings(text)] == ["# One", "\x00\r\nTw", "# Thr"]


def test_headings_before_the_start_do_not_count() -> None:
    text = "---\n# comment\n---\n# Title\n"
    start = text.index("# Title")
    assert headings(text, start) == [Heading(start, 1, "Title")]


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("  The `run()`  command ", "The run() command"),
        ("**Bold** and *not*", "Bold and not"),
        ("2 * 3", "2 * 3"),
        ("See [the docs](https://example.org/a_(b)) now", "See the docs now"),
        ("[![badge](a.svg)](b) Name", "badge Name"),
        ('<a id="x"></a>Anchors', "Anchors"),
        ("`List<T>`", "List<T>"),
        ("R&amp;D \\#1 \\*", "R&D #1 *"),
        ("__init__", "__init__"),
        ("two\nlines", "two lines"),
        ("", ""),
    ],
)
def test_titles_lose_their_markup(source: str, title: str) -> None:
    assert clean_title(source) == title


def test_a_deeper_level_closes_at_the_next_heading_of_its_level_or_above() -> None:
    found = headings("# A\n## B\n### C\n## D\n#\n### E\n# F\n")
    assert heading_paths(found) == [("A",), ("A", "B"), ("A", "B", "C"), ("A", "D"), (), ("E",), ("F",)]


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("# A\r\ntext", 5),
        ("#\r\rtext", 2),
        ("A\nB\n--\ntext", 7),
        ("#A\r\n==\r\nx\n", 8),
        ("other\n\ntext", 6),
        ("# A", 3),
    ],
)
def test_a_heading_ends_behind_its_last_line(text: str, end: int) -> None:
    assert heading_end(text, 0, len(text)) == end


HOSTILE: dict[str, tuple[Callable[[int], str], int]] = {
    "quotes": (lambda n: ">" * n + "\n# a", 250_000),
    "quote lines": (lambda n: ">\n" * n + "# a", 25_000),
    "brackets": (lambda n: "[" * n + "\n# a", 250_000),
    "bracket lines": (lambda n: "[\n" * n + "# a", 10_000),
    "reference titles": (lambda n: "[a]: /u '\n" * n + "# a", 5_000),
    "headings": (lambda n: "# a\n" * n, 2_500),
    "backticks": (lambda n: "# " + "`" * n, 250_000),
    "link openings": (lambda n: "# " + "[](" * n, 75_000),
    "setext": (lambda n: "a\n" * n + "===", 25_000),
    "fences": (lambda n: "```\n# a\n" * n, 5_000),
    "nested lists": (lambda n: "- " * n + "\n# a", 25_000),
    "line breaks": (lambda n: "\r\n" * n + "# a", 75_000),
}


def seconds(text: str) -> float:
    """What this thread takes, the best of three, without collecting the garbage of all tests before this one."""
    taken = []
    gc.disable()
    try:
        for _ in range(3):
            begin = time.thread_time()
            for heading in headings(text)[:3]:
                heading_end(text, heading.start, len(text))
            taken.append(time.thread_time() - begin)
    finally:
        gc.enable()
    return min(taken)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    """Eight times the text takes eight times as long; a square would take 64 times. Against itself, so on any machine."""
    make, size = HOSTILE[name]
    assert seconds(make(8 * size)) < 24 * max(seconds(make(size)), 0.001)
