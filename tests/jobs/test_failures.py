"""Engines and workers that die or hang under a document, through Ray: bounded tries, a name, the others done."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import cli

pytestmark = pytest.mark.ray
FAULTS = Path(__file__).parent.parent / "faults"
Refresh = Callable[..., tuple[int, dict[str, Any], str]]


def text(name: str, word: str = "thing") -> str:
    return f"---\ntitle: {name}\n---\n" + "".join(
        f"# {name} {n}\n\nRule {n} of {name} holds for each {word if n == 2 else 'thing'} in it. " * 2 + "\n\n"
        for n in range(5)
    )


@pytest.fixture
def refresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refresh:
    """`refresh(fault, files, limits)`: exit status, the JSON record (empty if there is none), what went to stderr."""

    def run(faults: dict[str, str], files: dict[str, str], limits: str, model: str = "fake") -> Any:
        folder = tmp_path / "docs"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content)
        (tmp_path / "job.yaml").write_text(
            f"corpus: {tmp_path}/corpus\ndocuments: {{uri: {folder}}}\nembedding: {{name: fake}}\n"
            f"split: {{by: sentences, size: 2}}\nmodel: {{name: {model}, max_model_len: 2048}}\n"
            f"context: {{max_output_tokens: 24}}\nlimits: {limits}\n"
        )
        monkeypatch.setenv("FAULTS", json.dumps(faults))
        monkeypatch.setenv("PYTHONPATH", str(FAULTS))
        status = cli.main(["refresh", str(tmp_path / "job.yaml"), "--json"])
        captured = capsys.readouterr()
        return status, json.loads(captured.out) if captured.out.strip() else {}, captured.err

    return run


FILES = {f"{name}.md": text(name) for name in ("alder", "birch", "cedar", "elm", "fir", "hazel")}


@pytest.mark.parametrize(("fault", "reason"), [("die", "kills_engine"), ("exit", "kills_worker")])
def test_a_document_that_kills_is_quarantined_by_name_and_the_others_finish(
    refresh: Refresh, fault: str, reason: str
) -> None:
    files = {**FILES, "poison.md": text("poison", "cyanide")}
    status, record, _ = refresh({"cyanide": fault}, files, "{quarantined: 0.01}")
    assert status == 3
    assert [entry["id"] for entry in record["rejected"]] == ["poison.md"]
    assert record["rejected"][0]["reason"].startswith(f"{reason}: ")
    assert record["documents"]["indexed"] == len(FILES) and record["chunks"]["ok"] == record["chunks"]["total"] > 0
    status, record, _ = refresh({}, files, "{quarantined: 0.5}")  # the next night, within the limit
    assert status == 0


def test_a_worker_that_dies_while_it_loads_its_model_is_no_documents_fault(refresh: Refresh) -> None:
    """No memory for the model, say: nothing is published, nobody is quarantined, and the next night finds all as it was."""
    few = {name: FILES[name] for name in ("alder.md", "birch.md")}
    status, record, _ = refresh({}, few, "{quarantined: 0.5}")
    assert status == 0
    status, record, said = refresh({"LOAD": "exit"}, FILES, "{quarantined: 0.5}")
    assert status == 1 and "Traceback" not in said and "died again and again" in record["error"]
    status, record, _ = refresh({}, FILES, "{quarantined: 0.01}")
    assert status == 0 and record["snapshot"] == 2 and record["documents"]["indexed"] == len(FILES)


def test_an_engine_that_hangs_ends_the_run_with_the_documents_in_work(refresh: Refresh) -> None:
    files = {**FILES, "poison.md": text("poison", "lullaby")}
    status, record, said = refresh({"lullaby": "hang"}, files, "{stall_timeout_s: 6}")
    assert status == 1 and record["error"] in said and "Traceback" not in said
    assert "nothing has moved for " in said and "poison.md" in said and "alder.md" not in said
    status, record, _ = refresh({}, files, "{stall_timeout_s: 60}")
    assert status == 0 and record["chunks"]["reused"] >= 5  # what was written before is not paid for again


@pytest.mark.soak
@pytest.mark.model
def test_a_document_that_kills_the_real_engines_process_is_quarantined(refresh: Refresh) -> None:
    files = {"alder.md": text("alder"), "poison.md": text("poison", "cyanide"), "cedar.md": text("cedar")}
    status, record, _ = refresh({"cyanide": "kill"}, files, "{quarantined: 0.5, fallback: 1}", "smollm2-135m-instruct")
    assert status == 0
    assert [entry["id"] for entry in record["rejected"]] == ["poison.md"]
    assert record["rejected"][0]["reason"].startswith("kills_engine: ")
    assert record["documents"]["indexed"] == 2 and record["chunks"]["failed"] == 0
