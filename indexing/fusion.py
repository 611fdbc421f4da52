"""Two rankings of the same rows -> one: by rank, or by weighted scores; and what a document's best rows add to all of its rows.

A ranking is a mapping of rows to scores, best first. What comes out depends on the rankings alone, never on how many
segments they came from.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from enrichment.errors import ConfigError, OperationError
from indexing.analyzers import SNOWBALL, Stopwords, check_stopwords

FusionMethod = Literal["rrf", "scores"]
Row = TypeVar("Row", bound=Hashable)

RANK_CONSTANT = 60
"""Of reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009."""
MAX_WEIGHT = 1_000_000
OF_DOCUMENT = 3
"""A document is as good as the mean of so many of its best rows, or of fewer where fewer were found."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How a dense and a lexical ranking become one, and what each of them and a row's document weigh."""

    method: FusionMethod = "rrf"
    dense_weight: float = 1.0
    lexical_weight: float = 1.0
    document_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dense_weight", "lexical_weight", "document_weight"):
            if not 0 <= getattr(self, name) <= MAX_WEIGHT:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a number from 0 to {MAX_WEIGHT:,}")
        if not self.dense_weight and not self.lexical_weight:
            raise ConfigError("dense_weight and lexical_weight are both 0; one must be above 0")

    def asked(self, mode: str, *given: Any) -> "Fusion | None":
        """`overridden` for a search of this mode; null for one that fuses nothing. Raises ConfigError if then any is given."""
        if mode == "hybrid":
            return self.overridden(*given)
        if any(value is not None for value in given):
            raise ConfigError(f"mode is {mode}, which fuses nothing; leave the fusion and its weights out")
        return None

    def overridden(
        self,
        method: FusionMethod | None = None,
        dense_weight: float | None = None,
        lexical_weight: float | None = None,
        document_weight: float | None = None,
    ) -> "Fusion":
        """The same but for what is given. Raises ConfigError for weights that say nothing."""
        given = (method, dense_weight, lexical_weight, document_weight)
        mine = (self.method, self.dense_weight, self.lexical_weight, self.document_weight)
        return Fusion(*(m if g is None else g for g, m in zip(given, mine, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The `search` section of the configuration: what a search does unless it is told otherwise. Nothing is built with it."""

    fusion: FusionMethod = "rrf"
    dense_weight: float = 1.0
    lexical_weight: float = 1.0
    document_weight: float = 0.0
    bm25_k1: float = 0.9
    bm25_b: float = 0.4
    stopwords: Stopwords = SNOWBALL

    def __post_init__(self) -> None:
        try:
            _ = self.fused_by
        except ConfigError as error:
            raise ConfigError(f"search.{error}") from error
        if not 0 <= self.bm25_k1 < math.inf:
            raise ConfigError(f"search.bm25_k1 is {self.bm25_k1}; it must be a number of at least 0")
        if not 0 <= self.bm25_b <= 1:
            raise ConfigError(f"search.bm25_b is {self.bm25_b}; it must be a number from 0 to 1")
        check_stopwords(self.stopwords)

    @property
    def fused_by(self) -> Fusion:
        """The way to fuse that a search takes by default."""
        return Fusion(self.fusion, self.dense_weight, self.lexical_weight, self.document_weight)


def options_of(config: Mapping[str, Any]) -> SearchOptions:
    """The `search` section of a snapshot's configuration; the defaults for one that is older than the section.

    Raises OperationError for one that is newer.
    """
    given: Mapping[str, Any] = config.get("search", {})
    unknown = sorted(given.keys() - {field.name for field in fields(SearchOptions)})
    if unknown:
        raise OperationError(f"the snapshot's search section has {', '.join(unknown)}, which is newer; upgrade situate")
    return SearchOptions(**given)


def fused(dense: Mapping[Row, float], lexical: Mapping[Row, float], how: Fusion, depth: int) -> dict[Row, float]:
    """Fused scores of all rows of two rankings that are `depth` rows deep, or shorter where no more rows match; of one that
    weighs nothing the rows do not count either.
    """
    dense, lexical = dense if how.dense_weight else {}, lexical if how.lexical_weight else {}
    if how.method == "rrf":
        return reciprocal_rank_fusion((dense, how.dense_weight), (lexical, how.lexical_weight))
    return weighted_scores(dense, lexical, how, depth)


def with_documents(
    scores: Mapping[Row, float], weight: float, document_of: Callable[[Row], Hashable]
) -> dict[Row, float]:
    """The fused scores, each with `weight` x the mean of its document's OF_DOCUMENT best, above the lowest score of all. 0
    changes nothing. A good row lifts the others of its document, and they hold it down if they are much worse than it; what is
    alone in the rankings is the mean itself.

    After Callan, "Passage-Level Evidence in Document Retrieval", SIGIR 1994, which ranks documents by their passages' scores.
    """
    if not weight or not scores:
        return dict(scores)
    lowest, by_document = min(scores.values()), defaultdict[Hashable, list[float]](list)
    for row, score in scores.items():
        by_document[document_of(row)].append(score - lowest)
    best = {document: sorted(found, reverse=True)[:OF_DOCUMENT] for document, found in by_document.items()}
    added = {document: weight * sum(found) / len(found) for document, found in best.items()}
    return {row: score + added[document_of(row)] for row, score in scores.items()}


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
