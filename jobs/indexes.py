"""Which dense indexes a night builds: the kind, what is trained for it, and whether its recall is good enough to publish.

What is trained is kept from night to night. It is trained anew when the kind changes (by configuration, or by size), when more
than three quarters of the vectors are newer than it, which a corpus that grew fourfold has, and when all is made anew. Then
all segments follow, from Parquet, and the recall is measured. Nothing here asks a model or an embedder.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.compute as pc

from enrichment.errors import PublishGateError
from indexing import compaction, dense_kind, disk, layout, recall, tables, trained
from indexing.dense_kind import Kind
from indexing.manifest import DenseEntry, Manifest, SegmentEntry, TrainedEntry
from indexing.storage import Storage
from indexing.trained import Stored
from jobs.carrying import Carried
from jobs.config import Config
from jobs.difference import Plan
from jobs.retries import Settled

logger = logging.getLogger(__name__)

NEWER = 0.75
"""The share of vectors that came after the training, of which each counts as often as it came, above which it is repeated."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the segments of tonight's snapshot are built with; `queries`, (q, d) float16, if it was trained tonight."""

    entry: DenseEntry
    queries: Stored | None = None

    @property
    def lists(self) -> TrainedEntry | None:
        """The trained file that all segments share; None if they are flat."""
        return self.entry.trained


def is_due(previous: Manifest, config: Config, dimension: int) -> bool:
    """Whether the configuration asks for other indexes than the previous snapshot has. Raises ConfigError."""
    known = sum(segment.num_vectors for segment in previous.segments)
    return str(_kind(config, known, dimension, previous.dense)) != previous.dense.kind


def choose(
    storage: Storage, run_id: str, plan: Plan, settled: Settled, carried: Carried, config: Config, dimension: int
) -> Choice:
    """The kind for what is carried and what is new, and what it needs: trained before or now.

    Raises ConfigError if there are too few vectors for what is asked, or too many for the memory.
    """
    before = plan.previous.dense if plan.previous and not plan.settings else DenseEntry()
    new = pc.sum(settled.kept["num_vectors"]).as_py() or 0
    total = new + sum(segment.num_vectors for segment in carried.segments)
    kind = _kind(config, total, dimension, before)
    if not kind.lists:
        return Choice(DenseEntry())
    added = before.added + new
    is_old = added > NEWER * total and total >= kind.least_vectors()
    if str(kind) == before.kind and not is_old:
        return Choice(replace(before, added=added))
    found = trained.sample(
        _vectors(storage, run_id, settled, carried, dimension), total, dense_kind.TRAINED_PER_LIST * kind.lists
    )
    logger.info("training %s on %d of %d vectors", kind, len(found.vectors), total)
    entry = trained.train(storage, found.vectors, kind, total)
    return Choice(DenseEntry(str(kind), trained=entry), found.queries)


def _kind(config: Config, num_vectors: int, dimension: int, before: DenseEntry) -> Kind:
    asked = dense_kind.parse(config.index.dense)
    known, made = dense_kind.parse(before.kind), before.trained
    budget = None if config.index.memory_gb is None else config.index.memory_gb * 1e9
    return dense_kind.choose(
        asked, num_vectors, dimension, budget, (known, made.corpus_vectors) if known and made else None
    )


def _vectors(storage: Storage, run_id: str, settled: Settled, carried: Carried, dimension: int) -> Iterator[Stored]:
    """The vectors of tonight's snapshot, a part or a segment at a time."""
    for segment in carried.segments:
        table = compaction.live_vectors(storage, segment, carried.dead[segment.id], dimension)
        yield tables.as_matrix(table, dimension)
    for part in sorted(settled.kept["part"].unique().to_pylist()):
        with disk.temporary("situate-sample-") as work:
            path = storage.fetch(layout.staged(run_id, part, layout.VECTORS), work / layout.VECTORS)
            yield tables.as_matrix(tables.read(path, tables.vectors(dimension)), dimension)


def summary(entry: DenseEntry) -> dict[str, Any]:
    """What `refresh --json` says of the dense indexes."""
    found = {name: getattr(entry, name) for name in ("kind", "recall", "nprobe")}
    return {**found, "trained": entry.trained.id if entry.trained else None}


def measuring_tasks(choice: Choice, built: Sequence[SegmentEntry], dimension: int) -> list[recall.Task]:
    """What workers do to measure the recall: nothing unless the lists are tonight's, and then of all segments."""
    if choice.queries is None or choice.lists is None or not len(choice.queries):
        return []
    return [
        partial(recall.measure, segment=segment, dimension=dimension, entry=choice.lists, queries=choice.queries)
        for segment in built
    ]


def with_recall(choice: Choice, parts: Sequence[recall.Measured], config: Config) -> DenseEntry:
    """What the manifest says of the dense indexes. Raises PublishGateError if their recall is below the floor."""
    entry, floor = choice.entry, config.index.recall_floor
    if parts and choice.queries is not None:
        nprobe, found = recall.pick(recall.merged(parts), floor)
        entry = replace(entry, recall=round(found, 4), num_queries=len(choice.queries), nprobe=nprobe)
        logger.info("recall@%d of %s with %d lists: %.3f", recall.K, entry.kind, nprobe, found)
    if entry.recall < floor:
        raise PublishGateError(
            f"recall@{recall.K} of the dense indexes ({entry.kind}, {entry.nprobe} lists looked at) is {entry.recall:.3f},"
            f" below index.recall_floor ({floor:g}): nothing was published; set index.dense to flat, or lower it"
        )
    return entry
