"""Any order of uploads, commits, crashes, rollbacks, collections and reads: every kept snapshot stays whole. P13, P25.

The segments here are single files; what a snapshot is made of does not matter to what keeps it.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from enrichment.errors import ConfigError
from indexing import heartbeat, history, layout, manifest
from indexing.collection import collect
from indexing.manifest import FileEntry, LostRaceError, Manifest, SegmentEntry
from indexing.storage import DirectoryStorage

CONTENT: dict[str, Any] = {
    "config": {},
    "fingerprints": {},
    "dimension": 4,
    "counts": {"documents": {"total": 0}, "chunks": {"total": 0}},
    "dead": {},
    "rejected": (),
}


class Corpus(RuleBasedStateMachine):
    """One run at work at a time; others publish, roll back and collect beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="situate-machine-"))
        self.storage = DirectoryStorage(self.root)
        self.number = 0
        self.run: str | None = None
        self.planned: Manifest | None = None
        self.in_flight: list[SegmentEntry] = []
        self.kept: dict[int, tuple[str, ...]] = {}  # what each kept snapshot must hold
        self.open: Manifest | None = None  # of a reader
        self.publish_as("first", None, [self.upload_one()])

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def upload_one(self) -> SegmentEntry:
        self.number += 1
        name, data = f"segment-{self.number}", f"content of {self.number}".encode()
        self.storage.put(layout.segment(name, "rows.parquet"), data)
        file = FileEntry("rows.parquet", len(data), hashlib.sha256(data).hexdigest())
        return SegmentEntry(name, "d", 1, 1, 1, (file,))

    def publish_as(self, run: str, parent: Manifest | None, segments: list[SegmentEntry]) -> None:
        new = manifest.new_manifest(parent, run_id=run, segments=tuple(segments), **CONTENT)
        manifest.publish(self.storage, new)
        self.kept[new.sequence] = tuple(segment.id for segment in segments)

    @precondition(lambda self: self.run is None)
    @rule()
    def begin(self) -> None:
        self.number += 1
        self.run = f"run-{self.number:04d}"
        self.planned = manifest.require_latest(self.storage)
        self.beat()

    def beat(self) -> None:
        """Of another machine, so that only its age says whether it is alive; at work for ages."""
        record = {"run_id": self.run, "kind": "refresh", "host": "elsewhere", "process": "1:1"}
        record |= {"started_at": "2026-01-01T00:00:00+00:00", "elapsed_s": 1e9}  # type: ignore[dict-item]
        self.storage.put(layout.run_file(str(self.run), heartbeat.FILE), json.dumps(record).encode())

    @precondition(lambda self: self.run is not None)
    @rule()
    def upload(self) -> None:
        self.in_flight.append(self.upload_one())

    @precondition(lambda self: self.run is not None and self.in_flight)
    @rule(carried=st.booleans())
    def commit(self, carried: bool) -> None:
        assert self.run is not None and self.planned is not None
        lost = manifest.require_latest(self.storage).sequence != self.planned.sequence
        old = list(self.planned.segments) if carried else []
        try:
            self.publish_as(self.run, self.planned, [*old, *self.in_flight])
            assert not lost
        except LostRaceError:
            assert lost
            self.planned = manifest.require_latest(self.storage)
            return
        self.end()

    def end(self) -> None:
        self.storage.delete(layout.run_file(str(self.run), heartbeat.FILE))
        self.run, self.planned, self.in_flight = None, None, []

    @precondition(lambda self: self.run is not None)
    @rule()
    def crash(self) -> None:
        """What it uploaded stays, half a file too, and its heartbeat, which goes stale."""
        folder = self.root / "segments" / f"half-{self.number}"
        folder.mkdir(parents=True)
        (folder / "rows.parquet.0.situate-tmp").write_bytes(b"half")
        path = self.root / layout.run_file(str(self.run), heartbeat.FILE)
        os.utime(path, (time.time() - 3600,) * 2)
        self.run, self.planned, self.in_flight = None, None, []

    @rule()
    def another_publishes(self) -> None:
        latest = manifest.require_latest(self.storage)
        self.publish_as("other", latest, [*latest.segments[-2:], self.upload_one()])

    @rule(back=st.integers(0, 5))
    def roll_back(self, back: int) -> None:
        known = manifest.sequences(self.storage)
        target = known[max(0, len(known) - 1 - back)]
        new = history.roll_back(self.storage, target)
        self.kept[new.sequence] = self.kept[target]

    @rule()
    def release(self) -> None:
        latest = manifest.require_latest(self.storage)
        try:
            new = history.release(self.storage)
        except ConfigError:
            assert latest.held is None
            return
        assert latest.held is not None and new.held is None
        self.kept[new.sequence] = self.kept[latest.sequence]

    @rule(keep=st.integers(1, 3), hours=st.sampled_from([0, 1, 100]))
    def collect(self, keep: int, hours: int) -> None:
        if self.run is not None:
            self.beat()
        collect(self.storage, keep, hours * 3600, delete=True)
        for sequence in sorted(self.kept)[:-keep]:
            del self.kept[sequence]

    @rule(days=st.integers(1, 4))
    def time_passes(self, days: int) -> None:
        for path in self.root.rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime - days * 86400
                os.utime(path, (then, then))

    @rule()
    def open_reader(self) -> None:
        self.open = manifest.require_latest(self.storage)

    @invariant()
    def every_kept_snapshot_is_whole(self) -> None:
        assert manifest.sequences(self.storage) == sorted(self.kept)
        for sequence, segments in self.kept.items():
            found = manifest.load(self.storage, sequence)
            assert tuple(segment.id for segment in found.segments) == segments
            self.read(found)

    @invariant()
    def a_reader_reads_on_while_its_snapshot_is_kept(self) -> None:
        if self.open is not None and self.open.sequence in self.kept:
            self.read(self.open)

    @invariant()
    def what_is_in_work_is_there(self) -> None:
        for segment in self.in_flight:
            assert self.storage.get(layout.segment(segment.id, "rows.parquet"))

    def read(self, found: Manifest) -> None:
        for segment in found.segments:
            data = self.storage.get(layout.segment(segment.id, "rows.parquet"))
            assert hashlib.sha256(data).hexdigest() == segment.files[0].sha256


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]
TestAFewOrders = Corpus.TestCase
TestAFewOrders.settings = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=CHECKS)


@pytest.mark.soak
class TestManyOrders(Corpus.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS)
