"""Sections from heading paths: the parent of a chunk by hand."""

from enrichment.records import Span
from indexing.sections import own, parent
from indexing.windows import Neighbour

# Chunk n spans [10 n, 10 n + 10).
PATHS = ["", "a", "a", "a/x", "a/y", "a/y", "a/y/deep", "a", "b", "c/only"]
ROWS = [Neighbour(Span(10 * n, 10 * n + 10), tuple(filter(None, path.split("/")))) for n, path in enumerate(PATHS)]


def chunks(span: Span) -> tuple[int, int]:
    return span.start // 10, span.end // 10 - 1


def test_a_parent_is_all_below_the_chunks_heading() -> None:
    assert chunks(parent(ROWS, 4)) == (4, 6), "a/y with what lies below it"
    assert chunks(parent(ROWS, 5)) == (4, 6)
    assert chunks(parent(ROWS, 1)) == (1, 7), "a with all its subsections"
    assert chunks(parent(ROWS, 7)) == (1, 7)


def test_a_section_that_is_the_chunk_alone_gives_way_to_the_next_larger_one() -> None:
    assert chunks(parent(ROWS, 6)) == (4, 6), "a/y/deep has one chunk, a/y has three"
    assert chunks(parent(ROWS, 3)) == (1, 7), "a/x has one chunk"
    assert chunks(parent(ROWS, 8)) == (0, 9), "b has one chunk: the document"
    assert chunks(parent(ROWS, 9)) == (0, 9), "neither c/only nor c has more"


def test_without_headings_the_parent_is_the_document() -> None:
    assert chunks(parent(ROWS, 0)) == (0, 9)
    flat = [Neighbour(row.span, ()) for row in ROWS]
    assert {chunks(parent(flat, index)) for index in range(len(flat))} == {(0, 9)}
    assert parent(flat[:1], 0) == Span(0, 10), "a document of one chunk"


def test_a_section_that_comes_back_is_another_one() -> None:
    rows = [Neighbour(Span(n, n + 1), (path,)) for n, path in enumerate("aabbaa")]
    assert parent(rows, 0) == Span(0, 2)
    assert parent(rows, 5) == Span(4, 6)


def test_overlapping_chunks_are_covered_whole() -> None:
    rows = [Neighbour(Span(0, 15), ("a",)), Neighbour(Span(5, 30), ("a",)), Neighbour(Span(20, 25), ("a",))]
    assert parent(rows, 2) == own(rows, 2) == Span(0, 30)


def test_a_chunks_own_section_has_no_subsections() -> None:
    assert [chunks(own(ROWS, index)) for index in range(10)] == [
        *((0, 0), (1, 2), (1, 2), (3, 3), (4, 5), (4, 5), (6, 6), (7, 7), (8, 8), (9, 9))
    ]
