"""The Ray wiring of a run: the only file that knows Ray Data. The steps are in `jobs/steps.py` and `jobs/vectors.py`.

references -> EnrichDocuments (one actor per model replica) -> StageVectors (embedding actors) -> summaries. Only references
enter and only summaries leave; text crosses Ray's object store once, between the two. A block of references goes to one
replica, so a document's prompts share their prefix there.
"""

import contextlib
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import OperationError, SituateError
from indexing.storage import Storage, is_remote, open_storage
from jobs import memory
from jobs.counting import count_blocks
from jobs.relay import Relay, RelayedEnrich, RelayedStage
from jobs.run import Run
from jobs.sources import Listing, scan_file

T = TypeVar("T")
WINDOW_DOCUMENTS = (
    1024  # longest first inside a window; parts then stay close to document order, for the segments' sake
)
_BLOCKS_IN_FLIGHT = 8  # that a replica works on at once: while one waits for storage, others feed the engine
_PARTS_IN_FLIGHT = 4  # at an embedder: enough for it until the next look at the workers
_BLOCK_BYTES, _BLOCK_DOCUMENTS = 1 << 20, 64  # of sources: a part's rows and vectors then take a few MB
_BLOCKS_PER_REPLICA = 16
_TRIES = 3
_TASK_TRIES = 8  # of a block: above what the relay needs to find a document that takes its worker along
_DRIVER_ENVIRONMENT = {
    # Its SIGSEGV handler takes the signal that a JVM in the same process uses, and the process dies.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
_LOCAL_ENVIRONMENT = {
    # Of a Ray that nobody looks into, its services would take an eighth of a core from an engine on a CPU.
    "RAY_enable_metrics_collection": "false",
    "RAY_event_stats": "false",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_prestart_worker_first_driver": "false",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_memory_monitor_refresh_ms": "1000",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}
_STEP_S = 0.5  # at most between looks at the workers, which Ray Data else takes as fast as it can
_STEP_SHARE = 0.01  # of the time that a run has taken: a short one need not wait
_SCAN_FILES = 64
_COMPACTED = 64  # blocks' summaries in a table of the driver's


@contextlib.contextmanager
def cluster(address: str | None, replicas: int = 1) -> Iterator[None]:
    """A Ray to run on: the one at `address` or in the environment (as in a submitted job), else one in this machine.

    The one here counts a CPU for each of the model's `replicas` and one for the embedder, however few cores they share: a
    worker that waits for a CPU would not be there at all.
    """
    remote = address or os.environ.get("RAY_ADDRESS")
    for name, value in (_DRIVER_ENVIRONMENT if remote else _DRIVER_ENVIRONMENT | _LOCAL_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    import ray
    from ray._private import ray_constants

    # Read from the environment when Ray is imported, which vLLM may have done long before.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    started, reported = not ray.is_initialized(), faulthandler.is_enabled()
    if started:
        ray.init(
            address=remote or "local",  # else Ray joins any cluster that it finds running on this machine
            num_cpus=None if remote else max(os.cpu_count() or 1, replicas + 1),
            include_dashboard=None if remote else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
            runtime_env=_environment(),
        )
        if not reported:
            faulthandler.disable()  # Ray enables it, and it would take the JVM's signal like Ray's own handler
    _quieten()
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints there what happens to its workers, some of it at the end
        try:
            yield
        finally:
            if started:
                ray.shutdown()


def scan(listing: Listing, max_bytes: int) -> pa.Table:
    """References to all records of all files, in no particular order."""
    import ray

    remote = ray.remote(num_cpus=1, max_retries=_TRIES)(_scan_files)
    root = listing.root if is_remote(listing.root) else str(Path(listing.root).absolute())
    groups = [listing.files[start : start + _SCAN_FILES] for start in range(0, len(listing.files), _SCAN_FILES)]
    found: list[pa.Table] = _results([remote.remote(root, group, max_bytes) for group in groups])
    return pa.concat_tables(found)


@dataclass(frozen=True, slots=True)
class Enrichment:
    """What became of the documents: a summary row each, in no particular order; what each replica said of itself."""

    summary: pa.Table
    replicas: list[dict[str, float]]
    object_store_bytes: dict[str, int]


def enrich_and_stage(run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> Enrichment:
    """Run all references through both steps."""
    import ray

    config = run.config
    model = config.model if config.context.asks_model else None
    replicas = model.replicas if model else 1
    cpus = int(ray.cluster_resources().get("CPU", 1))
    relay = Relay()
    dataset = ray.data.from_arrow(plan_blocks(refs, replicas))
    dataset = dataset.map_batches(
        RelayedEnrich,
        fn_constructor_args=(run, relay.end),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            min_size=replicas if model else 1,
            max_size=replicas if model else max(1, cpus // 4),
            max_tasks_in_flight_per_actor=_BLOCKS_IN_FLIGHT,  # no more: what waits at one replica, no other can take
        ),
        num_cpus=1 if model else 0,  # without a model it only reads and splits: the cores are the embedders'
        num_gpus=model.gpus_per_replica or None if model else None,
        max_concurrency=_BLOCKS_IN_FLIGHT,
        max_restarts=-1,  # bounded by the tries of each task: an actor restarts only to take its task again
        max_task_retries=_TASK_TRIES,
    )
    dataset = dataset.map_batches(
        RelayedStage,
        fn_constructor_args=(run, relay.end),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            min_size=1,
            max_size=max(replicas, cpus - replicas) if model else max(1, cpus),  # nodes that are yet to come count too
            max_tasks_in_flight_per_actor=_PARTS_IN_FLIGHT,
        ),
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=_TASK_TRIES,
    )
    stop = _paced(dataset)
    batches = _compacted(dataset.iter_batches(batch_size=None, batch_format="pyarrow"))
    found = relay.collect(batches, report, config.limits.stall_timeout_s, stop)
    summary = pa.concat_tables(found, promote_options="permissive")
    return Enrichment(summary, relay.facts(), object_store_bytes(dataset))


def _compacted(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables, in memory of their own: each small one else holds on to some that is Ray's."""
    left = iter(batches)
    while some := list(islice(left, _COMPACTED)):
        yield pa.concat_tables(some, promote_options="permissive").combine_chunks()


def _paced(dataset: Any) -> Callable[[], None]:
    """Slow down the steps of a dataset's execution, in which any number of blocks may come and go.

    Returns what ends the execution, which runs in another thread; after its end that does nothing.
    """
    from ray.data._internal.execution.execution_callback import ExecutionCallback

    asked: list[bool] = []  # not an Event: the context travels to the workers, and an Event does not
    began = time.monotonic()

    class Pace(ExecutionCallback):  # type: ignore[misc]  # it is not typed
        def on_execution_step(self, executor: Any) -> None:
            if asked:
                raise OperationError("the run was stopped")
            time.sleep(min(_STEP_S, _STEP_SHARE * (time.monotonic() - began)))

    dataset.context.custom_execution_callback_classes.append(Pace)
    return lambda: asked.append(True)


def object_store_bytes(dataset: Any) -> dict[str, int]:
    """What each step of an executed dataset put into Ray's object store, by Ray's name for it; the input is one."""
    found: dict[str, int] = {}
    summary = dataset.get_stats_summary()
    while summary:
        found |= {s.operator_name: int(s.output_size_bytes.sum) for s in summary.operators_stats if s.output_size_bytes}
        summary = next(iter(summary.parents), None)
    return found


def count(run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> pa.Table:
    """Count the work on all references, a core's share of the blocks in a task each."""
    import ray

    remote = ray.remote(num_cpus=1, max_retries=_TRIES)(count_blocks)
    blocks, cpus = plan_blocks(refs, 1), int(ray.cluster_resources().get("CPU", 1))
    shares = [blocks[place::cpus] for place in range(min(cpus, len(blocks)))]
    left, found = [remote.remote(run, share) for share in shares], []
    while left:
        (done,), left = ray.wait(left)
        found += _results([done])
        report({"documents": sum(table.num_rows for table in found), "chunks": 0})
    return pa.concat_tables(found)


def build_segments(run: Run, tasks: Sequence[Callable[[Storage], T]]) -> list[T]:
    """Build a segment per task, or measure one, side by side; in the order of the tasks."""
    import ray

    remote = ray.remote(num_cpus=1, max_retries=_TRIES)(_build_segment)
    built: list[T] = _results([remote.remote(run, task) for task in tasks])
    return built


def plan_blocks(refs: pa.Table, replicas: int) -> list[pa.Table]:
    """Cut references into blocks: windows in document order, longest first inside a window.

    A block is what one replica takes at once and what one staged part holds. Towards the end blocks get smaller with
    what is left, so that all replicas end together.
    """
    left_bytes = pc.sum(refs["num_bytes"]).as_py() or 0
    blocks = []
    for start in range(0, refs.num_rows, WINDOW_DOCUMENTS):
        window = refs.slice(start, WINDOW_DOCUMENTS).sort_by([("num_bytes", "descending"), ("id", "ascending")])
        first = size = 0
        for row, num_bytes in enumerate(window["num_bytes"].to_pylist()):
            most_bytes = min(_BLOCK_BYTES, left_bytes // (replicas * _BLOCKS_PER_REPLICA))
            if row > first and (size + num_bytes > most_bytes or row - first == _BLOCK_DOCUMENTS):
                blocks.append(window.slice(first, row - first))
                left_bytes -= size
                first, size = row, 0
            size += num_bytes
        blocks.append(window.slice(first))
        left_bytes -= size
    return blocks


def _scan_files(root: str, files: Sequence[Any], max_bytes: int) -> pa.Table:
    return pa.concat_tables([scan_file(root, file, max_bytes) for file in files])


def _build_segment(run: Run, task: Callable[[Storage], T]) -> T:
    run.enter()
    try:
        return task(open_storage(run.config.corpus))
    finally:
        memory.give_back()  # the next segment may be another worker's


def _results(futures: list[Any]) -> Any:
    """The results of tasks in their order; what a task raised is raised as it was."""
    import ray

    try:
        return ray.get(futures)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, SituateError):
            raise error.cause from error
        raise


def _environment() -> dict[str, Any]:
    """What the workers of a local Ray inherit besides the environment."""
    return {"env_vars": {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}}


def _quieten() -> None:
    """Ray Data's own bars and messages give way to ours."""
    import warnings

    import ray
    from ray.util.annotations import RayDeprecationWarning

    # An actor's bounds on restarts can only be given the way that Ray 2.64 will drop; the version is pinned.
    warnings.filterwarnings("ignore", category=RayDeprecationWarning)

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it would log, it raises as well
    # It asks for a report to Ray's developers also where a person stopped the run; what goes wrong is raised all the same.
    logging.getLogger("ray.data.exceptions").setLevel(logging.CRITICAL)
