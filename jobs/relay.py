"""From the workers to the driver while a dataset runs: counts for the progress line, and the failure that ended it.

Ray Data hands on only the text of what a worker raised; the relay hands on the error itself, so that the user reads its one
sentence and a ConfigError stays one.
"""

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from enrichment.errors import OperationError, SituateError
from jobs.steps import EnrichDocuments, Run, StageVectors

_POLL_S = 0.5


class Relay:
    """The driver's end: an actor that outlives no run."""

    def __init__(self) -> None:
        import ray

        self._actor = ray.remote(num_cpus=0)(_Board).remote()
        self.end = WorkerEnd(self._actor)

    @contextlib.contextmanager
    def watched(self, report: Callable[[Mapping[str, int]], None]) -> Iterator[None]:
        """Report the counts while the block runs; if Ray ends it, raise what the worker raised first, if one did."""
        import ray

        done = threading.Event()

        def poll() -> None:
            while not done.wait(_POLL_S):
                report(ray.get(self._actor.counts.remote()))

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        except ray.exceptions.RayError as error:
            failure: SituateError | None = ray.get(self._actor.failure.remote())
            if failure is None:
                raise
            raise failure from error
        finally:
            done.set()
            thread.join()
        report(ray.get(self._actor.counts.remote()))


class WorkerEnd:
    """A worker's end: travels with the work. Counts are sent together, a few times a second, not one by one."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._waiting: dict[str, int] = {}
        self._sent = 0.0

    def __call__(self, counts: Mapping[str, int]) -> None:
        """Add to the counts."""
        for name, number in counts.items():
            self._waiting[name] = self._waiting.get(name, 0) + number
        if time.monotonic() - self._sent >= _POLL_S:
            self.flush()

    def flush(self) -> None:
        """Send what waits; a lost message costs a progress line nothing."""
        waiting, self._waiting, self._sent = self._waiting, {}, time.monotonic()
        if waiting:
            self._actor.add.remote(waiting)

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Tell the driver what goes wrong in the block, and let it go wrong."""
        import ray

        try:
            yield
        except Exception as error:
            known = isinstance(error, SituateError)
            told = error if known else OperationError(f"a worker failed: {type(error).__name__}: {error}")
            ray.get(self._actor.fail.remote(told))
            raise


class RelayedEnrich:
    """EnrichDocuments as Ray runs it."""

    def __init__(self, run: Run, end: WorkerEnd) -> None:
        self._end = end
        with end.failures():
            self._step = EnrichDocuments(run, end)

    async def __call__(self, refs: pa.Table) -> AsyncIterator[pa.Table]:
        with self._end.failures():
            async for units in self._step(refs):
                self._end.flush()
                yield units


class RelayedStage:
    """StageVectors as Ray runs it."""

    def __init__(self, run: Run, end: WorkerEnd) -> None:
        self._end = end
        with end.failures():
            self._step = StageVectors(run, end)

    def __call__(self, units: pa.Table) -> pa.Table:
        with self._end.failures():
            summaries = self._step(units)
        self._end.flush()
        return summaries


class _Board:
    """The actor: what the workers said last."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._failure: SituateError | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        for name, number in counts.items():
            self._counts[name] = self._counts.get(name, 0) + number

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def fail(self, error: SituateError) -> None:
        self._failure = self._failure or error

    def failure(self) -> SituateError | None:
        return self._failure
