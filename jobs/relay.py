"""Between the workers and the driver while a dataset runs: counts, facts of each replica, documents in work, and failures.

Ray Data hands on only the text of what a worker raised; the relay hands on the error itself, so that the user reads its one
sentence and a ConfigError stays one. It also knows which documents were in work when a worker died: those are tried one
by one, and one that takes its worker along each time is given up by name.
"""

import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from enrichment.errors import OperationError, SituateError
from enrichment.reaper import bound_exit
from enrichment.turns import Turns
from jobs.board import Board, StallClock
from jobs.run import Run
from jobs.steps import EnrichDocuments
from jobs.vectors import StageVectors

T = TypeVar("T")
ReportCounts = Callable[[Mapping[str, int]], None]

_POLL_S = 1.0  # each poll takes a moment of a core that an engine on a CPU computes with
_TRIES = 3  # of a document whose worker dies: once among others, then alone
_NAMED = 5  # documents in a diagnosis
_STOP_S = 60.0  # Ray Data ends a run in a second or two
_EXIT_S = 10


class Relay:
    """The driver's end: an actor beside the driver, so that it outlives any other node."""

    def __init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._actor = ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()
        self.end = WorkerEnd(self._actor)

    def collect(
        self, batches: Iterable[T], report: ReportCounts, stall_timeout_s: float, stop: Callable[[], None]
    ) -> list[T]:
        """All batches, reporting the workers' counts meanwhile.

        Raises what a worker raised first if Ray ends the run, and OperationError with a diagnosis if no count has moved for
        `stall_timeout_s`; the time until a first worker is there (up to half an hour) and in which a model is loaded does not
        count. However it ends, the batches have ended, if need be by `stop`: a thread that still asks Ray for them
        while Ray is shut down takes the whole process along, without a word.
        """
        arrived: queue.Queue[T | _End] = queue.Queue()
        drain = threading.Thread(target=_drain, args=(batches, arrived), daemon=True)
        drain.start()
        try:
            return self._collected(arrived, report, StallClock(stall_timeout_s))
        finally:
            stop()
            drain.join(_STOP_S)

    def _collected(self, arrived: "queue.Queue[T | _End]", report: ReportCounts, clock: "StallClock") -> list[T]:
        found: list[T] = []
        while True:
            try:
                item = arrived.get(timeout=_POLL_S)
            except queue.Empty:
                counts = self._ask("counts")
                report(counts)
                if clock.has_stalled(counts):
                    raise OperationError(self._diagnosis(counts, clock.waited_s)) from None
                continue
            if not isinstance(item, _End):
                found.append(item)
            elif item.error is None:
                report(self._ask("counts"))
                return found
            else:
                raise self._cause(item.error)

    def facts(self) -> list[dict[str, float]]:
        """What each replica said of itself last, in no particular order."""
        found: list[dict[str, float]] = self._ask("facts")
        return found

    def _cause(self, error: BaseException) -> BaseException:
        """The error of a worker behind one of Ray's, if a worker told one."""
        import ray

        told: SituateError | None = self._ask("failure") if isinstance(error, ray.exceptions.RayError) else None
        if told is None and isinstance(error, ray.exceptions.RayActorError):
            told = OperationError(
                "a worker died again and again, of no document: most likely the model and what runs beside it do not fit into"
                " the memory; see the logs of Ray, and take a smaller model or fewer replicas"
            )
        if told is None:
            return error
        told.__cause__ = error
        return told

    def _diagnosis(self, counts: Mapping[str, int], after_s: float) -> str:
        if not counts.get("workers"):
            return (
                f"no worker has started for {after_s:,.0f} s: the cluster lacks free CPUs or GPUs for model.replicas, or its"
                " nodes cannot start; see its dashboard"
            )
        names: list[str] = self._ask("in_work")
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        where = f"in work: {', '.join(names[:_NAMED])}{more}" if names else "no document is in work"
        return (
            f"nothing has moved for {after_s:,.0f} s (limits.stall_timeout_s) after {counts.get('generated', 0):,} contexts"
            f" and {counts.get('documents', 0):,} documents; {where}; what was written is kept: look at the engine, then"
            " run the same command again"
        )

    def _ask(self, what: str) -> Any:
        import ray

        return ray.get(getattr(self._actor, what).remote())


class WorkerEnd:
    """A worker's end: travels with the work. Counts are sent together, a few times a second, not one by one."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._name = secrets.token_hex(8)
        self._waiting: dict[str, int] = {}
        self._sent = 0.0

    def __call__(self, counts: Mapping[str, int]) -> None:
        """Add to the counts."""
        for name, number in counts.items():
            self._waiting[name] = self._waiting.get(name, 0) + number
        if time.monotonic() - self._sent >= _POLL_S or "loading" in counts:
            self.flush()

    def flush(self) -> None:
        """Send what waits; a lost message costs a progress line nothing."""
        waiting, self._waiting, self._sent = self._waiting, {}, time.monotonic()
        if waiting:
            self._actor.add.remote(waiting)

    def state(self, facts: Mapping[str, float]) -> None:
        """Say something of this replica, in the place of what it said before."""
        self._actor.state.remote(self._name, dict(facts))

    async def begun(self, refs: pa.Table) -> int:
        """How often at most one of the documents has been begun and never finished."""
        times: int = await self._actor.begun.remote(refs["id"].to_pylist())
        return times

    async def begin(self, refs: pa.Table) -> None:
        """Tell that documents are in work; when this returns it is known."""
        await self._actor.begin.remote(refs["id"].to_pylist())

    def spare(self, refs: pa.Table, by: int) -> None:
        """Count documents as begun so many times more, or less; when this returns it is known."""
        import ray

        ray.get(self._actor.spare.remote(refs["id"].to_pylist(), by))

    def finish(self, refs: pa.Table) -> None:
        """Tell that documents are done, whatever became of them."""
        self._actor.finish.remote(refs["id"].to_pylist())

    @contextmanager
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
        bound_exit(_EXIT_S)
        self._end = WorkerEnd(end._actor)  # with a name of its own
        self._in_work: list[pa.Table] = []
        self._loads = 0
        with self._end.failures():
            self._step = EnrichDocuments(run, self._report)
        self._turns = Turns()

    def _report(self, counts: Mapping[str, int]) -> None:
        """Pass counts on. A worker that dies while it loads its model does not die of the documents that wait for it."""
        if loading := counts.get("loading"):
            self._loads += loading
            for refs in self._in_work:
                self._end.spare(refs, by=-loading)
        self._end(counts)

    async def __call__(self, refs: pa.Table) -> AsyncIterator[pa.Table]:
        with self._end.failures():
            if await self._end.begun(refs) == 0:
                async with self._turns.beside_others():
                    yield await self._enriched(refs)
                return
            for row in range(refs.num_rows):  # a worker died of one of them: one by one, so that it is known which
                async with self._turns.alone():
                    yield await self._tried_again(refs.slice(row, 1))

    async def _tried_again(self, ref: pa.Table) -> pa.Table:
        if await self._end.begun(ref) < _TRIES:
            return await self._enriched(ref)
        self._end.finish(ref)
        return self._step.given_up(ref, "kills_worker", f"its worker died {_TRIES} times while it had it")

    async def _enriched(self, refs: pa.Table) -> pa.Table:
        await self._end.begin(refs)
        self._in_work.append(refs)
        if self._loads:
            self._end.spare(refs, by=-1)
        try:
            units = await self._step(refs)
        finally:
            self._in_work = [other for other in self._in_work if other is not refs]
        self._end.finish(refs)
        self._end.flush()
        self._end.state(self._step.facts())
        return units


class RelayedStage:
    """StageVectors as Ray runs it."""

    def __init__(self, run: Run, end: WorkerEnd) -> None:
        bound_exit(_EXIT_S)
        self._end = end
        with end.failures():
            self._step = StageVectors(run, end)

    def __call__(self, units: pa.Table) -> pa.Table:
        with self._end.failures():
            summaries = self._step(units)
        self._end.flush()
        return summaries


class _End:
    """Behind the last batch."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _drain(batches: Iterable[T], into: "queue.Queue[T | _End]") -> None:
    try:
        for batch in batches:
            into.put(batch)
    except BaseException as error:  # noqa: BLE001  # raised in the other thread
        into.put(_End(error))
    else:
        into.put(_End())
