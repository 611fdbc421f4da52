"""Who is at work: seen by others, ignored once it is gone or stale."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import OperationError
from indexing import heartbeat, layout
from indexing.heartbeat import AlreadyRunningError, beating
from indexing.storage import DirectoryStorage, Storage


def name_of(run_id: str) -> str:
    return layout.run_file(run_id, heartbeat.FILE)


def leave(storage: Storage, run_id: str, **fields: Any) -> None:
    """A heartbeat as another machine would have left it."""
    record = {"run_id": run_id, "kind": "refresh", "host": "elsewhere/boot/1", "process": "1:1", "elapsed_s": 15.0}
    storage.put(name_of(run_id), json.dumps({**record, "started_at": "2026-01-01T00:00:00+00:00", **fields}).encode())


def test_a_second_run_notices_the_first_and_stops_with_one_sentence(storage: Storage) -> None:
    with beating(storage, "run-1", "refresh"):
        with (
            pytest.raises(AlreadyRunningError, match=r"a refresh of .* is in progress \(run run-1 on .*wait for it"),
            beating(storage, "run-2", "refresh"),
        ):
            pytest.fail("two ran at once")
        assert [entry.name for entry in storage.list(layout.RUNS)] == [name_of("run-1")]
    assert list(storage.list()) == []
    with beating(storage, "run-3", "refresh"):
        pass


def test_what_may_run_beside_is_not_refused(storage: Storage) -> None:
    with beating(storage, "run-1", "refresh"), beating(storage, "run-2", "gc", besides=frozenset({"refresh"})):
        assert [other.run_id for other in heartbeat.live(storage, "run-2")] == ["run-1"]


def test_of_two_that_have_only_just_begun_the_later_one_stops(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    leave(storage, "run-2", elapsed_s=0.0)
    later = time.time() + 5
    os.utime(tmp_path / name_of("run-2"), (later, later))
    with beating(storage, "run-3", "refresh"):
        pass
    os.utime(tmp_path / name_of("run-2"), (later - 10, later - 10))
    with pytest.raises(AlreadyRunningError), beating(storage, "run-1", "refresh"):
        pass


def test_a_run_on_another_machine_counts_until_its_heartbeat_is_stale(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    leave(storage, "run-1")
    with pytest.raises(AlreadyRunningError), beating(storage, "run-2", "refresh"):
        pass
    before = time.time() - heartbeat.STALE_S - 1
    os.utime(tmp_path / name_of("run-1"), (before, before))
    with beating(storage, "run-2", "refresh"):
        assert heartbeat.live(storage, "run-2") == []


def test_a_killed_process_of_this_machine_is_ignored_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal\nfrom indexing.heartbeat import beating\nfrom indexing.storage import open_storage\n"
        "with beating(open_storage(sys.argv[1]), 'run-1', 'refresh'): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    storage = DirectoryStorage(tmp_path)
    assert [entry.name for entry in storage.list()] == [name_of("run-1")]
    with beating(storage, "run-2", "refresh"):
        pass


def test_a_process_id_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    leave(storage, "run-1", host=heartbeat._host(), process=f"{os.getpid()}:1")
    with beating(storage, "run-2", "refresh"):
        pass
    leave(storage, "run-1", host=heartbeat._host(), process=heartbeat._process(os.getpid()))
    with pytest.raises(AlreadyRunningError), beating(storage, "run-2", "refresh"):
        pass


def test_it_keeps_beating(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    with beating(storage, "run-1", "refresh"):
        until = time.monotonic() + 10
        while json.loads(storage.get(name_of("run-1")))["elapsed_s"] < 0.3 and time.monotonic() < until:
            time.sleep(0.02)
        assert json.loads(storage.get(name_of("run-1")))["elapsed_s"] >= 0.3


def test_a_store_that_fails_for_a_while_does_not_end_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DirectoryStorage(tmp_path)
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    put, failed = storage.put, []

    def flaky(name: str, data: bytes) -> None:
        if json.loads(data)["elapsed_s"] > 0 and len(failed) < 2:
            failed.append(name)
            raise OperationError("the store is away")
        put(name, data)

    monkeypatch.setattr(storage, "put", flaky)
    with beating(storage, "run-1", "refresh"):
        until = time.monotonic() + 10
        while json.loads(storage.get(name_of("run-1")))["elapsed_s"] == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert json.loads(storage.get(name_of("run-1")))["elapsed_s"] > 0
    assert len(failed) == 2
