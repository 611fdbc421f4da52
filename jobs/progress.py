"""How a run shows itself: a bar with rate and time left on a terminal, plain lines elsewhere, a record in the store.

Everything for people goes to stderr. `runs/<id>/progress.json` is replaced every few seconds, so that `situate status`
on another machine sees the run through the store alone; `events.jsonl` and `report.json` are written at the end.
"""

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from enrichment.errors import SituateError
from indexing import layout
from indexing.storage import Storage

logger = logging.getLogger(__name__)

_LINE_EVERY_S, _RECORD_EVERY_S = 10.0, 5.0


class Progress:
    """One run's stages, counts and times. `seconds` holds the finished stages in order."""

    def __init__(self, show: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self._show = show
        self._terminal = show and sys.stderr.isatty()
        self._storage: Storage | None = None
        self._run_id = ""
        self._counts: dict[str, int] = {}
        self._events: list[dict[str, Any]] = []
        self._stage, self._total, self._total_bytes, self._started = "", 0, 0, time.monotonic()
        self._last_line = 0.0
        self._said = ""
        self._working_since: float | None = None  # the models are loaded: from here on rates mean something
        self._bar: Any = None
        self._task: Any = None

    @contextlib.contextmanager
    def recording(self, storage: Storage, run_id: str) -> Iterator[None]:
        """Keep a record of the run in the store while it lasts; how it ended is its last word."""
        self._storage, self._run_id = storage, run_id
        over = threading.Event()

        def beat() -> None:
            while not over.wait(_RECORD_EVERY_S):
                try:
                    self._record()
                except SituateError as error:
                    # The store may be back at the next one; the work itself will say so if not.
                    logger.warning("no record of the progress: %s", error)

        self._record()
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
            self._stage = "done"
        except BaseException:
            self._stage = "stopped"
            raise
        finally:
            over.set()
            thread.join()
            try:
                self._record()
            except SituateError:
                if self._stage == "done":  # else what stopped the run is the news
                    raise

    def report(self, report: Mapping[str, Any], documents: pa.Table) -> None:
        """Write the run's report, its events, and what became of each document and took how many tokens."""
        assert self._storage is not None
        events = "".join(json.dumps(event) + "\n" for event in self._events)
        self._storage.put(layout.run_file(self._run_id, "events.jsonl"), events.encode())
        table = pa.BufferOutputStream()
        pq.write_table(documents, table)
        self._storage.put(layout.run_file(self._run_id, "documents.parquet"), bytes(table.getvalue()))
        self._storage.put(layout.run_file(self._run_id, "report.json"), json.dumps(report, indent=1).encode())

    @contextlib.contextmanager
    def stage(self, name: str, total: int, total_bytes: int = 0) -> Iterator[None]:
        """Time a stage; `total` is the documents or files it has to do, 0 if that has no meaning, `total_bytes` their size."""
        self._stage, self._total, self._total_bytes, self._started = name, total, total_bytes, time.monotonic()
        self._last_line = self._started
        self._counts = {}
        with self._live(name):
            yield
        took = time.monotonic() - self._started
        self.seconds[name] = round(took, 3)
        self._events.append({"time": _now(), "stage": name, "seconds": round(took, 3), **self._counts})
        self.say(f"{name}: {total:,} in {took:.1f} s" if total else f"{name}: {took:.1f} s")
        logger.info("%s: %d in %.1f s, %.1f/s", name, total, took, total / max(took, 1e-9))

    def counts(self, counts: Mapping[str, int]) -> None:
        """Take the running stage's counts so far; called from another thread."""
        self._counts = dict(counts)
        if not _done(counts):
            self._working_since = time.monotonic()  # from here on rates mean something
        if self._bar is not None:
            self._bar.update(self._task, completed=self._share(), detail=self._line())
        elif self._show and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            line = f"{self._stage}: {self._line()}"
            if line != self._said:
                self.say(line)
                self._said = line

    def _share(self) -> float:
        """How much of the stage is done, from 0 to 1: chunks against those to expect from the bytes split so far.

        Documents would mislead: the longest come first.
        """
        found = self._counts
        expected = found.get("chunks", 0) * self._total_bytes / max(1, found.get("bytes", 0))
        return min(1.0, _done(found) / expected) if expected else 0.0

    def _line(self) -> str:
        found, took = self._counts, time.monotonic() - (self._working_since or self._started)
        done = _done(found)
        if not done:
            return "loading the models" if found.get("loading") or not found.get("workers") else "first chunks"
        share = self._share()
        left = f", {took * (1 - share) / share:,.0f} s left" if share else ""
        quarantined = f", {found['quarantined']:,} quarantined" if found.get("quarantined") else ""
        documents = f"{found.get('documents', 0):,}/{self._total:,} documents{quarantined}"
        return f"{done:,} chunks, {done / max(took, 1e-9):.1f}/s{left}, {documents}"

    @contextlib.contextmanager
    def _live(self, name: str) -> Iterator[None]:
        if not self._terminal:
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
        if self._total_bytes:
            columns += [BarColumn(), TaskProgressColumn()]
        columns += [TimeElapsedColumn(), TextColumn("{task.fields[detail]}")]
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar, self._task = bar, bar.add_task(name, total=1.0 if self._total_bytes else None, detail="")
            try:
                yield
            finally:
                self._bar = None

    def _record(self) -> None:
        assert self._storage is not None
        record = {
            "run_id": self._run_id,
            "updated_at": _now(),
            "stage": self._stage,
            "total": self._total,
            "counts": self._counts,
            "seconds": self.seconds,
        }
        self._storage.put(layout.run_file(self._run_id, "progress.json"), json.dumps(record).encode())

    def say(self, line: str) -> None:
        """One line for people."""
        if self._show:
            print(line, file=sys.stderr, flush=True)


def _done(counts: Mapping[str, int]) -> int:
    """Chunks that are through the slower of the two models."""
    return max(counts.get("generated", 0), counts.get("embedded", 0))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
