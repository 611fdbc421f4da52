"""The main job from files to search, through Ray, by the command: with fake models, and with the real ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from indexing import serving
from jobs import cli

DOCUMENTS = {
    "leave.md": (
        "---\ntitle: Parental Leave\ndate: 2024-03-01\n---\n# Parental Leave\n\n## Duration\n\n"
        + "A parent may be absent for 26 weeks after the birth of a child. The absence may be taken in two parts. " * 3
        + "\n\n## Pay\n\n"
        + "It is paid in full for the first 12 weeks and at half pay after that, unless the exception applies. " * 3
        + "\n\n## Exception\n\n"
        + "This does not apply to anyone who joined less than 90 days before the birth. Ask the people team. " * 3
        + "\n"
    ),
    "pumps.md": (
        "---\ntitle: Warranty for Pumps\ndate: 2023-11-15\n---\n# Warranty for Pumps\n\n## Period\n\n"
        + "Each pump is covered for 24 months from delivery. The period ends early if the seal is broken. " * 3
        + "\n\n## Returns\n\n"
        + "Such a product must be sent back within 14 days, with its serial number, to the depot in Aarhus. " * 3
        + "\n"
    ),
    "note.txt": "A short note with one chunk only.\n",
    "empty.md": "\n\n",
    "broken.md": b"\xfa\xfb is no text",
}


def write_documents(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in DOCUMENTS.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def write_config(root: Path, model: str, embedder: str, **sections: str) -> str:
    lines = [
        f"corpus: {root}/corpus",
        f"documents: {{uri: {root}/docs}}",
        f"embedding: {{name: {embedder}}}",
        f"model: {{name: {model}, max_model_len: 2048}}",
        "context: {strategy: situate, max_output_tokens: 48}",
        "limits: {quarantined: 0.5}",
        *(f"{name}: {value}" for name, value in sections.items()),
    ]
    path = root / "job.yaml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert cli.main([*arguments, "--json"]) == status
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    from jobs import flow

    with flow.cluster(None):
        yield


@pytest.mark.ray
def test_the_job_from_files_to_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_documents(tmp_path / "docs")
    config = write_config(tmp_path, "fake", "fake")
    first = run(capsys, "refresh", config)
    assert set(first) >= {"snapshot", "documents", "chunks", "tokens", "seconds"}
    assert set(first["documents"]) >= {"total", "new", "changed", "unchanged", "deleted", "stale", "quarantined"}
    statuses = {"ok", "fallback", "failed", "skipped"}
    assert set(first["chunks"]) == {"total", *statuses, "ungrounded", "generated", "reused"}
    tokens, reasons = first["tokens"], {"ideal", "block_rounding", "retries", "evicted"}
    assert set(tokens) == {"prompt", "cached", "computed", *reasons, "preemptions", "output"}
    assert tokens["computed"] == tokens["prompt"] - tokens["cached"] == sum(tokens[reason] for reason in reasons)
    assert tokens["evicted"] == tokens["preemptions"] == 0 < tokens["ideal"]
    (replica,) = first["replicas"]
    assert replica["documents"] == 5 and replica["seconds"] > 0 and 0 < replica["busy"] <= 1
    assert sum(first["object_store_bytes"].values()) > sum(len(content) for content in DOCUMENTS.values())
    chunks = first["chunks"]
    assert chunks["ok"] + chunks["fallback"] + chunks["failed"] + chunks["skipped"] == chunks["total"] > 5
    assert (first["documents"]["total"], first["documents"]["quarantined"], first["documents"]["empty"]) == (5, 1, 1)

    again = run(capsys, "refresh", config)
    assert (again["snapshot"], again["published"], again["chunks"]["generated"]) == (first["snapshot"], False, 0)
    assert again["chunks"]["total"] == chunks["total"]

    found = run(capsys, "search", str(tmp_path / "corpus"), "pump sent back serial number", "-k", "1", "--window", "1")
    passage = found["passages"][0]
    text = DOCUMENTS["pumps.md"]
    assert isinstance(text, str)
    assert passage["document_id"] == "pumps.md"
    assert passage["text"] == text[passage["start"] : passage["end"]]
    assert set(passage["hits"][0]) >= {"chunk_index", "score", "context", "heading_path"}

    shown = run(capsys, "show", str(tmp_path / "corpus"), "leave.md")
    assert "".join(chunk["text"] for chunk in shown["chunks"]) == DOCUMENTS["leave.md"]
    assert shown["chunks"][-1]["header"] == "Parental Leave > Exception"
    assert run(capsys, "status", str(tmp_path / "corpus"))["stage"] == "done"
    assert "undecodable" in run(capsys, "show", str(tmp_path / "corpus"), "broken.md", status=2)["error"]
    chunk = shown["chunks"][1]
    around = ("--window", "9", "--window-by", "characters")
    window = run(capsys, "show", str(tmp_path / "corpus"), "leave.md", "1", *around)["window"]
    assert (window["start"], window["end"]) == (chunk["start"] - 9, min(chunk["end"] + 9, shown["chunks"][-1]["end"]))
    assert chunk["text"] in window["text"] and len(window["text"]) == window["end"] - window["start"]
    assert "no chunk is named" in run(capsys, "show", str(tmp_path / "corpus"), "leave.md", *around, status=2)["error"]
    assert not list((tmp_path / "corpus").glob("runs/*/staged")), "intermediate files are gone"
    (kept,) = (tmp_path / "corpus").glob("runs/*/documents.parquet")
    accounts = {entry["id"]: entry for entry in pq.read_table(kept).to_pylist()}
    assert accounts.keys() == DOCUMENTS.keys() and accounts["broken.md"]["reason"].startswith("undecodable")
    for name in ("prompt", "cached", "ideal", "block_rounding", "retries", "output"):
        assert sum(entry[f"tokens_{name}"] for entry in accounts.values()) == tokens[name]
    assert accounts["leave.md"]["tokens_ideal"] > accounts["note.txt"]["tokens_ideal"] == 0


@pytest.mark.ray
def test_a_changed_corpus_pays_only_for_new_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_documents(tmp_path / "docs")
    config = write_config(tmp_path, "fake", "fake")
    first = run(capsys, "refresh", config)
    pumps = tmp_path / "docs" / "pumps.md"
    pumps.write_text(pumps.read_text().replace("14 days", "30 days"))
    (tmp_path / "docs" / "note.txt").unlink()
    second = run(capsys, "refresh", config)
    assert second["snapshot"] == first["snapshot"] + 1
    assert {name: second["documents"][name] for name in ("changed", "deleted", "unchanged")} == {
        "changed": 1,
        "deleted": 1,
        "unchanged": 3,
    }
    assert 1 <= second["chunks"]["generated"] < first["chunks"]["generated"] / 2
    assert second["chunks"]["generated"] + second["chunks"]["reused"] == second["chunks"]["ok"]
    found = run(capsys, "search", str(tmp_path / "corpus"), "a short note with one chunk only", "--mode", "lexical")
    assert "note.txt" not in {passage["document_id"] for passage in found["passages"]}
    assert serving.open(str(tmp_path / "corpus"), first["snapshot"]).document("note.txt")["status"] == "indexed"


@pytest.mark.ray
def test_a_limit_that_is_exceeded_publishes_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_documents(tmp_path / "docs")
    config = write_config(tmp_path, "fake", "fake")
    Path(config).write_text(Path(config).read_text().replace("quarantined: 0.5", "quarantined: 0.1"))
    result = run(capsys, "refresh", config, status=3)
    assert result["published"]
    assert "limits.quarantined" in result["exceeded"][0]


@pytest.mark.ray
def test_a_worker_that_fails_is_one_sentence_and_publishes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_documents(tmp_path / "docs")
    config = write_config(tmp_path, "fake", "fake")
    run(capsys, "refresh", config)
    part = next((tmp_path / "corpus" / "ledger").rglob("vectors-*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    (tmp_path / "docs" / "note.txt").write_text("Another note.\n")
    assert cli.main(["refresh", config]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("situate: ")
    assert f"{part} is damaged" in lines[-1]
    assert serving.open(str(tmp_path / "corpus")).manifest.sequence == 1
    assert run(capsys, "status", str(tmp_path / "corpus"))["stage"] == "stopped"


@pytest.mark.ray
@pytest.mark.model
def test_the_job_with_the_real_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM with prefix caching, MiniLM, FAISS and Lucene, on three documents."""
    write_documents(tmp_path / "docs")
    config = write_config(tmp_path, "smollm2-135m-instruct", "all-minilm-l6-v2", split="{size: 60, min_size: 20}")
    result = run(capsys, "refresh", config)
    chunks, tokens = result["chunks"], result["tokens"]
    assert chunks["generated"] == chunks["ok"] + chunks["fallback"] > 8
    assert chunks["ok"] >= 0.85 * chunks["generated"]
    assert tokens["cached"] > tokens["prompt"] / 3, "chunks of a document share their prefix"
    assert tokens["computed"] - tokens["retries"] <= 1.02 * (tokens["ideal"] + tokens["block_rounding"])
    found = run(capsys, "search", str(tmp_path / "corpus"), "how long is the guarantee on a pump", "-k", "2")
    assert found["passages"][0]["document_id"] == "pumps.md"
    shown = run(capsys, "show", str(tmp_path / "corpus"), "leave.md", "1")
    assert shown["chunks"][0]["context"].startswith("This passage")
    again = run(capsys, "refresh", config)
    assert (again["published"], again["chunks"]["generated"]) == (False, 0)
