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
        self._stage, self._total, self._started = "", 0, time.monotonic()
        self._last_line = 0.0
        self._bar: Any = None
        self._task: Any = None

    @contextlib.contextmanager
    def recording(self, storage: Storage, run_id: str) -> Iterator[None]:
        """Keep a record of the run in the store while it lasts; how it ended is its last word."""
        self._storage, self._run_id = storage, run_id
        over = threading.Event()

        def beat() -> None:
            while not over.wait(_RECORD_EVERY_S):
                self._record()

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
            self._record()

    def report(self, report: Mapping[str, Any]) -> None:
        """Write the run's report and events."""
        assert self._storage is not None
        events = "".join(json.dumps(event) + "\n" for event in self._events)
        self._storage.put(layout.run_file(self._run_id, "events.jsonl"), events.encode())
        self._storage.put(layout.run_file(self._run_id, "report.json"), json.dumps(report, indent=1).encode())

    @contextlib.contextmanager
    def stage(self, name: str, total: int) -> Iterator[None]:
        """Time a stage; `total` is the documents or files it has to do, 0 if that has no meaning."""
        self._stage, self._total, self._started = name, total, time.monotonic()
        self._last_line = self._started
        self._counts = {}
        with self._live(name, total):
            yield
        took = time.monotonic() - self._started
        self.seconds[name] = round(took, 3)
        self._events.append({"time": _now(), "stage": name, "seconds": round(took, 3), **self._counts})
        done = self._counts.get("documents", total)
        self._say(f"{name}: {done} in {took:.1f} s" if done else f"{name}: {took:.1f} s")
        logger.info("%s: %d in %.1f s, %.1f/s", name, done, took, done / max(took, 1e-9))

    def counts(self, counts: Mapping[str, int]) -> None:
        """Take the running stage's counts so far; called from another thread."""
        self._counts = dict(counts)
        if self._bar is not None:
            self._bar.update(self._task, completed=counts.get("documents", 0), detail=self._detail())
        elif self._show and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            done = counts.get("documents", 0)
            rate = done / max(time.monotonic() - self._started, 1e-9)
            left = f", {(self._total - done) / rate:.0f} s left" if rate else ""
            speed = f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
            waiting = "" if counts.get("workers") else ", loading the models"
            self._say(f"{self._stage}: {done}/{self._total} documents, {speed}{left}{waiting}{self._detail(', ')}")

    def _detail(self, lead: str = "") -> str:
        names = [
            name for name in ("enriched", "chunks", "generated", "embedded", "quarantined") if self._counts.get(name)
        ]
        text = ", ".join(f"{self._counts[name]:,} {name}" for name in names)
        return lead + text if text else ""

    @contextlib.contextmanager
    def _live(self, name: str, total: int) -> Iterator[None]:
        if not self._terminal:
            yield
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
        if total:
            columns += [
                BarColumn(),
                MofNCompleteColumn(),
                _rate_column(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[detail]}"),
            ]
        else:
            columns += [TimeElapsedColumn()]
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar, self._task = bar, bar.add_task(name, total=total or None, detail="")
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

    def _say(self, line: str) -> None:
        if self._show:
            print(line, file=sys.stderr, flush=True)


def _rate_column() -> Any:
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "-/s")

    return Rate()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
