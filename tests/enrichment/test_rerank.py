"""A cross-encoder made here: small, with random weights, but a real one."""

from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError
from enrichment.rerank import RerankOptions, open_reranker

PASSAGES = ["the roof leaks in winter", "the tenant gave notice", "a garden", "roof roof roof", "winter garden"]


def expected(directory: Path, query: str, passages: list[str]) -> list[float]:
    """The scores by transformers alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.no_grad():
        return [
            float(torch.sigmoid(model(**tokenizer(query, passage, return_tensors="pt", truncation=True)).logits))
            for passage in passages
        ]


@pytest.mark.model
def test_scores_are_those_of_the_model(cross_encoder: Path) -> None:
    scores = open_reranker(str(cross_encoder)).scores("the roof", PASSAGES)
    assert scores == pytest.approx(expected(cross_encoder, "the roof", PASSAGES), abs=1e-5)
    assert len({round(score, 5) for score in scores}) > 3, "the weights tell the passages apart"
    assert open_reranker(str(cross_encoder)).scores("the roof", []) == []


@pytest.mark.model
def test_another_kind_of_model_is_refused(cross_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all-minilm-l6-v2 is no reranker"):
        open_reranker("all-minilm-l6-v2")
    with pytest.raises(ConfigError, match="is neither a directory"):
        open_reranker("./nowhere")
    with pytest.raises(ConfigError, match="no config.json"):
        open_reranker(str(tmp_path))
    two = tmp_path / "two"
    two.mkdir()
    for file in cross_encoder.iterdir():
        text: Any = file.read_bytes()
        (two / file.name).write_bytes(text.replace(b'"0": "LABEL_0"', b'"0": "LABEL_0", "1": "LABEL_1"'))
    with pytest.raises(ConfigError, match="with 2 scores per pair"):
        open_reranker(str(two))


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth of reranking is 0"):
        RerankOptions("x", 0)
