"""Windows by characters and by tokens: against the whole text, by hand, and in how many reads."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichment.boundaries import GRAPHEME
from enrichment.documents import Place, Record, load
from enrichment.embed import EmbeddingOptions, open_tokenizer
from enrichment.records import Document, DocumentId, Heading, Span
from enrichment.split import SplitOptions, split
from enrichment.tokens import FakeTokenizer
from indexing import margins
from indexing.documents import Documents
from indexing.excerpts import Excerpts
from indexing.originals import Slice

FAMILY, FLAG, ACCENT = "👩‍👩‍👧", "🇳🇴", "e\u0301"
PIECES = ["a", "bc ", ". ", "\r\n", "\n\n", "中", FAMILY, FLAG, ACCENT, "   ", "word "]


class Texts:
    """In the place of `Originals`: cuts from one text, and keeps what was asked for."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self.reads: list[list[Slice]] = []

    def read(self, slices: Sequence[Slice]) -> list[str]:
        if slices:
            self.reads.append(list(slices))
        return [self._bytes[wanted.start : wanted.end].decode() for wanted in slices]


def opened(text: str, spans: Sequence[tuple[int, int]], paths: Sequence[Sequence[str]] = ()) -> tuple[Excerpts, Texts]:
    """One document with these chunks."""
    rows = [
        {
            "start": start,
            "end": end,
            "byte_start": len(text[:start].encode()),
            "byte_end": len(text[:end].encode()),
            "heading_path": list(paths[number]) if paths else [],
        }
        for number, (start, end) in enumerate(spans)
    ]
    texts = Texts(text)
    record = {"first_row": 0, "num_rows": len(rows), "length": len(text.encode())}
    documents: Any = Documents([pa.Table.from_pylist([record])], [pa.Table.from_pylist(rows)], texts)  # type: ignore[arg-type]
    return Excerpts(documents, [(0, 0)]), texts


def chunked(text: str, headings: tuple[Heading, ...] = (), **options: Any) -> tuple[Excerpts, Texts]:
    chunks = split(Document(DocumentId("d"), text), headings, SplitOptions(**options))
    return opened(text, [(c.start, c.end) for c in chunks], [c.heading_path for c in chunks])


def by_characters(excerpts: Excerpts, index: int, size: int, within_section: bool = False) -> Span:
    return margins.by_characters(excerpts, [margins.core(excerpts, 0, index, within_section)], size)[0]


def by_tokens(excerpts: Excerpts, index: int, size: int, within_section: bool = False) -> Span:
    core = margins.core(excerpts, 0, index, within_section)
    return margins.by_tokens(excerpts, [core], size, FakeTokenizer())[0]


def test_as_many_characters_are_added_before_as_behind() -> None:
    text = "abcdefghij" * 20
    excerpts, _ = opened(text, [(start, start + 20) for start in range(0, 200, 20)])
    assert by_characters(excerpts, 4, 7) == Span(73, 107)
    assert by_characters(excerpts, 4, 30) == Span(50, 130)
    assert by_characters(excerpts, 0, 7) == Span(0, 27), "what is missing before is not added behind"
    assert by_characters(excerpts, 9, 7) == Span(173, 200)
    assert by_characters(excerpts, 4, 10**12) == Span(0, 200)


def test_text_that_is_in_no_chunk_counts_like_any_other() -> None:
    text = "0123456789" * 5
    excerpts, _ = opened(text, [(5, 10), (20, 30)])
    assert by_characters(excerpts, 0, 3) == Span(2, 13)
    assert by_characters(excerpts, 1, 12) == Span(8, 42)
    assert by_characters(excerpts, 1, 100) == Span(0, 50)
    assert excerpts.text(0, Span(2, 47)) == text[2:47]


def test_an_edge_inside_a_grapheme_moves_outward() -> None:
    text = f"ab{FAMILY}cd{ACCENT}fg"
    start = text.index("c")
    excerpts, _ = opened(text, [(0, start), (start, start + 2), (start + 2, len(text))])
    assert by_characters(excerpts, 1, 1) == Span(2, start + 4), "the family before, the accented letter behind"
    assert by_characters(excerpts, 1, 2) == Span(2, start + 4)
    assert by_characters(excerpts, 1, 5) == Span(2, len(text))
    assert by_characters(excerpts, 1, 6) == Span(1, len(text))


texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join).filter(lambda text: bool(text.strip()))


@given(texts, st.sampled_from([("characters", 7), ("characters", 30), ("sentences", 1)]), st.integers(1, 40))
def test_any_window_by_characters_is_exact_or_ends_at_the_next_grapheme(
    text: str, by: tuple[str, int], size: int
) -> None:
    edges = [0, *(match.end() for match in GRAPHEME.finditer(text))]
    excerpts, seen = chunked(text, by=by[0], size=by[1])
    chunks = excerpts.chunks(0)
    cores = [margins.core(excerpts, 0, index, False) for index in range(len(chunks))]
    found = margins.by_characters(excerpts, cores, size)
    for core, span in zip(cores, found, strict=True):
        start, end = max(0, core.span.start - size), min(len(text), core.span.end + size)
        assert span.start == edges[bisect_right(edges, start) - 1]
        assert span.end == edges[bisect_left(edges, end)]
        assert excerpts.text(0, span) == text[slice(*span)]
    assert len(seen.reads) == 1, "all at once, and the text is cut from what was read"


@given(texts, st.integers(1, 12), st.sampled_from([(1, 1), (2, 3), (8, 32)]))
def test_any_window_by_tokens_has_as_many_on_each_side(text: str, size: int, reach: tuple[int, int]) -> None:
    edges = [0, *(match.end() for match in GRAPHEME.finditer(text))]
    tokenizer = FakeTokenizer()
    excerpts, _ = chunked(text, by="sentences", size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(margins, "_CHARACTERS_PER_TOKEN", reach[0])  # read on from little
        patch.setattr(margins, "_SPARE_TOKENS", reach[1])
        for index, chunk in enumerate(excerpts.chunks(0)):
            span = by_tokens(excerpts, index, size)
            before, behind = text[: chunk.span.start], text[chunk.span.end :]
            starts, ends = tokenizer.encode(before).offsets.starts, tokenizer.encode(behind).offsets.ends
            start = int(starts[-size]) if len(starts) > size else 0
            end = chunk.span.end + int(ends[size - 1]) if len(ends) > size else len(text)
            assert span.start == edges[bisect_right(edges, start) - 1]
            assert span.end == edges[bisect_left(edges, end)]
            assert excerpts.text(0, span) == text[slice(*span)]


def test_a_window_by_tokens_by_hand() -> None:
    text = "One two three. Four five. Six seven eight."
    excerpts, _ = opened(text, [(0, 15), (15, 26), (26, 42)])
    assert text[slice(*by_tokens(excerpts, 1, 2))] == "three. Four five. Six seven"
    assert text[slice(*by_tokens(excerpts, 1, 4))] == text, "all there is"
    assert text[slice(*by_tokens(excerpts, 0, 1))] == "One two three. Four"


def test_windows_within_a_section_stop_at_its_headings() -> None:
    markdown = b"# A\n\nOne. Two. Three.\n\n## B\n\nFour. Five. Six.\n\n# C\n\nSeven.\n"
    loaded = load(Record(Place(), data=markdown), "x.md", "markdown")
    text = loaded.document.text
    excerpts, _ = chunked(text, loaded.headings, by="sentences", size=1)
    index = next(n for n, chunk in enumerate(excerpts.chunks(0)) if "Five" in text[slice(*chunk.span)])
    for widen in (by_characters, by_tokens):
        assert text[slice(*widen(excerpts, index, 50, True))] == "## B\n\nFour. Five. Six.\n\n"
        assert widen(excerpts, index, 50, False) == Span(0, len(text))
    assert text[slice(*by_characters(excerpts, index, 3, True))] == "r. Five. Six"


def test_what_is_read_is_near_the_hits_and_read_once() -> None:
    text = "".join(f"{number:09} " for number in range(10_000))
    excerpts, seen = opened(text, [(start, start + 100) for start in range(0, 100_000, 100)])
    cores = [margins.core(excerpts, 0, index, False) for index in (50, 51, 700)]
    spans = margins.by_characters(excerpts, cores, 150)
    assert spans == [Span(4850, 5250), Span(4950, 5350), Span(69850, 70250)]
    assert seen.reads == [[Slice(0, 0, 4500, 5700), Slice(0, 0, 69500, 70600)]]
    assert [excerpts.text(0, span) for span in spans] == [text[slice(*span)] for span in spans]
    excerpts.read([(0, span) for span in spans])
    assert len(seen.reads) == 1
    with pytest.raises(ValueError, match="was not read"):
        excerpts.text(0, Span(0, 10))


@pytest.mark.model
def test_the_embedders_own_tokens_are_counted() -> None:
    tokenizer = open_tokenizer(EmbeddingOptions("all-minilm-l6-v2"))
    text = "".join(f"Reinsurers' subrogation {number} isn't pre-paid; naïve Übermaß. " for number in range(200))
    size = text.index("Reinsurers' subrogation 101")
    excerpts, _ = opened(text, [(0, size), (size, size + 60), (size + 60, len(text))])
    for wanted in (1, 7, 50, 300):
        (span,) = margins.by_tokens(excerpts, [margins.core(excerpts, 0, 1, False)], wanted, tokenizer)
        assert len(tokenizer.encode(text[span.start : size]).ids) == wanted
        assert len(tokenizer.encode(text[size + 60 : span.end]).ids) == wanted
