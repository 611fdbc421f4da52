"""Long tests: `make soak`."""

import json
from pathlib import Path

import pytest

from indexing import serving
from jobs import cli, config, flow, refresh
from jobs.progress import Progress

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.soak
@pytest.mark.ray
def test_two_thousand_searches_with_ray_in_the_process(tmp_path: Path) -> None:
    """P35: Lucene's JVM and Ray live in one process."""
    settings = {
        "corpus": str(tmp_path / "corpus"),
        "documents": {"uri": str(ROOT / "examples" / "handbook")},
        "embedding": {"name": "fake"},
        "model": {"name": "fake"},
    }
    questions = [json.loads(line) for line in (ROOT / "examples" / "handbook-questions.jsonl").read_text().splitlines()]
    with flow.cluster(None):
        refresh.refresh(config.parse(settings), Progress(show=False))
        snapshot = serving.open(settings["corpus"])  # type: ignore[arg-type]
        first = [snapshot.search(question["query"], 10) for question in questions]
        for _ in range(2000 // len(questions) + 1):
            for place, question in enumerate(questions):
                assert snapshot.search(question["query"], 10) == first[place]


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.model
def test_the_whole_handbook_with_the_real_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At most 15 % of the contexts are refused, and the prefix cache works."""
    text = (ROOT / "examples" / "handbook.yaml").read_text().replace("corpora/handbook", str(tmp_path / "corpus"))
    path = tmp_path / "handbook.yaml"
    path.write_text(text.replace("examples/handbook", str(ROOT / "examples" / "handbook")))
    assert cli.main(["refresh", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    chunks, tokens = result["chunks"], result["tokens"]
    assert chunks["fallback"] <= 0.15 * chunks["total"]
    assert tokens["computed"] - tokens["retries"] <= 1.02 * (tokens["ideal"] + tokens["block_rounding"])
