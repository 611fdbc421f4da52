"""The Ray wiring of a run: the only file that knows Ray Data. The steps themselves are in `jobs/steps.py`.

references -> EnrichDocuments (one actor per model replica) -> StageVectors (embedding actors) -> summaries. Only references
enter and only summaries leave; text crosses Ray's object store once, between the two. A block of references goes to one
replica, so a document's prompts share their prefix there.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from enrichment.errors import SituateError
from indexing import segments
from indexing.manifest import SegmentEntry
from indexing.storage import is_remote, open_storage
from jobs.relay import Relay, RelayedEnrich, RelayedStage
from jobs.sources import Listing, scan_file
from jobs.steps import Run

logger = logging.getLogger(__name__)

BYTES_MESSAGE = "%s put %d bytes into the object store"  # per step, what it handed on
WINDOW_DOCUMENTS = (
    1024  # longest first inside a window; parts then stay close to document order, for the segments' sake
)
_DOCUMENTS_IN_FLIGHT = 8  # blocks that a replica works on at once: while one waits for storage, others feed the engine
_BLOCK_BYTES, _BLOCK_DOCUMENTS = 1 << 20, 64  # of sources: a part's rows and vectors then take a few MB
_BLOCKS_PER_REPLICA = 16
_TRIES = 3
_DRIVER_ENVIRONMENT = {
    # Its SIGSEGV handler takes the signal that a JVM in the same process uses, and the process dies.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
_SCAN_FILES = 64


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """A Ray to run on: the one at `address` or in the environment (as in a submitted job), else one in this machine."""
    for name, value in _DRIVER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    started = not ray.is_initialized()
    if started:
        remote = address or os.environ.get("RAY_ADDRESS")
        ray.init(
            address=remote or "local",  # else Ray joins any cluster that it finds running on this machine
            num_cpus=None if remote else max(2, os.cpu_count() or 1),
            include_dashboard=None if remote else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
            runtime_env=_environment(),
        )
    _quieten()
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


def enrich_and_stage(run: Run, refs: pa.Table, report: Callable[[Mapping[str, int]], None]) -> pa.Table:
    """Run all references through both steps; summaries, one row per reference, in no particular order."""
    import ray

    config = run.config
    model = config.model if config.context.strategy == "situate" else None
    replicas = model.replicas if model else 1
    gpus = model.gpus_per_replica if model else 0
    cpus = int(ray.cluster_resources().get("CPU", 1))
    blocks = plan_blocks(refs, replicas)
    relay = Relay()
    dataset = ray.data.from_arrow(blocks)
    dataset = dataset.map_batches(
        RelayedEnrich,
        fn_constructor_args=(run, relay.end),
        batch_size=None,
        batch_format="pyarrow",
        concurrency=(replicas, replicas) if model else (1, max(1, cpus // 4)),
        num_cpus=1 if model else 0,  # without a model it only reads and splits: the cores are the embedders'
        num_gpus=gpus or None,
        max_concurrency=_DOCUMENTS_IN_FLIGHT,
        max_restarts=-1,  # bounded by the tries of each task: an actor restarts only to take its task again
        max_task_retries=_TRIES,
    )
    dataset = dataset.map_batches(
        RelayedStage,
        fn_constructor_args=(run, relay.end),
        batch_size=None,
        batch_format="pyarrow",
        concurrency=(
            1,
            max(replicas, cpus - replicas) if model else max(1, cpus),
        ),  # nodes that are yet to come count too
        num_cpus=1,
        max_restarts=-1,  # bounded by the tries of each task: an actor restarts only to take its task again
        max_task_retries=_TRIES,
    )
    found: list[pa.Table] = []
    with relay.watched(report):
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            found.append(batch)
    summary = dataset.get_stats_summary()
    while summary:
        for step in summary.operators_stats:
            logger.info(BYTES_MESSAGE, step.operator_name, step.output_size_bytes.sum)
        summary = next(iter(summary.parents), None)
    return pa.concat_tables(found, promote_options="permissive")


def build_segments(run: Run, groups: Sequence[tuple[str, str, Sequence[str]]], dimension: int) -> list[SegmentEntry]:
    """Build a segment per group of (first id, last id, parts), side by side; in the order of the groups."""
    import ray

    remote = ray.remote(num_cpus=1, max_retries=_TRIES)(_build_segment)
    futures = [remote.remote(run, first, last, parts, dimension) for first, last, parts in groups]
    built: list[SegmentEntry] = _results(futures)
    return built


def plan_blocks(refs: pa.Table, replicas: int) -> list[pa.Table]:
    """Cut references into blocks: windows in document order, longest first inside a window, enough blocks to balance.

    A block is what one replica takes at once and what one staged part holds.
    """
    total_bytes = sum(refs["num_bytes"].to_pylist())
    most_bytes = min(_BLOCK_BYTES, total_bytes // (replicas * _BLOCKS_PER_REPLICA) + 1)
    blocks = []
    for start in range(0, refs.num_rows, WINDOW_DOCUMENTS):
        window = refs.slice(start, WINDOW_DOCUMENTS).sort_by([("num_bytes", "descending"), ("id", "ascending")])
        first = size = 0
        for row, num_bytes in enumerate(window["num_bytes"].to_pylist()):
            if row > first and (size + num_bytes > most_bytes or row - first == _BLOCK_DOCUMENTS):
                blocks.append(window.slice(first, row - first))
                first, size = row, 0
            size += num_bytes
        blocks.append(window.slice(first))
    return blocks


def _scan_files(root: str, files: Sequence[Any], max_bytes: int) -> pa.Table:
    return pa.concat_tables([scan_file(root, file, max_bytes) for file in files])


def _build_segment(run: Run, first: str, last: str, parts: Sequence[str], dimension: int) -> SegmentEntry:
    run.enter()
    storage = open_storage(run.config.corpus)
    return segments.build(storage, run.id, parts, first, last, dimension, run.config.index)


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
    for name in ("ray.data", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
