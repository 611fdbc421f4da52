"""What failed before and what failed tonight: when it is tried again, and which version serves meanwhile.

Failed results are not paid work. A document that was quarantined, or that has chunks without an output, is tried in up to
TRIES nights, also when nothing else changed; then only a new version of it or `--retry-failed` has it tried again, which also
asks once more for what a guard refused. What follows from the bytes alone is not tried again.

A document that served before and cannot be used now is stale: the previous version keeps serving, the manifest says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from indexing.manifest import Manifest
from jobs.sources import source_names
from jobs.stored import FORMAT

if TYPE_CHECKING:
    from jobs.difference import Plan

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
Stale = Mapping[str, Any]

TRIES = 3
_OF_BYTES = ("undecodable", "no_text", "no_spans", "bad_spans", "too_large", "duplicate_id")
"""Reasons that the bytes and the settings decide: the next night would find the same."""


def due_again(refs: pa.Table, old: pa.Table, ref_of: Rows, old_of: Rows, same: Mask, retry_failed: bool) -> Mask:
    """Which of the unchanged documents failed, in part or whole, and are to be tried tonight."""
    quarantined = mask(pc.equal(old["status"], "quarantined"))
    failed = integers(old["chunks_failed"]) > 0
    if retry_failed:
        due = quarantined | failed | (integers(old["chunks_fallback"]) > 0)
    else:
        codes = pc.replace_substring_regex(pc.fill_null(old["reason"], ""), "(?s):.*$", "")
        by_bytes = mask(pc.is_in(codes, pa.array(_OF_BYTES)))
        due = ((quarantined & ~by_bytes) | failed) & (integers(old["tries"]) < TRIES)
    known = mask(pc.is_valid(refs["problem"]))  # seen when the sources were read, as every night
    again = same.copy()
    again[same] = due[old_of[same]] & ~known[ref_of[same]]
    return again


def before(previous: Manifest | None, refs: pa.Table, ref_of: Rows, candidates: Mask) -> Rows:
    """For each candidate, on how many nights this very version of it failed while an older one served; 0 for all else."""
    entries = {entry["id"]: entry for entry in (previous.stale if previous else ())}
    tries = np.zeros(len(ref_of), np.int64)
    if entries:
        known = mask(pc.is_in(refs["id"], pa.array(list(entries), pa.string())))
        for pair in np.flatnonzero(candidates)[known[ref_of[candidates]]].tolist():
            row = int(ref_of[pair])
            entry = entries[refs["id"][row].as_py()]
            if entry["source_sha256"] == refs["sha256"][row].as_py():
                tries[pair] = entry["tries"]
    return tries


def still_stale(
    previous: Manifest | None, refs: pa.Table, waiting: Rows, old: pa.Table, sheltered: Rows
) -> tuple[Stale, ...]:
    """The entries of documents that keep their previous version without a try: given up, or in a file that is unreadable."""
    names = set(refs["id"].take(pa.array(waiting)).to_pylist())
    kept = [entry for entry in (previous.stale if previous else ()) if entry["id"] in names]
    for row in old.select(["id", "source"]).take(pa.array(sheltered)).to_pylist():
        reason = f"unreadable: {row['source']} is gone, but it may lie in what could not be read of a file of several"
        kept.append({"id": row["id"], "source": row["source"], "source_sha256": "", "reason": reason, "tries": 1})
    return tuple(sorted(kept, key=lambda entry: str(entry["id"])))


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a night's work.

    `kept` are the summaries of what goes into segments; `refused` names, by (part, id, source), the staged records that do
    not; `dying` are the rows of `Plan.old` that are dead from now on; `again` are references to the stored versions
    of stale documents, which a change of settings has worked on anew.
    """

    kept: pa.Table
    refused: frozenset[tuple[str, str, str]]
    stale: tuple[Stale, ...]
    tonight: Mapping[str, bool]  # id of what became stale tonight -> whether its source had changed
    dying: Rows
    again: Rows


def settle(plan: "Plan", summary: pa.Table) -> Settled:
    """Decide for every document that failed whether its previous version serves on."""
    lost = summary.filter(pc.equal(summary["status"], "quarantined"))
    rows = _work_rows(plan, lost)
    is_new = [row < 0 or _served(plan, int(row)) < 0 for row in rows]
    stale, refused, serving, tonight = [], set(), [], {}
    for entry, row, new in zip(lost.to_pylist(), rows, is_new, strict=True):
        if not new:
            tries = plan.work["tries"][row].as_py()
            stale.append({name: entry[name] for name in ("id", "source", "source_sha256", "reason")} | {"tries": tries})
            refused.add((entry["part"], entry["id"], entry["source"]))
            old = int(plan.replaces[row])
            serving.append(old)
            tonight[entry["id"]] = plan.work["sha256"][row] != plan.old["source_sha256"][old]
    replaced = plan.replaces[plan.replaces >= 0]
    dying = np.setdiff1d(np.union1d(plan.gone, replaced), np.array(serving, np.int64))
    return Settled(
        without(summary, refused),
        frozenset(refused),
        tuple(sorted((*plan.stale, *stale), key=lambda entry: str(entry["id"]))),
        tonight,
        dying,
        np.array(serving if plan.settings else [], np.int64),
    )


def resettle(first: Settled, summary: pa.Table) -> Settled:
    """With the summaries of the stored versions that a change of settings had worked on anew: one that fails too is lost."""
    lost = set(summary["id"].filter(pc.equal(summary["status"], "quarantined")).to_pylist())
    return Settled(
        pa.concat_tables([first.kept, summary]),
        first.refused,
        tuple(entry for entry in first.stale if entry["id"] not in lost),
        {name: changed for name, changed in first.tonight.items() if name not in lost},
        first.dying,
        first.again[:0],
    )


def _served(plan: "Plan", row: int) -> int:
    """The row of `Plan.old` that a reference of the work would replace if that is fit to serve on, else -1."""
    old = int(plan.replaces[row])
    is_stored = plan.work["format"][row].as_py() == FORMAT  # there is nothing older to fall back to
    return -1 if old < 0 or is_stored or plan.old["status"][old].as_py() == "quarantined" else old


def _work_rows(plan: "Plan", lost: pa.Table) -> list[int]:
    """The rows of the plan's work that summaries are of."""
    names = mask(pc.is_in(plan.work["id"], lost["id"].combine_chunks()))
    places = np.flatnonzero(names)
    picked = plan.work.take(pa.array(places))
    keys = zip(picked["id"].to_pylist(), source_names(picked).to_pylist(), strict=True)
    by_key = dict(zip(keys, places.tolist(), strict=True))
    return [by_key[key] for key in zip(lost["id"].to_pylist(), lost["source"].to_pylist(), strict=True)]


def without(summary: pa.Table, refused: set[tuple[str, str, str]]) -> pa.Table:
    """The summaries but for the refused ones."""
    if not refused:
        return summary
    keys = zip(*(summary[name].to_pylist() for name in ("part", "id", "source")), strict=True)
    return summary.filter(pa.array([key not in refused for key in keys]))


def integers(column: pa.ChunkedArray | pa.Array) -> Rows:
    """A column without nulls as `(n,) int64`."""
    return np.asarray(column).astype(np.int64)


def mask(column: pa.ChunkedArray | pa.Array) -> Mask:
    """A Boolean column as `(n,) bool`; null is False."""
    return np.asarray(pc.fill_null(column, False)).astype(np.bool_)


def equal(left: pa.ChunkedArray, left_rows: Rows, right: pa.ChunkedArray, right_rows: Rows) -> Mask:
    """Whether picked values of two columns are the same, pair by pair."""
    return mask(pc.equal(left.take(pa.array(left_rows)), right.take(pa.array(right_rows))))
