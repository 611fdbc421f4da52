"""What `status` says of runs that ended well, were killed or have only just begun. P34: never against the manifest."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import heartbeat, history, layout, manifest
from indexing.storage import DirectoryStorage
from jobs import cli, status
from jobs.progress import Progress


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path)


def run_id(hours_ago: float) -> str:
    return f"{datetime.now(UTC) - timedelta(hours=hours_ago):%Y%m%dT%H%M%S}-0123abcd"


def before(hours: float) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="seconds")


def leave_progress(storage: DirectoryStorage, run: str, stage: str, hours_ago: float) -> None:
    record = {"run_id": run, "updated_at": before(hours_ago), "stage": stage, "total": 5, "counts": {}, "seconds": {}}
    storage.put(layout.run_file(run, "progress.json"), json.dumps(record).encode())


def leave_success(storage: DirectoryStorage, run: str, hours_ago: float, published: bool = True) -> None:
    record = {"run_id": run, "finished_at": before(hours_ago), "snapshot": 7, "published": published, "exceeded": []}
    storage.put(layout.run_file(run, layout.SUCCESS), json.dumps(record).encode())


def publish(storage: DirectoryStorage, run: str, **fields: Any) -> manifest.Manifest:
    given: dict[str, Any] = {"run_id": run, "config": {}, "fingerprints": {}, "dimension": 4, "counts": {}}
    given |= {"segments": (), "dead": {}, "rejected": ()}
    published = replace(manifest.new_manifest(manifest.latest(storage), **given), **fields)
    manifest.publish(storage, published)
    return published


def read(storage: DirectoryStorage) -> dict[str, Any]:
    return status.read(storage.uri)


def test_a_run_that_was_killed_after_its_commit_is_done(storage: DirectoryStorage) -> None:
    run = run_id(2)
    leave_progress(storage, run, "publish", 1.9)
    assert read(storage)["stage"] == "silent"
    publish(storage, run, created_at=before(1.9))
    found = read(storage)
    assert (found["stage"], found["snapshot"], found["report"]) == ("done", 1, None)
    assert found["last_success"]["snapshot"] == 1
    assert 1.8 * 3600 < found["last_success"]["age_s"] < 2 * 3600


@pytest.mark.parametrize("stage", ["stopped", "silent"])
def test_what_it_said_last_does_not_matter_once_its_snapshot_is_there(storage: DirectoryStorage, stage: str) -> None:
    run = run_id(2)
    publish(storage, run, created_at=before(1.9))
    publish(storage, "20990101T000000-ffffffff")
    leave_progress(storage, run, stage, 1.9)
    assert read(storage)["stage"] == "done"


def test_anothers_snapshot_does_not_make_a_run_done(storage: DirectoryStorage) -> None:
    publish(storage, run_id(30), created_at=before(29))
    leave_progress(storage, run_id(2), "enrich", 1.9)
    found = read(storage)
    assert (found["stage"], found["snapshot"]) == ("silent", 1)
    assert found["last_success"]["age_s"] > 28 * 3600


def test_a_rollback_is_no_success_of_the_run_that_it_restores(storage: DirectoryStorage) -> None:
    run = run_id(50)
    leave_progress(storage, run, "done", 49)
    publish(storage, run, created_at=before(49))
    history.roll_back(storage, 1)
    found = read(storage)
    assert found["last_success"]["age_s"] > 48 * 3600
    assert (found["snapshot"], found["held"]) == (2, 1)


def test_a_night_without_changes_is_a_success(storage: DirectoryStorage) -> None:
    leave_progress(storage, run_id(48), "done", 47)
    leave_success(storage, run_id(48), 47)
    leave_success(storage, run_id(24), 23, published=False)
    found = read(storage)
    assert (found["run_id"], found["stage"]) == (run_id(24), "done")
    assert found["last_success"]["published"] is False
    assert 22 * 3600 < found["last_success"]["age_s"] < 24 * 3600


def test_a_run_that_has_only_just_begun_is_starting(storage: DirectoryStorage) -> None:
    run = heartbeat.new_run_id()
    with heartbeat.beating(storage, run, "refresh"):
        found = read(storage)
        assert (found["run_id"], found["stage"]) == (run, "starting")
    with pytest.raises(ConfigError, match="has no runs"):
        read(storage)


def test_the_upkeep_of_a_corpus_is_no_run(storage: DirectoryStorage) -> None:
    leave_progress(storage, run_id(24), "done", 23)
    with heartbeat.beating(storage, heartbeat.new_run_id(), "gc"):
        assert read(storage)["run_id"] == run_id(24)


def test_nothing_is_written_to_look(storage: DirectoryStorage) -> None:
    leave_progress(storage, run_id(2), "enrich", 1)
    names = [entry.name for entry in storage.list()]
    read(storage)
    assert [entry.name for entry in storage.list()] == names


def test_a_monitor_needs_one_command(storage: DirectoryStorage, capsys: pytest.CaptureFixture[str]) -> None:
    leave_progress(storage, run_id(30), "done", 29)
    leave_success(storage, run_id(30), 29)
    assert cli.main(["status", storage.uri, "--max-age", "30"]) == 0
    assert cli.main(["status", storage.uri, "--max-age", "26", "--json"]) == 1
    captured = capsys.readouterr()
    assert "was 29.0 hours ago" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["last_success"]["snapshot"] == 7


def test_a_run_without_any_success_is_too_old(storage: DirectoryStorage, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(show=False)
    with pytest.raises(ZeroDivisionError), progress.recording(storage, run_id(0)):
        raise ZeroDivisionError
    assert cli.main(["status", storage.uri, "--max-age", "26"]) == 1
    assert "is not known" in capsys.readouterr().err


def test_a_file_that_no_run_wrote_is_no_run(storage: DirectoryStorage) -> None:
    publish(storage, run_id(1))
    leave_success(storage, run_id(1), 1)
    storage.put("runs/.DS_Store", b"not ours")
    assert read(storage)["stage"] == "done"


@pytest.mark.parametrize("content", [b"", b"[]"])
def test_a_damaged_record_is_named(storage: DirectoryStorage, content: bytes) -> None:
    publish(storage, run_id(1))
    name = layout.run_file(run_id(1), layout.SUCCESS)
    storage.put(name, content)
    with pytest.raises(OperationError, match=f"{name} is damaged"):
        read(storage)
