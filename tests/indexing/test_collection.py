"""Garbage collection: what is needed, young or in work stays; the rest goes. P25."""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import heartbeat, history, layout, manifest
from indexing.collection import collect
from indexing.heartbeat import AlreadyRunningError
from indexing.manifest import FileEntry, LostRaceError, SegmentEntry
from indexing.storage import DirectoryStorage, open_storage
from indexing.verification import verify

DAY_S = 24 * 3600.0


def make_old(storage: DirectoryStorage, age_s: float = 3 * DAY_S, but: str = "\0") -> None:
    then = time.time() - age_s
    for path in storage.root.rglob("*"):
        if path.is_file() and but not in str(path):
            os.utime(path, (then, then))


def names(storage: DirectoryStorage) -> set[str]:
    return {entry.name for entry in storage.list()}


def needed(storage: DirectoryStorage) -> set[str]:
    """All that a manifest lists."""
    found = set()
    for sequence in manifest.sequences(storage):
        snapshot = manifest.load(storage, sequence)
        found |= {layout.segment(s.id, file.name) for s in snapshot.segments for file in s.files}
        found |= {layout.dead(segment_id, entry.sha256) for segment_id, entry in snapshot.dead.items()}
    return found


def only_last_segment(storage: DirectoryStorage) -> None:
    """A fourth night that needs nothing but the segment of the second: as after a compaction."""
    third = manifest.load(storage, 3)
    content = {name: getattr(third, name) for name in history._CONTENT} | {"dead": {}, "segments": third.segments[2:]}
    manifest.publish(storage, manifest.new_manifest(third, **content))


def test_it_says_what_it_would_remove_and_removes_nothing(three_nights: Any) -> None:
    storage = three_nights.storage
    only_last_segment(storage)
    make_old(storage)
    before = names(storage)
    garbage = collect(storage, keep=1)
    assert names(storage) == before
    assert garbage.snapshots == (1, 2, 3)
    gone = {segment.id for segment in manifest.load(storage, 1).segments}
    assert {e.name.split("/")[1] for e in garbage.objects if not e.name.startswith(layout.RUNS)} == gone
    assert any(entry.name.startswith(layout.DEAD) for entry in garbage.objects)
    assert collect(storage, keep=1, delete=True) == garbage
    assert names(storage) == before - {entry.name for entry in garbage.objects} - {
        layout.manifest(n) for n in (1, 2, 3)
    }
    assert manifest.sequences(storage) == [4]
    assert verify(storage)["ok"]


def test_what_a_kept_snapshot_lists_stays_whatever_its_age(three_nights: Any) -> None:
    storage = three_nights.storage
    make_old(storage, 1000 * DAY_S)
    kept = needed(storage)
    collect(storage, keep=3, older_than_s=0, delete=True)
    assert kept <= names(storage) and verify(storage)["ok"]
    collect(storage, keep=1, older_than_s=0, delete=True)
    assert needed(storage) <= names(storage) and verify(storage)["ok"]
    assert manifest.sequences(storage) == [3]


def test_an_old_bitmap_of_a_kept_segment_stays_because_it_may_be_written_again(three_nights: Any) -> None:
    storage = three_nights.storage
    [entry] = manifest.load(storage, 2).dead.values()
    make_old(storage)
    collect(storage, keep=1, older_than_s=0, delete=True)
    assert any(name.endswith(entry.sha256) for name in names(storage))


def test_the_young_is_spared(three_nights: Any) -> None:
    storage = three_nights.storage
    make_old(storage)
    storage.put("segments/orphan-old/rows.parquet", b"x")
    make_old(storage, but="orphan-young")
    storage.put("segments/orphan-young/rows.parquet", b"x")
    garbage = collect(storage, delete=True)
    assert "segments/orphan-old/rows.parquet" in {entry.name for entry in garbage.objects}
    assert "segments/orphan-young/rows.parquet" in names(storage)
    assert collect(storage, older_than_s=0, delete=True).objects


def test_what_a_run_at_work_wrote_is_spared_however_long_it_takes(
    three_nights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = three_nights.storage
    run = heartbeat.Heartbeat("run-x", "refresh", "elsewhere/1/1", "1:1", "2026-01-01T00:00:00+00:00", 2 * DAY_S)
    record = {name: getattr(run, name) for name in ("run_id", "kind", "host", "process", "started_at", "elapsed_s")}
    make_old(storage)
    for name, age in (("segments/in-flight/rows.parquet", DAY_S), ("runs/run-x/staged/p/rows.parquet", DAY_S)):
        storage.put(name, b"x")
        os.utime(storage.root / name, (time.time() - age, time.time() - age))
    storage.put("segments/before-it/rows.parquet", b"x")
    os.utime(storage.root / "segments/before-it/rows.parquet", (time.time() - 2.5 * DAY_S,) * 2)
    storage.put(layout.run_file("run-x", heartbeat.FILE), json.dumps(record).encode())
    collect(storage, older_than_s=3600, delete=True)
    assert {"segments/in-flight/rows.parquet", "runs/run-x/staged/p/rows.parquet"} <= names(storage)
    assert "segments/before-it/rows.parquet" not in names(storage)
    storage.delete(layout.run_file("run-x", heartbeat.FILE))
    collect(storage, older_than_s=3600, delete=True)
    assert not {"segments/in-flight/rows.parquet", "runs/run-x/staged/p/rows.parquet"} & names(storage)


def test_of_old_runs_the_records_go_and_proofs_and_the_ledger_stay(three_nights: Any) -> None:
    storage = three_nights.storage
    for number in range(5):
        storage.put(layout.run_file(f"run-old-{number}", "report.json"), b"{}")
        storage.put(layout.run_file(f"run-old-{number}", "staged/p/rows.parquet"), b"x")
    storage.put(layout.run_file("run-old-0", layout.ERASURE), b"{}")
    ledger = {name for name in names(storage) if name.startswith(layout.LEDGER)}
    make_old(storage)
    collect(storage, keep=2, delete=True)
    left = {name for name in names(storage) if name.startswith(layout.RUNS) and "/run-" in name}
    assert (
        layout.run_file("run-old-0", layout.ERASURE) in left and layout.run_file("run-old-0", "report.json") not in left
    )
    assert layout.run_file("run-old-4", "report.json") in left
    assert not [name for name in left if "/staged/" in name]
    assert ledger and ledger <= names(storage)


def test_what_killed_writers_left_goes(three_nights: Any, s3_bucket: Callable[[], str]) -> None:
    storage = three_nights.storage
    leftover = storage.root / "segments" / "x" / "rows.parquet.0123.situate-tmp"
    leftover.parent.mkdir()
    leftover.write_bytes(b"secret")
    make_old(storage)
    assert [entry.name for entry in collect(storage).unfinished] == ["segments/x/rows.parquet.0123.situate-tmp"]
    collect(storage, delete=True)
    assert not leftover.exists()

    remote: Any = open_storage(s3_bucket())
    for entry in storage.list():
        remote.put(entry.name, storage.get(entry.name))
    key = {"Bucket": remote._bucket, "Key": remote._prefix + "segments/y/rows.parquet"}
    upload = remote._client.create_multipart_upload(**key)["UploadId"]
    remote._client.upload_part(**key, UploadId=upload, PartNumber=1, Body=b"secret")
    [entry] = remote.unfinished()
    assert entry.name == f"segments/y/rows.parquet?{upload}"
    remote.discard(entry)
    assert not list(remote.unfinished())
    remote.discard(entry)


def test_numbers_out_of_range_are_named(three_nights: Any) -> None:
    with pytest.raises(ConfigError, match="--keep is 0"):
        collect(three_nights.storage, keep=0)
    with pytest.raises(ConfigError, match="--older-than is -1"):
        collect(three_nights.storage, older_than_s=-1)
    with pytest.raises(ConfigError, match="holds no snapshot"):
        collect(DirectoryStorage(three_nights.storage.root / "nowhere"))


def test_no_gc_beside_a_rollback_or_a_purge(three_nights: Any) -> None:
    for kind in ("rollback", "purge"):
        with (
            heartbeat.beating(three_nights.storage, "run-1", kind),
            pytest.raises(AlreadyRunningError, match=f"a {kind} of"),
        ):
            collect(three_nights.storage)


def test_while_others_publish_and_roll_back_every_kept_snapshot_stays_whole(three_nights: Any) -> None:
    """P25: a gc that deletes at once, beside a publisher and one who rolls back; nothing listed is ever missing."""
    storage, over = three_nights.storage, threading.Event()
    content = {name: getattr(manifest.load(storage, 3), name) for name in history._CONTENT} | {"dead": {}}

    def publish() -> int:
        done = 0
        while not over.is_set():
            file, run_id = FileEntry("rows.parquet", 9, "0" * 64), heartbeat.new_run_id()
            # As a build names them: no two alike, also where the first one lost a race.
            segment = SegmentEntry(f"new-{run_id}", "d" * 64, 1, 1, 1, (file,))
            new = {**content, "run_id": run_id, "segments": (segment,)}
            try:
                with heartbeat.beating(storage, run_id, "refresh", besides=frozenset({"gc", "rollback"})):
                    storage.put(layout.segment(segment.id, file.name), b"in flight")
                    manifest.publish(storage, manifest.new_manifest(manifest.require_latest(storage), **new))
                done += 1
            except LostRaceError:
                continue  # to a rollback
        return done

    def roll_back() -> int:
        done = 0
        while not over.is_set():
            try:
                history.roll_back(storage, manifest.sequences(storage)[0])
                done += 1
            except (AlreadyRunningError, ConfigError, OperationError):
                continue  # a gc is at work, or has just dropped that snapshot
        return done

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(publish), pool.submit(roll_back)]
        collected = removed = 0
        until = time.monotonic() + 6
        try:
            while time.monotonic() < until:
                try:
                    removed += len(collect(storage, keep=2, older_than_s=0, delete=True).objects)
                    collected += 1
                except AlreadyRunningError:
                    continue
        finally:
            over.set()
        published, rolled = (future.result() for future in working)
    assert published > 5 and rolled > 2 and collected > 2 and removed > 5, (published, rolled, collected, removed)
    assert needed(storage) <= names(storage), "a file that a manifest lists is gone"
