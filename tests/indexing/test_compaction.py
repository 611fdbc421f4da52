"""Which segments a night rewrites: what is due, within the cap, and that neither dead rows nor segments pile up for ever."""

import numpy as np
import pytest

from enrichment.errors import ConfigError
from indexing.compaction import CompactionOptions, choose
from indexing.dead import Dead
from indexing.manifest import FileEntry, SegmentEntry

ROWS_PER_DOCUMENT, ROW_BYTES = 10, 3000


class Corpus:
    """Segments as numbers: how many documents each has and which of them are dead."""

    def __init__(self, num_documents: int, rows_per_segment: int, options: CompactionOptions) -> None:
        self.rows_per_segment, self.options = rows_per_segment, options
        self.dead: dict[str, np.ndarray] = {}
        self.chance = np.random.default_rng(1)
        self.written_documents = 0
        self._add(num_documents)
        self.full = self.written_documents

    def night(self, num_changed: int) -> int:
        """Change documents at random, add them, compact; how many documents compaction wrote."""
        places = [(name, place) for name, dead in self.dead.items() for place in np.flatnonzero(~dead)]
        for pick in self.chance.choice(len(places), num_changed, replace=False):
            name, place = places[pick]
            self.dead[name][place] = True
        self.dead = {name: dead for name, dead in self.dead.items() if not dead.all()}
        before = self.written_documents
        chosen = choose(*self.entries(), self.rows_per_segment, self.options)
        live = sum(int((~self.dead.pop(segment.id)).sum()) for segment in chosen)
        if live:
            self._add(live)
        rewritten = self.written_documents - before
        self._add(num_changed)
        return rewritten

    def entries(self) -> tuple[list[SegmentEntry], dict[str, Dead]]:
        segments = [
            SegmentEntry(
                name,
                "",
                len(dead),
                len(dead) * ROWS_PER_DOCUMENT,
                0,
                (FileEntry("x", len(dead) * ROWS_PER_DOCUMENT * ROW_BYTES, ""),),
            )
            for name, dead in self.dead.items()
        ]
        return segments, {name: Dead(dead, np.repeat(dead, ROWS_PER_DOCUMENT)) for name, dead in self.dead.items()}

    def _add(self, num_documents: int) -> None:
        most = self.rows_per_segment // ROWS_PER_DOCUMENT
        for first in range(0, num_documents, most):
            number = min(most, num_documents - first)
            self.dead[f"s{self.written_documents:09}-{first}"] = np.zeros(number, np.bool_)
            self.written_documents += number


def test_nothing_is_due_in_a_fresh_corpus() -> None:
    corpus = Corpus(10_000, 500_000, CompactionOptions())
    assert choose(*corpus.entries(), 500_000, CompactionOptions()) == []


@pytest.mark.parametrize("rows_per_segment", [500_000, 50_000, 10_000])
def test_sixty_nights_of_one_percent_write_little_and_leave_few_segments(rows_per_segment: int) -> None:
    """Of 10,000 documents in 1, 2 or 10 segments."""
    corpus = Corpus(10_000, rows_per_segment, CompactionOptions())
    first = len(corpus.dead)
    rewritten = [corpus.night(100) for _ in range(60)]
    assert corpus.written_documents - corpus.full <= 60 * 0.06 * 10_000
    assert len(corpus.dead) <= first + 25
    stored = sum(map(len, corpus.dead.values()))
    assert stored <= 1.45 * 10_000, "what is dead stays a bounded share"
    if rows_per_segment < 50_000:
        assert max(rewritten) <= 0.1 * 10_000 + rows_per_segment / ROWS_PER_DOCUMENT, (
            "the cap, and one segment at least"
        )


def test_over_a_thousand_nights_segments_grow_with_the_logarithm() -> None:
    corpus = Corpus(2000, 5000, CompactionOptions())
    most = 0
    for _ in range(300):
        corpus.night(20)
        most = max(most, len(corpus.dead))
    assert most <= 4 + 3 * 10


def test_the_most_dead_come_first_and_the_cap_holds() -> None:
    corpus = Corpus(1000, 1000, CompactionOptions(max_share=0.11))  # ten segments of a hundred documents
    for number, name in enumerate(corpus.dead):
        corpus.dead[name][: 35 + 5 * number] = True
    segments, dead = corpus.entries()
    live = [int((~dead[segment.id].documents).sum()) for segment in segments]
    chosen = choose(segments, dead, 1000, corpus.options)
    assert chosen == segments[-2:] and sum(live[-2:]) <= 0.11 * sum(live) < sum(live[-3:])
    assert len(choose(segments, dead, 1000, CompactionOptions(max_share=1.0))) == 10
    assert len(choose(segments, dead, 1000, CompactionOptions(dead_share=0.56, max_share=1.0))) == 5


def test_a_segment_larger_than_the_cap_is_rewritten_alone() -> None:
    corpus = Corpus(1000, 500_000, CompactionOptions(max_share=0.01))
    (name,) = corpus.dead
    corpus.dead[name][:400] = True
    assert [segment.id for segment in choose(*corpus.entries(), 500_000, corpus.options)] == [name]


def test_a_segment_of_documents_without_rows_can_be_due() -> None:
    segment = SegmentEntry("s", "", 4, 0, 0, ())
    dead = {"s": Dead(np.array([True, True, False, False]), np.zeros(0, np.bool_))}
    assert choose([segment], dead, 500_000, CompactionOptions()) == [segment]


@pytest.mark.parametrize("wrong", [{"dead_share": 0.0}, {"max_share": 1.5}, {"pile": 1}])
def test_options_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"compaction.{next(iter(wrong))} is"):
        CompactionOptions(**wrong)  # type: ignore[arg-type]
