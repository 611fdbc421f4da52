"""Passages of real searches: windows of every kind, parents and runs, each of original text, by hand and in general."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from enrichment.errors import OperationError
from enrichment.rerank import RerankOptions
from indexing import snapshot as snapshots
from indexing.expansion import Expansion
from indexing.passages import Passage
from indexing.search import Hit, Mode
from indexing.snapshot import Snapshot

GUIDE = (
    "---\ntitle: Kettle Guide\ndate: 2026-03-01\n---\n# Kettle\n\nFill it slowly. Watch the mark. Close the lid.\n\n"
    "## Descaling\n\nUse vinegar monthly. Rinse it twice. Never use soap.\n\n### Stains\n\nRub with salt.\n\n"
    "# Roof\n\n👩‍👩‍👧 Slates crack in frost. Look after storms. Call a roofer.\n"
)
PLAIN = (
    "Nobody reads this. Vinegar cleans copper. It rusts never. Vinegar and salt shine it. Dry it well. The end is near."
)
FILLER = "".join(f"Sentence {number} says little of the garden. " for number in range(40))
FILES = {"guide.md": GUIDE, "plain.txt": PLAIN, "filler.txt": FILLER, "one.txt": "Vinegar alone."}
WAYS: list[dict[str, Any]] = [
    *({"window": size} for size in (0, 1, 3, 100)),
    *({"window": size, "window_by": by} for by in ("characters", "tokens") for size in (0, 1, 9, 40, 100_000)),
    *({"window": 9, "window_by": by, "within_section": True} for by in ("chunks", "characters", "tokens")),
    {"expand": "parent"},
    *({"expand": "run", "run_penalty": penalty} for penalty in (0, 0.1, 0.5, 1)),
    {"expand": "run", "run_length": 1},
    {"expand": "run", "run_length": 2},
]
QUERIES = ["vinegar salt", "roof frost slates", "garden sentence", "the end"]


@pytest.fixture(scope="module")
def snapshot(open_corpus: Callable[..., Snapshot]) -> Snapshot:
    """Chunks of one sentence each."""
    return open_corpus(FILES, split={"by": "sentences", "size": 1})


@pytest.fixture(scope="module")
def overlapping(open_corpus: Callable[..., Snapshot]) -> Snapshot:
    """Chunks of 60 characters, each with the last 40 of the one before."""
    return open_corpus(FILES, split={"by": "characters", "size": 60, "overlap": 40})


def hits(passages: Sequence[Passage]) -> list[tuple[Any, ...]]:
    found = [(passage.document_id, hit) for passage in passages for hit in passage.hits]
    return sorted(found, key=lambda each: (each[0], each[1].chunk_index))


def rankings(opened: Snapshot) -> list[tuple[str, list[Hit]]]:
    return list(zip(QUERIES, opened.open_indexes().search_many(QUERIES, 100), strict=True))


def best(snapshot: Snapshot, query: str, mode: Mode = "lexical", **how: Any) -> str:
    return snapshot.search(query, k=1, mode=mode, **how)[0].text


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("split", ["snapshot", "overlapping"])
def test_hits_and_their_scores_are_the_same_however_they_are_expanded(
    request: pytest.FixtureRequest, split: str, mode: Mode
) -> None:
    opened: Snapshot = request.getfixturevalue(split)
    for query in QUERIES:
        for k in (1, 8):
            expected = hits(opened.search(query, k, mode))
            for way in WAYS:
                assert hits(opened.search(query, k, mode, **way)) == expected, (query, way)


@pytest.mark.parametrize("split", ["snapshot", "overlapping"])
def test_every_passage_is_original_text_of_one_document_around_its_hits_and_none_share_any(
    request: pytest.FixtureRequest, split: str
) -> None:
    opened: Snapshot = request.getfixturevalue(split)
    for query, ranking in rankings(opened):
        for way in WAYS:
            passages = opened.passages(ranking, 8, Expansion(**way))
            for passage in passages:
                assert passage.text == FILES[passage.document_id][passage.start : passage.end], (query, way)
                assert passage.hits
                assert all(passage.start <= hit.start and hit.end <= passage.end for hit in passage.hits)
            spans = sorted((p.document_id, p.start, p.end) for p in passages)
            assert all(left[0] != right[0] or left[2] <= right[1] for left, right in pairwise(spans)), (query, way)


@pytest.mark.parametrize("split", ["snapshot", "overlapping"])
@pytest.mark.parametrize("budget", [1, 30, 61, 120, 400])
def test_a_budget_holds_and_is_used_by_whole_passages(request: pytest.FixtureRequest, split: str, budget: int) -> None:
    opened: Snapshot = request.getfixturevalue(split)
    for query, ranking in rankings(opened):
        expected = hits(opened.passages(ranking, 8, Expansion()))
        for way in WAYS:
            passages = opened.passages(ranking, 8, Expansion(**way), budget)
            assert sum(len(passage.text) for passage in passages) <= budget
            assert set(hits(passages)) <= set(expected), (query, way)
            for passage in passages:
                assert passage.text == FILES[passage.document_id][passage.start : passage.end]
                assert all(passage.start <= hit.start and hit.end <= passage.end for hit in passage.hits), (query, way)
            if way.get("expand") in ("parent", "run") and not passages:
                assert min(hit.end - hit.start for _, hit in expected) > budget, "a hit alone would have fitted"


def test_windows_by_characters_and_by_tokens_by_hand(snapshot: Snapshot) -> None:
    def text(size: int, by: str, **more: Any) -> str:
        return best(snapshot, "vinegar monthly", window=size, window_by=by, **more)

    assert text(0, "characters") == text(0, "tokens") == "Use vinegar monthly. "
    assert text(11, "characters") == "Descaling\n\nUse vinegar monthly. Rinse it tw"
    assert text(3, "tokens") == "## Descaling\n\nUse vinegar monthly. Rinse it twice"
    assert text(5, "tokens") == "lid.\n\n## Descaling\n\nUse vinegar monthly. Rinse it twice. Never"
    assert text(5, "tokens", within_section=True) == "## Descaling\n\nUse vinegar monthly. Rinse it twice. Never"
    assert text(10_000, "characters") == text(10_000, "tokens") == GUIDE
    section = "## Descaling\n\nUse vinegar monthly. Rinse it twice. Never use soap.\n\n"
    assert text(10_000, "characters", within_section=True) == section


def test_a_window_takes_a_grapheme_whole(snapshot: Snapshot) -> None:
    found = snapshot.search("slates frost", k=1, mode="lexical")[0]
    before = GUIDE.index("👩‍👩‍👧")
    after = snapshot.search("storms", k=1, mode="lexical", window=found.end - before - 1, window_by="characters")[0]
    assert after.start == before, "one code point into the family"


def test_a_parent_by_hand(snapshot: Snapshot) -> None:
    descaling = GUIDE[GUIDE.index("## Descaling") : GUIDE.index("# Roof")]
    assert best(snapshot, "vinegar monthly", expand="parent") == descaling
    assert best(snapshot, "salt rub", expand="parent") == GUIDE[GUIDE.index("### Stains") : GUIDE.index("# Roof")]
    assert best(snapshot, "slowly", expand="parent") == GUIDE[GUIDE.index("# Kettle") : GUIDE.index("# Roof")]
    assert best(snapshot, "slates", expand="parent") == GUIDE[GUIDE.index("# Roof") :]
    assert best(snapshot, "copper", expand="parent") == PLAIN, "without headings it is the document"
    assert best(snapshot, "alone", expand="parent") == "Vinegar alone."


def test_a_parent_that_does_not_fit_gives_way_to_the_hit(snapshot: Snapshot) -> None:
    descaling = best(snapshot, "vinegar monthly", expand="parent")
    assert best(snapshot, "vinegar monthly", expand="parent", budget=len(descaling)) == descaling
    assert best(snapshot, "vinegar monthly", expand="parent", budget=len(descaling) - 1) == "Use vinegar monthly. "
    assert snapshot.search("vinegar monthly", k=1, mode="lexical", expand="parent", budget=5) == []


def test_a_run_by_hand(snapshot: Snapshot) -> None:
    # BM25 finds five chunks with one of the words. Those of plain.txt stand in the places 1 and 3.
    passages = snapshot.search("vinegar copper shine", 2, "lexical", expand="run", run_penalty=0.1)
    assert passages[0].text == "Vinegar cleans copper. It rusts never. Vinegar and salt shine it. "
    assert [hit.chunk_index for hit in passages[0].hits] == [1, 3]
    apart = snapshot.search("vinegar copper shine", 2, "lexical", expand="run", run_penalty=1)
    assert [passage.text for passage in apart] == ["Vinegar cleans copper. ", "Vinegar and salt shine it. "]
    short = snapshot.search("vinegar copper shine", 2, "lexical", expand="run", run_penalty=0.1, run_length=2)
    assert [len(passage.hits) for passage in short] == [1, 1]


def test_a_run_takes_in_chunks_that_were_found_behind_the_first_k(snapshot: Snapshot) -> None:
    (only,) = snapshot.search("vinegar copper shine", 1, "lexical", expand="run", run_penalty=0.1)
    assert only.text == "Vinegar cleans copper. It rusts never. Vinegar and salt shine it. "
    assert len(only.hits) == 1, "k counts hits"


def test_a_runs_length_counts_its_chunks(snapshot: Snapshot) -> None:
    for length in (1, 3, 8):
        passages = snapshot.search("garden sentence says", 6, expand="run", run_penalty=0, run_length=length)
        for passage in passages:
            rows = snapshot.rows(passage.document_id)
            assert sum(passage.start <= row["start"] < passage.end for row in rows) <= length


def test_a_reranker_decides_what_a_run_is_worth(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reverse:
        """Likes what says `rusts` and `shine`."""

        def scores(self, query: str, passages: Sequence[str]) -> list[float]:
            return [float(any(word in passage for word in ("rusts", "shine"))) for passage in passages]

    monkeypatch.setattr(snapshots, "open_reranker", lambda name: Reverse())
    options = {"rerank": RerankOptions("any", 100), "expand": "run"}
    (passage,) = snapshot.search("vinegar", 2, "dense", **options)
    assert passage.text == "It rusts never. Vinegar and salt shine it. "
    assert [hit.rerank for hit in passage.hits] == [1.0, 1.0]


def test_the_number_of_segments_changes_no_expansion(stage: Callable[..., Any]) -> None:
    staged = stage(FILES, split={"by": "sentences", "size": 1})
    one, many = (Snapshot(staged.storage, staged.publish(size)) for size in (1000, 7))
    assert len(many.manifest.segments) > len(one.manifest.segments) == 1
    for (query, ranking), (_, other) in zip(rankings(one), rankings(many), strict=True):
        for how in (Expansion(**way) for way in WAYS):
            pairs = (one.passages(ranking, 6, how), many.passages(other, 6, how))
            expected, found = ([(p.document_id, p.text) for p in passages] for passages in pairs)
            assert found == expected, (query, how)


def test_many_questions_at_once_are_expanded_as_one_by_one(snapshot: Snapshot) -> None:
    for way in WAYS[::4]:
        together = snapshot.search_many(QUERIES, 5, **way)
        assert together == [snapshot.search(query, 5, **way) for query in QUERIES]


def test_a_tokenizer_of_another_embedder_is_refused(
    open_corpus: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_corpus({"a.txt": PLAIN})
    monkeypatch.setitem(opened.manifest.fingerprints, "embedding", "another")  # type: ignore[arg-type]
    assert opened.search("copper", 1, "lexical", window=3, window_by="characters")
    with pytest.raises(OperationError, match="the embedder fake here is not the one"):
        opened.search("copper", 1, "lexical", window=3, window_by="tokens")
