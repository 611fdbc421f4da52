"""Splitting: spans tile, agree with the bytes, keep the limits and the graphemes, and respect headings."""

import re
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichment.errors import ConfigError, DocumentError
from enrichment.headings import headings
from enrichment.records import Chunk, Document, DocumentId, Span
from enrichment.split import SplitOptions, split
from enrichment.tokens import TokenOffsets

PIECES = [
    "a",
    "word ",
    "End. ",
    "排",
    "。",
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "\r\n",
    "\n",
    "\n\n",
    "\r",
    "\x00",
    "e\u0301",
    "\u0301",
]
PIECES += ["# ", "\n# A\n", "\n\n## B\n\n", "`", "\n```\n", "\u2028", " ", "\n---\n"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def words(text: str) -> TokenOffsets:
    return offsets([match.span() for match in re.finditer(r"\w+|[^\w\s]", text)])


def offsets(spans: Sequence[tuple[int, int]]) -> TokenOffsets:
    starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return TokenOffsets(starts, ends)


def chunks_of(text: str, model: TokenOffsets | None = None, body_start: int = 0, **options: Any) -> list[Chunk]:
    document = Document(DocumentId("d"), text, body_start=body_start)
    return split(document, headings(text, body_start), SplitOptions(**options), words(text), model)


def texts_of(text: str, **options: Any) -> list[str]:
    return [text[chunk.start : chunk.end] for chunk in chunks_of(text, **options)]


def paths_of(text: str, **options: Any) -> list[tuple[str, ...]]:
    return [chunk.heading_path for chunk in chunks_of(text, **options)]


def num_tokens(tokens: TokenOffsets, chunk: Chunk) -> int:
    return int(np.sum((tokens.starts < chunk.end) & (tokens.ends > chunk.start)))


def assert_sound(text: str, chunks: list[Chunk], tiled: bool = True) -> None:
    """What holds for every split: numbered, progressing, complete, and the same in characters and bytes."""
    encoded = text.encode()
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert chunk.start < chunk.end
        assert encoded[chunk.byte_start : chunk.byte_end] == text[chunk.start : chunk.end].encode()
    for before, chunk in pairwise(chunks):
        assert before.start < chunk.start <= before.end < chunk.end
        assert not tiled or chunk.start == before.end
    assert bool(chunks) == bool(text.strip())
    if chunks:
        assert (chunks[0].start, chunks[-1].end) == (0, len(text))


def graphemes(text: str) -> list[Span]:
    return [Span(*match.span()) for match in regex.finditer(r"\X", text)]


# Every split, any text


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 12), st.integers(0, 11), st.integers(0, 10), st.booleans())
def test_chunks_by_tokens_keep_all_limits(text: str, size: int, overlap: int, min_size: int, narrow: bool) -> None:
    overlap = overlap % size
    tokens = words(text)
    model = offsets([(i, i + 1) for i in range(len(text))]) if narrow else None
    chunks = chunks_of(text, model=model, size=size, overlap=overlap, min_size=min_size)
    assert_sound(text, chunks, tiled=overlap == 0)
    clusters = graphemes(text)
    limit = 2 * size if narrow else 8 * size
    large = [c for c in clusters if c.end - c.start > limit or num_tokens(tokens, Chunk(0, *c, 0, 0)) > size]
    edges = {0, *(cluster.end for cluster in clusters)}
    for chunk in chunks:
        whole = any(c.start <= chunk.start and chunk.end <= c.end for c in large)
        assert whole or num_tokens(tokens, chunk) <= size
        assert whole or chunk.end - chunk.start <= limit
        assert chunk.end in edges or any(c.start < chunk.end < c.end for c in large)
        assert text[chunk.end - 1 : chunk.end + 1] != "\r\n"


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 12), st.integers(0, 11))
def test_chunks_by_characters_have_the_size_but_for_graphemes(text: str, size: int, overlap: int) -> None:
    overlap = overlap % size
    chunks = chunks_of(text, by="characters", size=size, overlap=overlap)
    assert_sound(text, chunks, tiled=overlap == 0)
    clusters = graphemes(text)
    edges = {0, *(cluster.end for cluster in clusters)}
    longest = max((cluster.end - cluster.start for cluster in clusters), default=0)
    assert all(chunk.start in edges and chunk.end in edges for chunk in chunks)
    assert all(chunk.end - chunk.start <= max(size, longest) for chunk in chunks)
    assert longest > 1 or all(chunk.end - chunk.start == size for chunk in chunks[:-1])


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 4), st.integers(0, 3))
def test_chunks_by_sentences_are_sound(text: str, size: int, overlap: int) -> None:
    overlap = overlap % size
    chunks = chunks_of(text, by="sentences", size=size, overlap=overlap)
    assert_sound(text, chunks, tiled=overlap == 0)
    edges = {0, *(cluster.end for cluster in graphemes(text))}
    assert all(chunk.end in edges for chunk in chunks)
    assert all(text[chunk.start : chunk.end].strip() for chunk in chunks)


@pytest.mark.parametrize("by", ["tokens", "characters", "sentences"])
@pytest.mark.parametrize("text", ["", "  \n\t\n\u3000\n"])
def test_a_blank_document_has_no_chunks(text: str, by: str) -> None:
    assert chunks_of(text, by=by, size=5) == []


# By tokens: where it cuts


def test_a_chunk_ends_at_a_paragraph_rather_than_a_sentence() -> None:
    text = "One two three.\n\nFour five. Six seven. " + "Eight nine ten. " * 9
    assert texts_of(text, size=7)[0] == "One two three.\n\n"


def test_a_chunk_ends_at_a_sentence_rather_than_a_word() -> None:
    text = "One two three four five. Six seven eight nine ten. " * 5
    assert texts_of(text, size=8) == ["One two three four five. ", "Six seven eight nine ten. "] * 5


def test_a_chunk_ends_at_a_line_where_no_sentence_ends() -> None:
    assert texts_of("| p1 | 1 GB |\n" * 8, size=14) == ["| p1 | 1 GB |\n" * 2] * 4


def test_a_chunk_ends_at_a_word_where_no_sentence_ends() -> None:
    assert texts_of("alpha beta gamma delta epsilon zeta eta", size=3, min_size=0)[0] == "alpha beta gamma "


def test_a_word_too_long_for_the_characters_is_cut() -> None:
    assert [len(piece) for piece in texts_of("x" * 100, size=5)] == [40, 40, 20]


def test_the_rest_is_halved_where_two_chunks_suffice() -> None:
    assert texts_of("One two three. " * 6, size=20) == ["One two three. " * 3] * 2


def test_the_tokens_of_the_model_are_limited_too() -> None:
    text = "ab cd " * 20
    letters = offsets([match.span() for match in re.finditer(r"\w", text)])
    chunks = chunks_of(text, model=letters, size=4)
    assert max(num_tokens(letters, chunk) for chunk in chunks) == 8
    assert max(num_tokens(letters, chunk) for chunk in chunks_of(text, size=5)) == 10


def test_a_grapheme_of_more_tokens_than_a_chunk_is_cut_but_never_cr_lf() -> None:
    text = "👩\u200d👧\r\nx"
    document = Document(DocumentId("d"), text)
    each = offsets([(i, i + 1) for i in range(len(text))])
    chunks = split(document, [], SplitOptions(size=1), each)
    assert [text[chunk.start : chunk.end] for chunk in chunks] == ["👩", "\u200d", "👧", "\r\n", "x"]


def test_tokens_that_share_a_character_and_empty_tokens_do_no_harm() -> None:
    text = "排放"
    shared = offsets([(0, 0), (0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (2, 2)])
    chunks = split(Document(DocumentId("d"), text), [], SplitOptions(size=3), shared)
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(0, 1), (1, 2)]


def test_overlap_begins_at_a_word_inside_the_chunk_before() -> None:
    text = "alpha beta gamma delta epsilon zeta eta theta"
    assert texts_of(text, size=3, overlap=1) == [
        "alpha beta gamma ",
        "gamma delta epsilon ",
        "epsilon zeta eta ",
        "eta theta",
    ]


def test_overlap_does_not_reach_over_a_heading() -> None:
    text = "# A\none two three\n# B\nfour five six\n"
    assert texts_of(text, size=5, overlap=2, min_size=0) == ["# A\none two three\n", "# B\nfour five six\n"]


# By tokens: sections


def test_a_chunk_does_not_straddle_a_heading() -> None:
    text = "# A\n\none two\n\n## B\n\nthree four\n\n# C\n\nfive six\n"
    assert texts_of(text, size=50, min_size=3) == ["# A\n\none two\n\n", "## B\n\nthree four\n\n", "# C\n\nfive six\n"]
    assert paths_of(text, size=50, min_size=3) == [("A",), ("A", "B"), ("C",)]


def test_small_sections_join_under_their_common_path() -> None:
    text = "# T\n\n" + "intro " * 20 + "\n\n## A\n\none\n\n## B\n\ntwo\n\n## C\n\n" + "three " * 9 + "\n"
    assert texts_of(text, size=50, min_size=15)[1:] == [text[text.index("## A") :]]
    assert paths_of(text, size=50, min_size=15) == [("T",), ("T",)]


def test_small_sections_do_not_join_beyond_the_limits() -> None:
    text = "# A\n\none two\n\n# B\n\nthree four\n"
    assert texts_of(text, size=7, min_size=7) == ["# A\n\none two\n\n", "# B\n\nthree four\n"]
    assert texts_of(text, size=8, min_size=7) == [text]


def test_the_last_small_section_below_its_parent_joins_the_one_before() -> None:
    text = "# A\n\n## X\n\n" + "one " * 9 + "\n\n## Y\n\nend\n\n# B\n\n" + "two " * 9 + "\n"
    assert texts_of(text, size=30, min_size=8) == [text[: text.index("# B")], text[text.index("# B") :]]
    assert paths_of(text, size=30, min_size=8) == [("A",), ("B",)]


def test_the_last_small_section_of_the_text_joins_the_one_before() -> None:
    text = "# A\n\n" + "one " * 9 + "\n\n# B\n\nend\n"
    assert texts_of(text, size=30, min_size=8) == [text]


@pytest.mark.parametrize("size", [6, 50])
def test_a_bare_heading_joins_what_follows(size: int) -> None:
    text = "# A\n\n## B\n\n" + "one " * 9
    chunks = chunks_of(text, size=size, min_size=0)
    assert text[: chunks[0].end].startswith("# A\n\n## B\n\none")
    assert {chunk.heading_path for chunk in chunks} == {("A", "B")}


def test_a_bare_heading_is_not_cut_off_to_balance_the_rest() -> None:
    text = "# A long title of some words\n\n" + "one " * 40
    assert all("one" in piece for piece in texts_of(text, size=44))


def test_front_matter_belongs_to_the_first_chunk() -> None:
    text = "---\ntitle: x\n# comment\n---\n\n# A\n\none two\n"
    assert texts_of(text, body_start=text.index("\n# A"), size=50) == [text]
    assert paths_of(text, body_start=text.index("\n# A"), size=50) == [("A",)]


# By characters, sentences, spans


def test_characters_ignore_headings_and_end_with_the_text() -> None:
    text = "# A\n0123\n# B\n4567"
    assert texts_of(text, by="characters", size=7, overlap=2) == ["# A\n012", "123\n# B", " B\n4567"]
    assert paths_of(text, by="characters", size=7, overlap=2) == [("A",), ("A",), ("B",)]


def test_characters_move_off_a_grapheme_backwards_and_forwards_only_to_get_on() -> None:
    family = "👩\u200d👩\u200d👧"
    assert texts_of(f"a{family}bcd", by="characters", size=3) == ["a", family, "bcd"]
    assert texts_of(f"aa{family}{family}", by="characters", size=2, overlap=1) == ["aa", family, family]


def test_a_heading_is_no_part_of_the_sentence_behind_it() -> None:
    text = "\n# 1. Title. Yes\n\nOne is. Two is.\n\nThree\n## B\n\nFour is."
    assert texts_of(text, by="sentences", size=1) == [
        "\n# 1. Title. Yes\n\n",
        "One is. ",
        "Two is.\n\n",
        "Three\n",
        "## B\n\n",
        "Four is.",
    ]
    assert texts_of("# A\n \u0301 x", by="sentences", size=1) == ["# A\n", " \u0301 x"]
    assert paths_of(text, by="sentences", size=1)[3:5] == [("1. Title. Yes",), ("1. Title. Yes", "B")]


def test_sentences_overlap_inside_a_section() -> None:
    text = "One is. Two is. Three is. Four is.\n# B\nFive is."
    assert texts_of(text, by="sentences", size=3, overlap=1) == [
        "One is. Two is. Three is. ",
        "Three is. Four is.\n",
        "# B\n",
        "Five is.",
    ]


def given_spans(text: str, spans: Sequence[Span] | None) -> list[Chunk]:
    document = Document(DocumentId("a/b"), text)
    return split(document, headings(text), SplitOptions(by="spans", spans="spans.jsonl"), given=spans)


def test_given_spans_are_taken_as_they_are() -> None:
    text = "# Ä\n\none\n\n## B\n\ntwo"
    chunks = given_spans(text, [Span(0, 9), Span(5, 19)])
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(0, 9), (5, 19)]
    assert [(chunk.byte_start, chunk.byte_end) for chunk in chunks] == [(0, 10), (6, 20)]
    assert [chunk.heading_path for chunk in chunks] == [("Ä",), ("Ä",)]


@pytest.mark.parametrize("span", [Span(3, 3), Span(4, 3), Span(1, 99), Span(-1, 2), Span(0, 2)])
def test_a_bad_span_is_named_with_its_document(span: Span) -> None:
    with pytest.raises(
        DocumentError, match=re.escape(f"({span.start}, {span.end}) given for document 'a/b'")
    ) as caught:
        given_spans("some text", [Span(1, 2), span])
    assert caught.value.reason == "bad_spans"


def test_a_document_without_given_spans_is_named() -> None:
    with pytest.raises(DocumentError, match="a/b"):
        given_spans("some text", None)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"by": "pages"}, "split.by"),
        ({"size": 0}, "split.size"),
        ({"size": 5, "overlap": 5}, "split.overlap"),
        ({"overlap": -1}, "split.overlap"),
        ({"min_size": -1}, "split.min_size"),
        ({"by": "spans"}, "split.spans"),
        ({"spans": "file"}, "split.spans"),
    ],
)
def test_options_without_sense_are_refused_by_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(key)):
        SplitOptions(**options)


# Time

HOSTILE = {
    "one word": "a" * 150_000,
    "marks": "e" + "\u0301" * 200_000,
    "line breaks": "\n" * 100_000 + "x",
    "cr lf": "\r\n" * 100_000 + "x",
    "spaces": " " * 500_000 + "x",
    "flags": "🇩🇪" * 100_000,
    "flags and marks": ("🇩🇪" * 500 + "\u0301" * 300) * 100,
    "family": "👩\u200d" * 100_000,
    "bare headings": "# a\n" * 30_000,
    "small sections": "# a\ntext\n" * 20_000,
    "dots": "a. " * 100_000,
}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"size": 100, "overlap": 50},
    {"by": "characters", "size": 10, "overlap": 5},
    {"by": "sentences", "size": 1},
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_hostile_text_takes_linear_time(name: str, options: dict[str, Any]) -> None:
    text = HOSTILE[name]
    begin = time.thread_time()
    chunks = chunks_of(text, **options)
    assert time.thread_time() - begin < 10
    assert chunks[-1].end == len(text)
