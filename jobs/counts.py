"""Summaries of a run -> the counts of a snapshot, checked from end to end before anything is published."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import OperationError
from indexing.manifest import SegmentEntry
from indexing.staging import TOKEN_COUNTS
from jobs.config import Config
from jobs.difference import Changes
from jobs.steps import STATUSES

Counts = dict[str, dict[str, int]]


def count(summary: pa.Table, changes: Changes) -> dict[str, dict[str, int]]:
    """The counts of the snapshot: documents, chunks, tokens of this run, reasons of what was refused or failed."""
    statuses = _tally(summary["status"])
    documents = {
        "total": summary.num_rows,
        "new": changes.new,
        "changed": changes.changed,
        "unchanged": changes.unchanged,
        "deleted": changes.deleted,
        "stale": 0,
        "indexed": statuses["indexed"],
        "quarantined": statuses["quarantined"],
        "empty": statuses["empty"],
    }
    chunks = {"total": _sum(summary["num_rows"])}
    chunks |= {status: _sum(summary[f"chunks_{status}"]) for status in STATUSES}
    chunks["generated"] = _sum(summary["generated"])
    chunks["reused"] = chunks["ok"] + chunks["fallback"] - chunks["generated"]
    tokens = {name: _sum(summary[f"tokens_{name}"]) for name in TOKEN_COUNTS}
    tokens["computed"] = tokens["prompt"] - tokens["cached"]
    reasons: Counter[str] = Counter()
    for reason, number in _tally(pc.list_flatten(summary["reasons"])).items():
        reasons[reason.partition(":")[0]] += number
    return {"documents": documents, "chunks": chunks, "tokens": tokens, "reasons": dict(sorted(reasons.items()))}


def reconcile(refs: pa.Table, counts: Mapping[str, Mapping[str, int]], entries: Sequence[SegmentEntry]) -> None:
    """Refuse to publish unless documents and chunks add up from end to end."""
    chunks = counts["chunks"]
    for what, left, right in (
        ("documents read and enriched", refs.num_rows, counts["documents"]["total"]),
        ("documents enriched and in segments", counts["documents"]["total"], sum(e.num_documents for e in entries)),
        ("chunks and rows in segments", chunks["total"], sum(e.num_rows for e in entries)),
        ("chunks and their statuses", chunks["total"], sum(chunks[status] for status in STATUSES)),
    ):
        if left != right:
            raise OperationError(f"{what} do not add up ({left} and {right}): nothing was published; report this")


def rejected(summary: pa.Table) -> tuple[dict[str, str], ...]:
    """Quarantined documents by name, with their sources and reasons."""
    entries = summary.filter(pc.equal(summary["status"], "quarantined")).select(["id", "source", "reason"])
    return tuple(entries.sort_by([("id", "ascending"), ("source", "ascending")]).to_pylist())


def exceeded_limits(config: Config, counts: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """The limits that the published snapshot exceeds, as sentences."""
    asked = counts["chunks"]["ok"] + counts["chunks"]["fallback"] + counts["chunks"]["failed"]
    lost = counts["chunks"]["fallback"] + counts["chunks"]["failed"]
    shares = {
        "fallback": (lost / asked if asked else 0.0, config.limits.fallback),
        "quarantined": (
            counts["documents"]["quarantined"] / max(1, counts["documents"]["total"]),
            config.limits.quarantined,
        ),
    }
    return tuple(
        f"{share:.1%} are {name}, more than limits.{name} allows ({limit:.1%})"
        for name, (share, limit) in shares.items()
        if share > limit
    )


def _sum(column: pa.ChunkedArray) -> int:
    total: int | None = pc.sum(column).as_py()
    return total or 0


def _tally(column: pa.ChunkedArray) -> Counter[str]:
    return Counter({entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()})
