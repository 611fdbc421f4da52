"""Batches, BM25's parameters, and what a cross-encoder does to the order of hits."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enrichment import rerank
from enrichment.embed import FakeEmbedder
from enrichment.rerank import RerankOptions
from indexing.dense import DenseIndex
from indexing.filters import Filter
from indexing.fusion import Fusion
from indexing.search import FUSION_DEPTH, Indexes, Mode
from indexing.snapshot import Snapshot

QUERIES = ["roof leaks", "tenant notice", "garden", "", "\ud800 roof", "roof leaks"]


@pytest.fixture(scope="module")
def opened(open_corpus: Callable[..., Snapshot]) -> Snapshot:
    texts = ["The roof leaks in winter.", "The tenant gave notice.", "A garden of roses.", "The roof of the garden."]
    records = [
        {"id": f"d{n:02d}", "title": f"Deed {n}", "text": f"{texts[n % 4]} House {n} has a roof. {texts[n % 3]}"}
        for n in range(40)
    ]
    return open_corpus({"in.jsonl": "\n".join(map(json.dumps, records))}, split={"by": "sentences", "size": 1})


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("how", [{}, {"filters": Filter(title="deed 1")}, {"fusion": Fusion("scores")}])
def test_a_batch_answers_as_its_queries_one_by_one(opened: Snapshot, mode: Mode, how: dict[str, Any]) -> None:
    many = opened.search_many(QUERIES, 7, mode, window=1, **how)
    assert many == [opened.search(query, 7, mode, window=1, **how) for query in QUERIES]
    assert many[0] == many[-1] and many[0] and many[0] != many[1]
    assert opened.search_many([], 7, mode, **how) == []


def test_a_batch_is_embedded_at_once_and_asked_of_the_dense_index_at_once(
    opened: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.warm("hybrid")
    calls: list[tuple[str, int]] = []

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def method(self: Any, first: Any, *rest: Any, **more: Any) -> Any:
            calls.append((name, len(first)))
            return original(self, first, *rest, **more)

        monkeypatch.setattr(kind, name, method)

    counted(FakeEmbedder, "embed_queries")
    counted(DenseIndex, "search")
    opened.search_many(QUERIES, 5)
    assert calls == [("embed_queries", len(QUERIES)), ("search", len(QUERIES))]


def test_bm25_follows_the_configuration(opened: Snapshot) -> None:
    def scores(question: str = "", **settings: float | str) -> list[float]:
        config = {**opened.manifest.config, "search": settings}
        other = Snapshot(opened.storage, dataclasses.replace(opened.manifest, config=config))
        return [p.score for p in other.search(f"{question} roof roof garden", 20, "lexical")]

    assert (
        scores("has this each") == scores() == scores(stopwords="lucene") != scores("has this each", stopwords="lucene")
    )
    assert scores() == scores(bm25_k1=0.9, bm25_b=0.4)
    assert scores(bm25_k1=0.0) != scores()  # how often a word occurs no longer counts, nor how long a text is
    assert scores(bm25_k1=0.0) == scores(bm25_k1=0.0, bm25_b=0.9)
    assert scores(bm25_b=0.9) != scores()


def test_fusion_follows_the_configuration_and_the_query(opened: Snapshot) -> None:
    def found(configured: dict[str, Any], asked: Fusion | None = None) -> list[Any]:
        config = {**opened.manifest.config, "search": configured}
        other = Snapshot(opened.storage, dataclasses.replace(opened.manifest, config=config))
        return other.search("roof garden", 10, fusion=asked)

    by_rank, by_scores = found({}), found({"fusion": "scores", "lexical_weight": 0.5})
    assert by_rank == found({"fusion": "scores"}, Fusion())
    assert by_scores == found({}, Fusion("scores", 1.0, 0.5)) != by_rank
    by_document = found({"fusion": "scores", "lexical_weight": 0.5, "document_weight": 2.0})
    assert by_document == found({}, Fusion("scores", 1.0, 0.5, 2.0)) != by_scores
    best = by_scores[0].hits[0]
    assert best.score == pytest.approx(
        best.dense + 0.5 * best.lexical / max(h.lexical or 0 for h in hits_of(by_scores))
    )


def hits_of(passages: list[Any]) -> list[Any]:
    return [hit for passage in passages for hit in passage.hits]


@pytest.mark.model
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_the_order_follows_the_cross_encoder_and_only_the_first_are_rescored(
    opened: Snapshot, cross_encoder: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, query, k = str(cross_encoder), "the roof leaks", 30
    plain = opened.open_indexes(mode).search(query, k, mode)
    read: list[str] = []
    original = rerank.Reranker.scores

    def noted(self: Any, asked: str, passages: list[str]) -> list[float]:
        read.extend(passages)
        return original(self, asked, passages)

    monkeypatch.setattr(rerank.Reranker, "scores", noted)
    hits = opened._reranked(query, plain, RerankOptions(name, 12))
    texts = [text_of(opened, hit) for hit in plain[:12]]
    assert read == texts
    scores = original(rerank.open_reranker(name), query, texts)
    order = sorted(range(12), key=lambda place: -scores[place])
    expected = [dataclasses.replace(plain[place], rerank=scores[place]) for place in order]
    assert hits == expected + plain[12:]
    assert hits[:12] != plain[:12], "the model has an opinion of its own"


def text_of(opened: Snapshot, hit: Any) -> str:
    document_id, _, start, end = opened.span_of(hit)
    header = opened._rows[hit.segment]["header"][hit.row].as_py()
    return f"{header}\n{opened.original(document_id)[start:end]}".strip()


@pytest.mark.model
def test_reranking_looks_deeper_than_k_and_keeps_all_scores(opened: Snapshot, cross_encoder: Path) -> None:
    deep = hits_of(opened.search("the roof leaks", 40, "lexical", rerank=RerankOptions(str(cross_encoder), 40)))
    top = hits_of(opened.search("the roof leaks", 3, "lexical", rerank=RerankOptions(str(cross_encoder), 40)))
    assert [hit.rerank for hit in top] == sorted((hit.rerank for hit in deep), reverse=True)[:3]
    assert all(hit.lexical == hit.score and hit.rerank is not None for hit in top)
    assert all(hit.rerank is None for hit in hits_of(opened.search("the roof leaks", 3, "lexical")))


@pytest.mark.parametrize(
    "how", [Fusion(), Fusion("scores", 1.0, 0.5), Fusion("rrf", 1.0, 1.0, 0.5), Fusion("scores", 1.0, 0.5, 0.5)]
)
def test_how_many_hits_are_wanted_does_not_change_the_first_ones(how: Fusion) -> None:
    """Rankings of 300 rows of 30 documents; weak rows of a document stand deep in one of them or in both."""
    none: Any = None
    indexes = Indexes([], none, none, [], {}, none, lambda segment, row: (f"{row % 30:02}", row), none)
    random = np.random.default_rng(3)

    def ranking(depth: int, order: Any, scores: Any) -> dict[tuple[int, int], float]:
        return {(0, int(row)): float(score) for row, score in zip(order[:depth], scores[:depth], strict=True)}

    both = [(random.permutation(400)[:300], np.sort(random.random(300))[::-1]) for _ in range(2)]

    def found(k: int) -> list[tuple[tuple[int, int], float]]:
        dense, lexical = (ranking(max(k, FUSION_DEPTH), *one) for one in both)
        return list(indexes._fused(dense, lexical, how, k).items())

    whole = found(300)
    assert len(whole) == 300 and [score for _, score in whole] == sorted((s for _, s in whole), reverse=True)
    for k in (1, 10, 100, 101, 150, 250):
        assert found(k)[:100] == whole[: min(k, 100)] and len(found(k)) == k
