"""Windows over real splits, merging and budgets by hand."""

import pytest

from enrichment.documents import Place, Record, load
from enrichment.records import Document, DocumentId, Heading, Span
from enrichment.split import SplitOptions, split
from indexing.windows import Neighbour, Stretch, fitted, merge, widen


def kept(hits: list[tuple[int, Span]], budget: int | None) -> list[int]:
    """The hits that a budget keeps where there is one span for each."""
    return list(fitted([(document, (span,)) for document, span in hits], budget))


def neighbours(text: str, headings: tuple[Heading, ...] = (), **options: object) -> list[Neighbour]:
    chunks = split(Document(DocumentId("d"), text), headings, SplitOptions(**options))  # type: ignore[arg-type]
    return [Neighbour(Span(chunk.start, chunk.end), chunk.heading_path) for chunk in chunks]


@pytest.mark.parametrize(("size", "overlap", "expected"), [(400, 200, 800), (250, 20, 710)])
def test_window_1_by_characters_covers_two_steps_and_a_chunk(size: int, overlap: int, expected: int) -> None:
    assert expected == 2 * (size - overlap) + size
    step = size - overlap
    text = ("abcdefghi\u4e2d" * 1000)[: 9 * step + size]
    rows = neighbours(text, by="characters", size=size, overlap=overlap)
    assert len(rows) == 10
    for index in range(1, 9):
        span = widen(rows, index, 1, within_section=False)
        assert span == Span((index - 1) * step, (index + 1) * step + size)
        assert span.end - span.start == expected
    assert widen(rows, 0, 1, within_section=False) == Span(0, step + size)
    assert widen(rows, 9, 1, within_section=False) == Span(8 * step, len(text))


def test_a_window_ends_with_its_document() -> None:
    rows = [Neighbour(Span(10 * number, 10 * number + 10), ()) for number in range(4)]
    assert widen(rows, 1, 0, within_section=False) == Span(10, 20)
    assert widen(rows, 1, 1, within_section=False) == Span(0, 30)
    assert widen(rows, 1, 2, within_section=False) == Span(0, 40)
    assert widen(rows, 1, 1000, within_section=False) == Span(0, 40)


def test_window_1_of_a_sentence_is_three_sentences() -> None:
    text = "hello. foo bar. cat dog. mouse"
    rows = neighbours(text, by="sentences", size=1)
    index = next(place for place, row in enumerate(rows) if text[slice(*row.span)].strip() == "cat dog.")
    assert text[slice(*widen(rows, index, 1, within_section=False))] == "foo bar. cat dog. mouse"
    assert text[slice(*widen(rows, index, 0, within_section=False))].strip() == "cat dog."


def test_a_window_within_a_section_stops_where_the_heading_path_changes() -> None:
    markdown = b"# A\n\nOne. Two. Three.\n\n## B\n\nFour. Five. Six.\n\n# C\n\nSeven.\n"
    loaded = load(Record(Place(), data=markdown), "x.md", "markdown")
    rows = neighbours(loaded.document.text, loaded.headings, by="sentences", size=1)
    text = loaded.document.text

    def window(word: str, size: int, within_section: bool) -> str:
        index = next(place for place, row in enumerate(rows) if word in text[slice(*row.span)])
        return text[slice(*widen(rows, index, size, within_section))]

    assert window("Five", 9, within_section=True) == "## B\n\nFour. Five. Six.\n\n"
    assert window("Four", 1, within_section=True) == "## B\n\nFour. Five. "
    assert window("Six", 1, within_section=True) == "Five. Six.\n\n"
    assert window("Two", 9, within_section=True) == "# A\n\nOne. Two. Three.\n\n"
    assert window("Five", 9, within_section=False) == text


def test_a_section_that_comes_back_does_not_reopen_a_window() -> None:
    paths = ["a", "b", "a", "a", "c", "a"]
    rows = [Neighbour(Span(number, number + 1), (path,)) for number, path in enumerate(paths)]
    assert widen(rows, 2, 5, within_section=True) == Span(2, 4)


def test_spans_that_touch_or_overlap_become_one() -> None:
    hits = [(0, Span(20, 30)), (0, Span(0, 10)), (0, Span(10, 20)), (0, Span(31, 40)), (0, Span(35, 50))]
    assert merge(hits) == [Stretch(0, Span(0, 30), (0, 1, 2)), Stretch(0, Span(31, 50), (3, 4))]


def test_a_span_inside_another_does_not_shorten_it() -> None:
    assert merge([(0, Span(5, 8)), (0, Span(0, 100)), (0, Span(50, 60))]) == [Stretch(0, Span(0, 100), (0, 1, 2))]


def test_documents_never_merge_and_the_best_hit_ranks_a_passage() -> None:
    hits = [(7, Span(0, 10)), (3, Span(10, 20)), (7, Span(100, 110)), (3, Span(0, 10)), (7, Span(5, 15))]
    assert merge(hits) == [
        Stretch(7, Span(0, 15), (0, 4)),
        Stretch(3, Span(0, 20), (1, 3)),
        Stretch(7, Span(100, 110), (2,)),
    ]
    assert merge([]) == []


def test_a_budget_leaves_out_whole_hits_and_goes_on() -> None:
    hits = [(0, Span(0, 40)), (1, Span(0, 80)), (0, Span(100, 140))]
    assert kept(hits, None) == [0, 1, 2]
    assert kept(hits, 160) == [0, 1, 2]
    assert kept(hits, 159) == [0, 1]
    assert kept(hits, 119) == [0, 2]
    assert kept(hits, 60) == [0]
    assert kept(hits, 39) == []


def test_a_budget_keeps_the_best_hit_when_its_neighbours_do_not_fit() -> None:
    hits = [(0, Span(100, 200)), (0, Span(0, 110)), (0, Span(200, 290))]
    assert kept(hits, 100) == [0]
    assert kept(hits, 200) == [0, 1], "shared text counts once"
    assert kept(hits, 190) == [0, 2]


def test_a_smaller_span_stands_in_for_one_that_does_not_fit() -> None:
    hits = [(0, (Span(0, 60), Span(10, 20))), (0, (Span(0, 60), Span(30, 40))), (1, (Span(0, 50), Span(0, 10)))]
    assert fitted(hits, None) == {0: (0, Span(0, 60)), 1: (0, Span(0, 60)), 2: (1, Span(0, 50))}
    assert fitted(hits, 70) == {0: (0, Span(0, 60)), 1: (0, Span(0, 60)), 2: (1, Span(0, 10))}
    assert fitted(hits, 69) == {0: (0, Span(0, 60)), 1: (0, Span(0, 60))}
    assert fitted(hits, 29) == {0: (0, Span(10, 20)), 1: (0, Span(30, 40))}


def test_what_touches_stays_apart_on_demand_and_what_overlaps_never() -> None:
    hits = [(0, Span(10, 20)), (0, Span(0, 10)), (0, Span(19, 25)), (1, Span(0, 10))]
    assert merge(hits, touching=False) == [
        Stretch(0, Span(10, 25), (0, 2)),
        Stretch(0, Span(0, 10), (1,)),
        Stretch(1, Span(0, 10), (3,)),
    ]


def test_a_huge_window_is_the_document() -> None:
    rows = [Neighbour(Span(start, start + 10), ()) for start in range(0, 100, 10)]
    assert widen(rows, 5, 10**12, within_section=False) == Span(0, 100)
