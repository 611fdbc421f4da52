"""A cross-encoder that reads a query and a passage together and scores the pair: slower and finer than any index.

(query, passages) -> scores. The model is a local directory or a Hugging Face id, as an embedder is; code that comes with
it is never run. It reads as much of a pair as fits into its window.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enrichment import models
from enrichment.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RerankOptions:
    """Which model scores the best `depth` hits again; those behind them keep their order."""

    name: str
    depth: int = 50

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError(f"the depth of reranking is {self.depth}; it must be at least 1")


class Reranker:
    """A cross-encoder with one score per pair, on this process's device."""

    def __init__(self, name: str) -> None:
        directory = models.resolve(name)
        _check(directory, name)  # before importing what takes seconds to import
        from sentence_transformers import CrossEncoder
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self._model: Any = CrossEncoder(str(directory), trust_remote_code=False)

    def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """One score per passage, higher is better."""
        if not passages:
            return []
        sound = query.encode("utf-8", "replace").decode()  # a terminal may hand on bytes that are no text
        pairs = [(sound, passage) for passage in passages]
        return [float(score) for score in self._model.predict(pairs, batch_size=32, show_progress_bar=False)]


@functools.lru_cache(maxsize=1)
def open_reranker(name: str) -> Reranker:
    """The model, loaded once per process as long as searches ask for the same."""
    return Reranker(name)


def _check(directory: Path, name: str) -> None:
    """Raise ConfigError for another kind of model: it would be given a head of random weights, with a mere warning."""
    try:
        settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the reranker {name} has no config.json that can be read ({error})") from error
    kinds = settings.get("architectures") or []
    labels = len(settings.get("id2label") or {"0": "", "1": ""})  # transformers writes them unless there are two
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds) or labels != 1:
        raise ConfigError(
            f"the model {name} is no reranker (it is {', '.join(kinds) or 'of no named kind'}, with {labels} scores per"
            " pair); name a cross-encoder with one score, such as cross-encoder/ms-marco-MiniLM-L6-v2"
        )
