"""Sentences tile the text, and end where a reader would end them."""

import time

import pytest
import regex
import sentencex
from hypothesis import example, given
from hypothesis import strategies as st

from enrichment.sentences import enough, sentences

PIECES = [
    "a",
    "Bc. ",
    "? ",
    ".",
    " ",
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    "。",
    "”",
    "“",
    "e\u0301",
    "\u0301",
    "👩\u200d👧",
    "\x00",
    "\u2028",
]


def pieces(text: str, language: str = "en") -> list[str]:
    return [text[start:end] for start, end in sentences(text, language)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Dr. Smith paid $3.50 to Acme Inc. on Jan. 3. It was late.",
            ["Dr. Smith paid $3.50 to Acme Inc. on Jan. 3. ", "It was late."],
        ),
        ("hello. foo bar. cat dog. mouse", ["hello. ", "foo bar. ", "cat dog. ", "mouse"]),
        ("他说：“你好。”然后走了。例外！见附件", ["他说：“你好。”", "然后走了。", "例外！", "见附件"]),
        ("One\n\n  Two\n \t\nThree\n\n", ["One\n\n  ", "Two\n \t\n", "Three\n\n"]),
        ("One.\r\n\r\nTwo.\r\n", ["One.\r\n\r\n", "Two.\r\n"]),
        ("\n\n  One.  Two.", ["\n\n  One.  ", "Two."]),
        (" \n\n ", [" \n\n "]),
        ("Go. Go. Go.", ["Go. ", "Go. ", "Go."]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


def test_an_unknown_language_is_no_error() -> None:
    assert pieces("One is. Two is.", "xx-unknown") == ["One is. ", "Two is."]


def test_a_long_text_of_many_paragraphs_is_kept_whole() -> None:
    text = "It was a nice day, and Dr. Smith left. He went home.\n\n" * 1_000
    assert pieces(text) == ["It was a nice day, and Dr. Smith left. ", "He went home.\n\n"] * 1_000


def test_pieces_that_the_library_changes_or_drops_lose_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "One. Two. Three. Four."
    monkeypatch.setattr(sentencex, "segment", lambda language, text: ["One. ", "TWO. ", "Three. ", "our."])
    assert "".join(pieces(text)) == text
    assert pieces(text) == ["One. ", "Two. Three. ", "Four."]


@pytest.mark.parametrize("space", ["\xa0", "\x85", "\u2028", "\u3000"])
def test_wide_space_before_a_full_stop_is_no_panic_of_the_library(space: str) -> None:
    assert pieces(f"He has plan B{space}. It is.") == [f"He has plan B{space}. ", "It is."]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("", 1, False),
        ("\n \n", 1, False),
        ("One\n", 2, True),
        ("\n\nOne", 1, False),
        ("One is. ", 1, False),
        ("One is. Two", 1, False),  # the word may go on
        ("One is. Two ", 1, True),
        ("One is. Two ", 2, False),
        ("One is. Two is. Three, ", 2, True),
        ("It is the U.S. Army ", 1, False),
        ("It is 3.5 bar ", 1, False),
        ("It is “one. Two is. ", 1, False),
        ("It is “one.” Two is ", 1, True),
        ("It is (one. Two is. ", 1, False),
        ("It is the operators’ one. Two is. ", 1, False),  # the library takes ’ for a quotation mark
        ("It is the operators' one. Two is ", 1, True),
        ("说明退款。例外", 1, False),
        ("说明退款。例外见附件，", 1, True),
    ],
)
def test_a_growing_text_is_enough_when_nothing_can_change_its_first_sentences(
    text: str, count: int, expected: bool
) -> None:
    assert enough(text, count) is expected


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@example(" 。\u0301")
def test_sentences_tile_the_text_and_keep_graphemes_whole(text: str) -> None:
    spans = sentences(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(start < end for start, end in spans)
    assert not text.strip() or all(text[start:end].strip() for start, end in spans)
    edges = {match.end() for match in regex.finditer(r"\X", text)}
    assert all(end in edges for _, end in spans)


HOSTILE = [
    "a" * 150_000,
    "e" + "\u0301" * 200_000,
    "\n" * 100_000,
    ". " * 200_000,
    "🇩🇪" * 100_000,
    '"' * 200_000,
    " " * 300_000 + ".",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:2]))
def test_hostile_text_takes_linear_time(text: str) -> None:
    begin = time.thread_time()
    assert sum(end - start for start, end in sentences(text)) == len(text)
    assert time.thread_time() - begin < 10
