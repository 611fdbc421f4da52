"""What surrounds a refresh: a lost race is planned anew, a hold refuses, success is recorded."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from s3_proxy import S3Proxy

from enrichment.errors import ConfigError, PublishGateError
from indexing import heartbeat, layout, manifest
from indexing.heartbeat import AlreadyRunningError
from indexing.manifest import LostRaceError, Manifest
from indexing.storage import DirectoryStorage, Storage, open_storage
from jobs import publication


@dataclass(frozen=True)
class Outcome:
    snapshot: int
    published: bool = True
    exceeded: tuple[str, ...] = ()


def following(parent: Manifest | None, **fields: Any) -> Manifest:
    given: dict[str, Any] = {"run_id": "run", "config": {}, "fingerprints": {}, "dimension": 4, "counts": {}}
    return manifest.new_manifest(parent, **{**given, "segments": (), "dead": {}, "rejected": (), **fields})


def test_a_lost_race_is_planned_anew_from_the_winner(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    planned: list[int | None] = []

    def attempt(run_id: str, previous: Manifest | None) -> Outcome:
        planned.append(previous.sequence if previous else None)
        if len(planned) < 3:  # someone else publishes while this one works
            manifest.publish(storage, following(previous, run_id="other"))
        mine = following(previous, run_id=run_id)
        manifest.publish(storage, mine)
        return Outcome(mine.sequence)

    assert publication.guarded(storage, attempt).snapshot == 3
    assert planned == [None, 1, 2]
    assert [manifest.load(storage, n).run_id == "other" for n in (1, 2, 3)] == [True, True, False]


def test_races_are_lost_a_bounded_number_of_times(tmp_path: Path) -> None:
    tried = []

    def attempt(run_id: str, previous: Manifest | None) -> Outcome:
        tried.append(run_id)
        raise LostRaceError("lost")

    with pytest.raises(LostRaceError):
        publication.guarded(DirectoryStorage(tmp_path), attempt)
    assert len(tried) == publication._ATTEMPTS and len(set(tried)) == 1
    assert not list(DirectoryStorage(tmp_path).list()), "no heartbeat and no record of success"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_rollback_that_holds_refuses_also_one_that_comes_meanwhile(tmp_path: Path, when: str) -> None:
    storage = DirectoryStorage(tmp_path)
    first = following(None)
    manifest.publish(storage, first)
    held = replace(following(first), held=1)
    if when == "before":
        manifest.publish(storage, held)

    def attempt(run_id: str, previous: Manifest | None) -> Outcome:
        assert when == "meanwhile", "nothing may be spent"
        manifest.publish(storage, held)
        manifest.publish(storage, following(first))
        raise AssertionError("unreachable")

    with pytest.raises(PublishGateError, match="holds there"):
        publication.guarded(storage, attempt)
    assert manifest.require_latest(storage).held == 1


def test_a_second_refresh_stops_at_once(tmp_path: Path) -> None:
    storage, inside, go = DirectoryStorage(tmp_path), threading.Event(), threading.Event()

    def slow(run_id: str, previous: Manifest | None) -> Outcome:
        inside.set()
        assert go.wait(10)
        return Outcome(1)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publication.guarded, storage, slow)
        assert inside.wait(10)
        with pytest.raises(AlreadyRunningError):
            publication.guarded(storage, lambda *_: Outcome(2))
        go.set()
        assert first.result().snapshot == 1


def test_success_is_recorded_also_of_a_night_without_changes(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    publication.guarded(storage, lambda *_: Outcome(4, published=False))
    [entry] = storage.list(layout.RUNS)
    record = json.loads(storage.get(entry.name))
    assert entry.name.endswith(f"/{layout.SUCCESS}")
    assert (record["snapshot"], record["published"]) == (4, False)


def test_a_store_that_ignores_conditions_stops_before_anything_is_spent(s3_bucket: Any, s3_faults: S3Proxy) -> None:
    storage: Storage = open_storage(s3_bucket())
    s3_faults.ignore_conditions = True
    with pytest.raises(ConfigError, match="--single-writer"):
        publication.guarded(storage, lambda *_: pytest.fail("spent"))
    assert publication.guarded(storage, lambda *_: Outcome(1), single_writer=True).snapshot == 1


def test_with_one_writer_a_manifest_that_is_there_is_not_replaced(s3_bucket: Any, s3_faults: S3Proxy) -> None:
    storage: Storage = open_storage(s3_bucket())
    s3_faults.ignore_conditions = True
    first = following(None)
    manifest.publish(storage, first)
    with pytest.raises(LostRaceError):
        manifest.publish(storage, following(None))
    assert manifest.load(storage, 1).nonce == first.nonce


def test_a_heartbeat_is_gone_after_the_run(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    with pytest.raises(ZeroDivisionError):
        publication.guarded(storage, lambda *_: Outcome(1 // 0))
    assert not [entry for entry in storage.list() if entry.name.endswith(heartbeat.FILE)]
