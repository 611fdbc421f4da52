"""The previous snapshot and what became of a night's work -> the segments of the next one.

Unchanged documents are carried by reference: their segment is listed again, with what died in it. Work becomes new
segments, compaction's included. Nothing here reads a text; the building itself is done by the workers (`Task`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexing import compaction, dead, segments
from indexing.dead import Dead
from indexing.manifest import DeadEntry, Manifest, SegmentEntry, TrainedEntry
from indexing.storage import Storage
from jobs.config import Config
from jobs.difference import Plan
from jobs.retries import Settled, integers

Task = Callable[[Storage], SegmentEntry]
"""Builds and uploads one segment; a worker carries it out."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Segments of the previous snapshot that still serve, and what is dead in each; `chosen` ones are to be rewritten."""

    segments: Sequence[SegmentEntry]
    dead: Mapping[str, Dead]
    chosen: Sequence[SegmentEntry]

    def kept(self) -> list[SegmentEntry]:
        """Those that the next snapshot lists."""
        return [segment for segment in self.segments if segment not in self.chosen]


def with_lists(carried: Carried, lists: TrainedEntry | None) -> Carried:
    """The same, with all segments to be rewritten that have other lists: every segment of a snapshot has the same ones."""
    wanted = lists.id if lists else None
    chosen = [s for s in carried.segments if s in carried.chosen or s.trained != wanted]
    return replace(carried, chosen=chosen)


def carry(storage: Storage, plan: Plan, settled: Settled, config: Config) -> Carried:
    """Mark what dies tonight, drop what is wholly dead, choose what is to be rewritten."""
    if plan.previous is None or plan.settings:
        return Carried([], {}, [])
    dying = plan.old.take(pa.array(settled.dying))
    owners, places, first_rows, num_rows = (
        integers(dying[name]) for name in ("segment", "place", "first_row", "num_rows")
    )
    found: dict[str, Dead] = {}
    for number, segment in enumerate(plan.previous.segments):
        own = owners == number
        before = dead.read(storage, segment, plan.previous.dead.get(segment.id))
        found[segment.id] = dead.with_documents(before, places[own], first_rows[own], num_rows[own])
    serving = [segment for segment in plan.previous.segments if not found[segment.id].documents.all()]
    chosen = compaction.choose(serving, found, config.index.rows_per_segment, config.compaction)
    return Carried(serving, found, chosen)


def staged_tasks(
    run_id: str, settled: Settled, config: Config, dimension: int, lists: TrainedEntry | None = None
) -> list[Task]:
    """The segments of what was worked on tonight."""
    return [
        partial(
            segments.build,
            run_id=run_id,
            parts=parts,
            first_id=first,
            last_id=last,
            dimension=dimension,
            options=config.index,
            refused=settled.refused,
            lists=lists,
        )
        for first, last, parts in cut_segments(settled.kept, config.index.rows_per_segment)
    ]


def compaction_tasks(
    plan: Plan,
    settled: Settled,
    carried: Carried,
    config: Config,
    dimension: int,
    lists: TrainedEntry | None = None,
) -> list[Task]:
    """The segments that take the place of the chosen ones."""
    if plan.previous is None or not carried.chosen:
        return []
    names = [segment.id for segment in plan.previous.segments]
    sources = {segment.id: (segment, carried.dead[segment.id]) for segment in carried.chosen}
    alive = np.ones(plan.old.num_rows, np.bool_)
    alive[settled.dying] = False
    parts = pa.array(names, pa.string()).take(plan.old["segment"].combine_chunks())
    table = plan.old.select(["id", "num_rows"]).append_column("part", parts).filter(pa.array(alive))
    table = table.filter(pc.is_in(table["part"], pa.array(list(sources))))
    return [
        partial(
            compaction.rewrite,
            sources=[sources[part] for part in parts],
            first_id=first,
            last_id=last,
            dimension=dimension,
            options=config.index,
            lists=lists,
        )
        for first, last, parts in cut_segments(table, config.index.rows_per_segment)
    ]


def listed_dead(storage: Storage, previous: Manifest | None, carried: Carried) -> dict[str, DeadEntry]:
    """Store what is dead in the carried segments, as the manifest lists it."""
    known = previous.dead if previous else {}
    return {
        segment.id: dead.write(storage, segment, carried.dead[segment.id], known.get(segment.id))
        for segment in carried.kept()
        if carried.dead[segment.id].documents.any()
    }


def cut_segments(summary: pa.Table, rows_per_segment: int) -> list[tuple[str, str, list[str]]]:
    """Cut the documents, in order of their ids, into runs of about `rows_per_segment` rows: (first id, last id, parts)."""
    ordered = summary.select(["id", "num_rows", "part"]).sort_by([("id", "ascending")]).combine_chunks()
    ids, parts, totals = ordered["id"], ordered["part"], np.cumsum(ordered["num_rows"].to_numpy())
    groups: list[tuple[str, str, list[str]]] = []
    first = rows = 0
    while first < len(ids):
        last = min(int(np.searchsorted(totals, rows + rows_per_segment)), len(ids) - 1)
        # An id that occurs twice (a quarantined duplicate) stays in one segment.
        while last + 1 < len(ids) and ids[last + 1] == ids[last]:
            last += 1
        inside = parts.slice(first, last + 1 - first).unique().to_pylist()
        groups.append((ids[first].as_py(), ids[last].as_py(), sorted(inside)))
        first, rows = last + 1, int(totals[last])
    return groups
