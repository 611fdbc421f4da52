"""Scopes: every chunk of an oversized document in exactly one, cut where a reader would cut."""

from collections.abc import Sequence

import pytest

from enrichment.headings import headings
from enrichment.records import Chunk, Document, DocumentId, Heading
from enrichment.scopes import Scope, scopes
from enrichment.split import SplitOptions, split
from enrichment.tokens import FakeTokenizer

TOKENIZER = FakeTokenizer()
WORDS = "one two three four five six seven eight nine ten "  # ten tokens


def chunks_of(text: str, *pieces: str) -> list[Chunk]:
    assert "".join(pieces) == text
    found, start = [], 0
    for index, piece in enumerate(pieces):
        found.append(Chunk(index, start, start + len(piece), start, start + len(piece)))
        start += len(piece)
    return found


def cut(text: str, chunks: Sequence[Chunk], limit: int, found: Sequence[Heading] | None = None) -> list[Scope]:
    document = Document(DocumentId("a"), text)
    found = headings(text) if found is None else found
    return scopes(document, found, chunks, TOKENIZER.encode(text).offsets, limit)


def lengths(made: Sequence[Scope]) -> list[int]:
    return [len(scope.chunks) for scope in made]


@pytest.mark.parametrize("overlap", [0, 10])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_document_of_three_times_the_limit_is_cut_into_few_scopes_with_each_chunk_in_one(
    newline: str, overlap: int
) -> None:
    parts = [f"# Part {n}\n\n" + f"Paragraph {n}. {WORDS * 3}\n\n" * 6 for n in range(10)]
    text = "".join(parts).replace("\n", newline)
    offsets = TOKENIZER.encode(text).offsets
    limit = len(offsets.starts) // 3
    found = headings(text)
    chunks = split(Document(DocumentId("a"), text), found, SplitOptions(size=40, overlap=overlap), offsets)
    made = cut(text, chunks, limit)
    assert [chunk for scope in made for chunk in scope.chunks] == chunks
    assert 3 <= len(made) <= 6
    for scope in made:
        assert (scope.span.start, scope.span.end) == (scope.chunks[0].start, scope.chunks[-1].end)
        assert sum(scope.span.start <= start < scope.span.end for start in offsets.starts) <= limit
    if not overlap:
        starts = {heading.start for heading in found}
        assert all(scope.span.start in starts for scope in made)


def test_a_document_that_fits_is_one_scope() -> None:
    text = WORDS * 4
    chunks = chunks_of(text, *[WORDS] * 4)
    assert lengths(cut(text, chunks, 40)) == [4]
    assert lengths(cut(text, chunks, 39)) == [3, 1]


def test_no_chunks_no_scopes() -> None:
    assert cut("", [], 10) == []


def test_a_chunk_longer_than_the_limit_stands_alone() -> None:
    pieces = [WORDS, WORDS * 9, WORDS, WORDS]
    text = "".join(pieces)
    assert lengths(cut(text, chunks_of(text, *pieces), 30)) == [1, 1, 2]


def test_a_heading_in_the_later_half_is_preferred_to_a_later_blank_line() -> None:
    pieces = [WORDS, WORDS, WORDS + "\n", "# H\n" + WORDS, WORDS + "\n\n", WORDS, WORDS]
    text = "".join(pieces)
    assert lengths(cut(text, chunks_of(text, *pieces), 52)) == [3, 4]


def test_the_last_heading_in_the_later_half_is_taken() -> None:
    pieces = [WORDS + "\n", *["# H\n" + WORDS + "\n"] * 7]
    text = "".join(pieces)
    made = cut(text, chunks_of(text, *pieces), 52)
    assert lengths(made) == [4, 4]


def test_a_heading_in_the_former_half_is_not_worth_a_short_scope() -> None:
    pieces = [WORDS + "\n", "# H\n" + WORDS, WORDS, WORDS, WORDS, WORDS, WORDS]
    text = "".join(pieces)
    assert lengths(cut(text, chunks_of(text, *pieces), 62)) == [6, 1]


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\r\r", "\n \t\n", "\n\n\n", "\n\n  "])
def test_without_a_heading_the_cut_falls_behind_a_blank_line(blank: str) -> None:
    pieces = [WORDS, WORDS, WORDS + blank, WORDS + "\n", WORDS, WORDS]
    text = "".join(pieces)
    assert lengths(cut(text, chunks_of(text, *pieces), 50)) == [3, 3]


def test_with_neither_the_scope_is_as_long_as_it_may_be() -> None:
    text = WORDS * 6
    assert lengths(cut(text, chunks_of(text, *[WORDS] * 6), 40)) == [4, 2]


def test_a_heading_inside_a_chunk_is_no_place_to_cut() -> None:
    pieces = [WORDS, WORDS, "text\n\n# H\n" + WORDS, WORDS, WORDS]
    text = "".join(pieces)
    assert lengths(cut(text, chunks_of(text, *pieces), 45)) == [4, 1]


def test_many_chunks_are_cut_in_linear_time() -> None:
    text = WORDS * 20_000
    made = cut(text, chunks_of(text, *[WORDS] * 20_000), 8_000)
    assert sum(lengths(made)) == 20_000
