"""Two rankings of the same rows -> one: by rank, or by weighted scores.

A ranking is a mapping of rows to scores, best first. What comes out depends on the rankings alone, never on how many
segments they came from.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from enrichment.errors import ConfigError

FusionMethod = Literal["rrf", "scores"]
Row = TypeVar("Row", bound=Hashable)

RANK_CONSTANT = 60
"""Of reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How a dense and a lexical ranking become one, and what each of them weighs."""

    method: FusionMethod = "rrf"
    dense_weight: float = 1.0
    lexical_weight: float = 1.0

    def __post_init__(self) -> None:
        weights = {"dense_weight": self.dense_weight, "lexical_weight": self.lexical_weight}
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ConfigError(f"{name} is {weight}; it must be a number of at least 0")
        if not any(weights.values()):
            raise ConfigError("dense_weight and lexical_weight are both 0; one must be above 0")

    def overridden(
        self, method: FusionMethod | None, dense_weight: float | None, lexical_weight: float | None
    ) -> "Fusion":
        """The same but for what is given. Raises ConfigError for weights that say nothing."""
        weights = [self.dense_weight if dense_weight is None else dense_weight]
        weights.append(self.lexical_weight if lexical_weight is None else lexical_weight)
        return Fusion(method or self.method, *weights)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The `search` section of the configuration: what a search does unless it is told otherwise. Nothing is built with it."""

    fusion: FusionMethod = "rrf"
    dense_weight: float = 1.0
    lexical_weight: float = 1.0
    bm25_k1: float = 0.9
    bm25_b: float = 0.4

    def __post_init__(self) -> None:
        try:
            _ = self.fused_by
        except ConfigError as error:
            raise ConfigError(f"search.{error}") from error
        if not 0 <= self.bm25_k1 < math.inf:
            raise ConfigError(f"search.bm25_k1 is {self.bm25_k1}; it must be a number of at least 0")
        if not 0 <= self.bm25_b <= 1:
            raise ConfigError(f"search.bm25_b is {self.bm25_b}; it must be a number from 0 to 1")

    @property
    def fused_by(self) -> Fusion:
        """The way to fuse that a search takes by default."""
        return Fusion(self.fusion, self.dense_weight, self.lexical_weight)


def options_of(config: Mapping[str, Any]) -> SearchOptions:
    """The `search` section of a snapshot's configuration; the defaults for one that is older than the section."""
    return SearchOptions(**config.get("search", {}))


def fused(dense: Mapping[Row, float], lexical: Mapping[Row, float], how: Fusion, depth: int) -> dict[Row, float]:
    """Fused scores of all rows of two rankings that are `depth` rows deep, or shorter where no more rows match."""
    if how.method == "rrf":
        return reciprocal_rank_fusion((dense, how.dense_weight), (lexical, how.lexical_weight))
    return weighted_scores(dense, lexical, how, depth)


def reciprocal_rank_fusion(*rankings: tuple[Mapping[Row, float], float]) -> dict[Row, float]:
    """The sum over weighted rankings of weight / (60 + rank), ranks from 1.

    Source: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual rank learning
    methods", SIGIR 2009.
    """
    scores: dict[Row, float] = {}
    for ranking, weight in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + weight / (RANK_CONSTANT + rank)
    return scores


def weighted_scores(
    dense: Mapping[Row, float], lexical: Mapping[Row, float], how: Fusion, depth: int
) -> dict[Row, float]:
    """`dense_weight` x cosine + `lexical_weight` x BM25 / the best BM25 of the query.

    A row that a ranking lacks gets the most that it can have there: the lowest score of a ranking that is `depth` deep. Of a
    shorter lexical one it has no word, and gets 0; a shorter dense one lacks none.
    """
    best = max(lexical.values(), default=1.0)
    at_most_dense = min(dense.values(), default=0.0)
    at_most_lexical = min(lexical.values()) if len(lexical) >= depth else 0.0
    return {
        row: how.dense_weight * dense.get(row, at_most_dense)
        + how.lexical_weight * lexical.get(row, at_most_lexical) / best
        for row in {**dense, **lexical}
    }
