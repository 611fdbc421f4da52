"""Fusion by hand: by rank, by scores, and what is no way to fuse."""

import math
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing.fusion import (
    Fusion,
    FusionMethod,
    SearchOptions,
    fused,
    options_of,
    reciprocal_rank_fusion,
    with_documents,
)

DENSE = {5: 0.9, 6: 0.8, 7: 0.7}
LEXICAL = {7: 12.0, 5: 6.0, 8: 3.0}


def ranked(scores: dict[int, float]) -> list[int]:
    return sorted(scores, key=lambda row: -scores[row])


def test_reciprocal_rank_fusion_by_hand() -> None:
    found = reciprocal_rank_fusion((DENSE, 1.0), (LEXICAL, 1.0))
    assert found == pytest.approx({5: 1 / 61 + 1 / 62, 6: 1 / 62, 7: 1 / 63 + 1 / 61, 8: 1 / 63})
    assert ranked(found) == [5, 7, 6, 8]


def test_weights_decide_whose_first_is_first() -> None:
    assert ranked(fused(DENSE, LEXICAL, Fusion("rrf", 1.0, 0.01), 100))[:3] == [5, 6, 7]
    assert ranked(fused(DENSE, LEXICAL, Fusion("rrf", 0.01, 1.0), 100))[:3] == [7, 5, 8]
    assert ranked(fused(DENSE, LEXICAL, Fusion("scores", 1.0, 0.01), 100))[:3] == [5, 6, 7]
    assert ranked(fused(DENSE, LEXICAL, Fusion("scores", 0.01, 1.0), 100))[:3] == [7, 5, 8]


def test_scores_are_the_cosine_and_the_share_of_the_best_bm25() -> None:
    found = fused(DENSE, LEXICAL, Fusion("scores", 1.0, 0.5), depth=100)
    assert found == pytest.approx({5: 0.9 + 0.25, 6: 0.8, 7: 0.7 + 0.5, 8: 0.7 + 0.125})


def test_a_row_that_a_full_ranking_lacks_may_have_as_much_as_its_last() -> None:
    found = fused(DENSE, LEXICAL, Fusion("scores", 1.0, 0.5), depth=3)
    assert found[6] == pytest.approx(0.8 + 0.125)
    assert found[8] == pytest.approx(0.7 + 0.125)


@pytest.mark.parametrize("method", ["rrf", "scores"])
def test_one_empty_ranking_leaves_the_order_of_the_other(method: str) -> None:
    how = Fusion(method)  # type: ignore[arg-type]
    assert ranked(fused(DENSE, {}, how, 100)) == [5, 6, 7]
    assert ranked(fused({}, LEXICAL, how, 100)) == [7, 5, 8]
    assert fused({}, {}, how, 100) == {}


def test_a_document_lends_its_rows_the_mean_of_its_three_best() -> None:
    scores = {"a1": 0.9, "b1": 0.8, "b2": 0.7, "b3": 0.6, "b4": 0.2, "c1": 0.1}
    found = with_documents(scores, 0.5, lambda row: row[0])
    of_b = 0.5 * (0.7 + 0.6 + 0.5) / 3  # above 0.1, the lowest; b4 does not count
    assert found == pytest.approx(
        {"a1": 0.9 + 0.4, "b1": 0.8 + of_b, "b2": 0.7 + of_b, "b3": 0.6 + of_b, "b4": 0.2 + of_b, "c1": 0.1}
    )


def test_a_good_document_lifts_its_rows_past_a_lone_one_and_keeps_their_order() -> None:
    scores = {"lone": 0.50, "doc 1": 0.9, "doc 2": 0.49, "doc 3": 0.48, "last": 0.0}
    document = {"lone": "x", "last": "y"}
    found = with_documents(scores, 0.5, lambda row: document.get(row, "doc"))
    assert sorted(found, key=lambda row: -found[row]) == ["doc 1", "doc 2", "doc 3", "lone", "last"]


@pytest.mark.parametrize("scores", [{}, {5: 0.25, 7: 0.5}])
def test_without_a_weight_documents_change_nothing(scores: dict[int, float]) -> None:
    assert with_documents(scores, 0.0, lambda row: "one") == scores
    assert with_documents({}, 0.5, lambda row: "one") == {}


@pytest.mark.parametrize("method", ["rrf", "scores"])
def test_rows_of_a_ranking_that_weighs_nothing_do_not_count(method: FusionMethod) -> None:
    dense, lexical = {1: 0.9, 2: 0.8, 3: 0.7}, {2: 4.0, 4: 3.0}
    assert list(fused(dense, lexical, Fusion(method, 0.0, 1.0), 5)) == [2, 4]
    assert list(fused(dense, lexical, Fusion(method, 1.0, 0.0), 5)) == [1, 2, 3]


def test_only_what_is_given_is_overridden() -> None:
    configured = Fusion("scores", 1.0, 0.5, 0.25)
    assert configured.overridden() == configured
    assert configured.overridden("rrf") == Fusion("rrf", 1.0, 0.5, 0.25)
    assert configured.overridden(document_weight=0.0) == Fusion("scores", 1.0, 0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"document_weight": -0.5}, "search.document_weight is -0.5"),
        ({"document_weight": math.nan}, "search.document_weight is nan"),
        ({"document_weight": 1e308}, "search.document_weight is 1e+308; it must be a number from 0 to 1,000,000"),
        ({"dense_weight": -1.0}, "search.dense_weight is -1.0"),
        ({"lexical_weight": math.inf}, "search.lexical_weight is inf"),
        ({"lexical_weight": math.nan}, "search.lexical_weight is nan"),
        ({"dense_weight": 0.0, "lexical_weight": 0.0}, "both 0"),
        ({"bm25_k1": -0.1}, "search.bm25_k1 is -0.1"),
        ({"bm25_b": 1.1}, "search.bm25_b is 1.1"),
        ({"stopwords": "none"}, "search.stopwords is none; it must be one of snowball, lucene"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SearchOptions(**options)
    assert words in str(caught.value)


def test_a_snapshot_older_than_the_section_has_the_defaults() -> None:
    assert options_of({}) == SearchOptions()
    assert options_of({"search": {"fusion": "scores"}}).fused_by == Fusion("scores")


def test_a_snapshot_with_a_newer_section_is_refused_by_its_key() -> None:
    with pytest.raises(
        OperationError, match="the snapshot's search section has later, which is newer; upgrade situate"
    ):
        options_of({"search": {"fusion": "scores", "later": 1}})
