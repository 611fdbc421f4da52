"""A run's record in the store: what it is doing, and how it ended."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from indexing import layout
from indexing.storage import DirectoryStorage
from jobs import status
from jobs.progress import Progress


def test_a_finished_run_leaves_its_report(tmp_path: Path) -> None:
    storage, progress = DirectoryStorage(tmp_path), Progress(show=False)
    with progress.recording(storage, "run-1"):
        with progress.stage("enrich", 3):
            progress.counts({"documents": 3, "chunks": 7})
            assert status.read(str(tmp_path))["report"] is None
        progress.report({"snapshot": 1}, pa.table({"id": ["a"]}))
    found = status.read(str(tmp_path))
    assert (found["run_id"], found["stage"], found["report"]) == ("run-1", "done", {"snapshot": 1})
    assert list(found["seconds"]) == ["enrich"]
    [event] = storage.get(layout.run_file("run-1", "events.jsonl")).splitlines()
    assert json.loads(event)["chunks"] == 7


def test_a_failed_run_says_stopped(tmp_path: Path) -> None:
    progress = Progress(show=False)
    with pytest.raises(ZeroDivisionError), progress.recording(DirectoryStorage(tmp_path), "run-1"):
        raise ZeroDivisionError
    assert status.read(str(tmp_path))["stage"] == "stopped"


def test_a_killed_run_is_silent(tmp_path: Path) -> None:
    storage, progress = DirectoryStorage(tmp_path), Progress(show=False)
    with progress.recording(storage, "run-1"):
        name = layout.run_file("run-1", "progress.json")
        record = json.loads(storage.get(name))
    record |= {"stage": "enrich", "updated_at": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}
    storage.put(name, json.dumps(record).encode())
    assert status.read(str(tmp_path))["stage"] == "silent"


def test_lines_without_a_terminal_name_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with progress.stage("enrich", 10, 4000):
        progress._last_line = progress._working_since = progress._started - 20
        progress.counts({"documents": 5, "workers": 1, "chunks": 50, "bytes": 2000, "embedded": 25})
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "enrich: 25 chunks, 1.2/s, 60 s left, 5/10 documents"
