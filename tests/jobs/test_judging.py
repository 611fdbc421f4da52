"""Measures: as trec_eval computes them, to 1e-6 on random runs; recall of golden spans by coverage."""

import math
import random
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from enrichment.errors import ConfigError
from indexing.passages import ChunkSpan
from jobs.golden import Golden, GoldenSpan, chunk_number
from jobs.judging import CUTS, MEASURES, Judge, covered

CHUNKS = [ChunkSpan(f"d {d}.md", c, 100 * c, 100 * c + 100) for d in range(12) for c in range(10)]


def random_case(seed: int) -> tuple[Golden, list[list[ChunkSpan]]]:
    rng = random.Random(seed)
    queries = {f"q{n}": "x" for n in range(30)}
    judged = {
        name: {chunk_number(c.document_id, c.chunk_index): rng.choice([0, 1, 1, 2, 5]) for c in rng.sample(CHUNKS, 9)}
        | {chunk_number(rng.choice(CHUNKS)[0], 0): 1}
        for name in queries
    }
    return Golden(queries, judged=judged), [rng.sample(CHUNKS, rng.choice([0, 3, 15, 60])) for _ in queries]


@pytest.mark.parametrize("seed", range(5))
def test_measures_agree_with_trec_eval(seed: int) -> None:
    """Against the bindings asked directly, and against the definitions written out here."""
    golden, rankings = random_case(seed)
    found = Judge(golden, CHUNKS).scores(rankings)
    names = {"mrr": "recip_rank", "ndcg@10": "ndcg_cut_10"} | {f"recall@{cut}": f"recall_{cut}" for cut in CUTS}
    run = {
        name: {chunk_number(c.document_id, c.chunk_index): 1 / (1 + rank) for rank, c in enumerate(ranking)}
        for name, ranking in zip(golden.queries, rankings, strict=True)
    }
    asked = pytrec_eval.RelevanceEvaluator(dict(golden.judged), set(pytrec_eval.supported_measures)).evaluate(run)
    assert set(found) == set(MEASURES)
    for measure, trec in names.items():
        expected = np.array([asked[name][trec] for name in golden.queries])
        assert np.abs(found[measure] - expected).max() < 1e-6
    for place, (judged, ranking) in enumerate(zip(golden.judged.values(), run.values(), strict=True)):
        gains = [judged.get(number, 0) for number in ranking]
        relevant = [value for value in judged.values() if value > 0]
        recall = sum(gain > 0 for gain in gains[:10]) / len(relevant)
        first = next((1 / rank for rank, gain in enumerate(gains, 1) if gain > 0), 0.0)
        ideal = sum(g / math.log2(r + 1) for r, g in enumerate(sorted(relevant, reverse=True)[:10], 1))
        ndcg = sum(g / math.log2(r + 1) for r, g in enumerate(gains[:10], 1)) / ideal
        assert found["recall@10"][place] == pytest.approx(recall, abs=1e-6)
        assert found["mrr"][place] == pytest.approx(first, abs=1e-6)
        assert found["ndcg@10"][place] == pytest.approx(ndcg, abs=1e-6)


def test_the_order_of_a_ranking_decides_not_its_names() -> None:
    """trec_eval orders what scores the same by its number, backwards."""
    golden = Golden({"q": "x"}, judged={"q": {chunk_number("d 0.md", 0): 1}})
    judge = Judge(golden, CHUNKS)
    assert judge.scores([[CHUNKS[0], CHUNKS[119]]])["mrr"][0] == 1.0
    assert judge.scores([[CHUNKS[119], CHUNKS[0]]])["mrr"][0] == 0.5


def test_judged_documents_count_once_each() -> None:
    golden = Golden({"q": "x"}, judged={"q": {"d%203.md": 1}})
    ranking = [*CHUNKS[:9], CHUNKS[30]]  # nine chunks of one document, then the one
    found = Judge(golden, CHUNKS).scores([ranking])
    assert found["mrr"][0] == 0.5 and found["recall@5"][0] == 1.0


def test_a_hit_counts_by_how_much_of_the_span_it_covers() -> None:
    golden = Golden({"q": "x"}, spans={"q": (GoldenSpan("d 0.md", 150, 250), GoldenSpan("d 1.md", 0, 100))})
    judge = Judge(golden, CHUNKS)
    assert judge.judged["q"] == {"d%200.md#1": 50, "d%200.md#2": 50, "d%201.md#0": 100}
    assert judge.scores([[CHUNKS[1]]])["recall@5"][0] == 0.25
    assert judge.scores([[CHUNKS[1]]], window=1)["recall@5"][0] == 0.5
    assert judge.scores([[CHUNKS[1], CHUNKS[1], CHUNKS[2], CHUNKS[10]]])["recall@5"][0] == 1.0
    assert judge.scores([[*CHUNKS[50:55], CHUNKS[10]]])["recall@5"][0] == 0.0
    assert judge.rank_of_answer("q", [CHUNKS[50], CHUNKS[2]]) == 2
    assert judge.rank_of_answer("q", [CHUNKS[50]]) is None


def test_a_window_of_characters_reaches_so_far_and_no_further() -> None:
    chunk = CHUNKS[1]
    before = GoldenSpan(chunk.document_id, chunk.start - 5, chunk.start)
    behind = GoldenSpan(chunk.document_id, chunk.end, chunk.end + 5)
    judge = Judge(Golden({"1": "?"}, {"1": (before, behind)}), CHUNKS)
    shares = [judge.scores([[chunk]], window, "characters")["recall@5"][0] for window in (0, 1, 4, 5, 10**6)]
    assert shares == pytest.approx([0.0, 0.2, 0.8, 1.0, 1.0])


def test_a_window_never_leaves_its_document() -> None:
    golden = Golden({"q": "x"}, spans={"q": (GoldenSpan("d 1.md", 0, 100),)})
    assert Judge(golden, CHUNKS).scores([[CHUNKS[9]]], window=5)["recall@20"][0] == 0.0


SPANS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(1, 9)), max_size=6)


@given(SPANS.filter(bool), SPANS)
def test_coverage_is_that_of_the_characters(golden: list[Any], found: list[Any]) -> None:
    def characters(spans: list[GoldenSpan]) -> set[tuple[str, int]]:
        return {(span.document_id, place) for span in spans for place in range(span.start, span.end)}

    wanted = [GoldenSpan(name, start, start + length) for name, start, length in golden]
    hits = [GoldenSpan(name, start, start + length) for name, start, length in found]
    both = characters(wanted)
    assert covered(wanted, hits) == pytest.approx(len(both & characters(hits)) / len(both))


@pytest.mark.parametrize(
    ("golden", "message"),
    [
        (Golden({"q": "x"}, spans={"q": (GoldenSpan("gone.md", 0, 9),)}), "question q lies in gone.md"),
        (Golden({"q": "x"}, spans={"q": (GoldenSpan("d 0.md", 5000, 5009),)}), "question q lies in d 0.md"),
        (Golden({"q": "x"}, judged={"q": {"gone.md": 1}}), "judge gone.md relevant"),
        (Golden({"q": "x"}, judged={"q": {"d%200.md": 1, "d%200.md#1": 1}}), "all of them must be of one kind"),
    ],
)
def test_answers_that_are_nowhere_are_named(golden: Golden, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Judge(golden, CHUNKS)
