"""The live documents of a snapshot -> its counts, checked from end to end before anything is published."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import OperationError
from indexing.manifest import DeadEntry, SegmentEntry
from indexing.staging import TOKEN_COUNTS
from jobs.config import Config
from jobs.difference import Plan
from jobs.retries import Settled
from jobs.summaries import STATUSES

COLUMNS = (
    *("id", "source", "status", "reason", "num_rows"),
    *(f"chunks_{status}" for status in STATUSES),
    *("ungrounded", "reasons"),
)
"""Of the live documents, what is counted."""


def count(census: pa.Table, plan: Plan, settled: Settled, preemptions: int = 0) -> dict[str, dict[str, int]]:
    """The counts of the snapshot: documents and chunks of all its live documents (`census`, with COLUMNS), and why contexts
    were refused or failed; tokens of this run.

    Of the documents, total = new + changed + unchanged + stale + withheld + pending_changed = indexed + empty + quarantined;
    `renamed` are among the new and the deleted ones, pending new ones are in no snapshot yet. Of the tokens, computed = ideal
    + block_rounding + retries + evicted: each is a reason for reading a prompt token.
    """
    statuses, changes, stale = _tally(census["status"]), plan.changes, settled.tonight.values()
    documents = {
        "total": census.num_rows,
        "new": changes.new,
        "changed": changes.changed - sum(stale),
        "unchanged": changes.unchanged - sum(not changed for changed in stale),
        "deleted": changes.deleted,
        "renamed": changes.renamed,
        "stale": len(settled.stale),
        "withheld": changes.withheld,
        "pending_new": changes.pending_new,
        "pending_changed": changes.pending_changed,
        "indexed": statuses["indexed"],
        "quarantined": statuses["quarantined"],
        "empty": statuses["empty"],
    }
    summary = settled.kept
    chunks = {"total": _sum(census["num_rows"])}
    chunks |= {status: _sum(census[f"chunks_{status}"]) for status in STATUSES}
    chunks["ungrounded"] = _sum(census["ungrounded"])
    chunks["generated"] = _sum(summary["generated"])
    chunks["reused"] = chunks["ok"] + chunks["fallback"] - chunks["generated"]
    tokens = {name: _sum(summary[f"tokens_{name}"]) for name in TOKEN_COUNTS}
    tokens["computed"] = tokens["prompt"] - tokens["cached"]
    tokens["evicted"] = tokens["computed"] - tokens["ideal"] - tokens["block_rounding"] - tokens["retries"]
    tokens["preemptions"] = preemptions
    reasons = dict(sorted(_tally(pc.list_flatten(census["reasons"])).items()))
    return {"documents": documents, "chunks": chunks, "tokens": tokens, "reasons": reasons}


def reconcile(
    plan: Plan,
    settled: Settled,
    counts: Mapping[str, Mapping[str, int]],
    built: Sequence[SegmentEntry],
    segments: Sequence[SegmentEntry],
    dead: Mapping[str, DeadEntry],
) -> None:
    """Refuse to publish unless documents and chunks add up from end to end; `built` holds this run's work, `segments` all."""
    documents, chunks = counts["documents"], counts["chunks"]
    live_documents = sum(s.num_documents for s in segments) - sum(d.num_documents for d in dead.values())
    live_rows = sum(s.num_rows for s in segments) - sum(d.num_rows for d in dead.values())
    compared = sum(documents[name] for name in ("new", "changed", "unchanged", "stale", "withheld", "pending_changed"))
    for what, left, right in (
        ("documents listed or kept and in the snapshot", plan.num_listed + plan.num_kept, documents["total"]),
        ("documents and what became of them", documents["total"], compared),
        ("documents enriched and in new segments", settled.kept.num_rows, sum(s.num_documents for s in built)),
        ("documents and live ones in segments", documents["total"], live_documents),
        ("chunks and live rows in segments", chunks["total"], live_rows),
        ("chunks and their statuses", chunks["total"], sum(chunks[status] for status in STATUSES)),
    ):
        if left != right:
            raise OperationError(f"{what} do not add up ({left} and {right}): nothing was published; report this")


def replicas(facts: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], ...]:
    """Of each replica: the documents that it did, the seconds from its model's load to the last document of any replica, and
    its busy share: the part of them in which it had a request in work. Clocks of several machines may differ.
    """
    last_at = max((fact["last_at"] for fact in facts), default=0.0)
    return tuple(
        {
            "documents": int(fact["documents"]),
            "seconds": round(max(0.0, last_at - fact["ready_at"]), 2),
            "busy": round(fact["busy_s"] / max(1e-9, fact["busy_s"], last_at - fact["ready_at"]), 3),
            "preemptions": int(fact["preemptions"]),
        }
        for fact in sorted(facts, key=lambda fact: fact["ready_at"])
    )


def rejected(census: pa.Table) -> tuple[dict[str, str], ...]:
    """Quarantined documents by name, with their sources and reasons."""
    entries = census.filter(pc.equal(census["status"], "quarantined")).select(["id", "source", "reason"])
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
    ) + withheld(config, counts["documents"]["withheld"])


def withheld(config: Config, number: int) -> tuple[str, ...]:
    """What a refresh says that deletes nothing because too much is absent."""
    if not number:
        return ()
    return (
        f"{number:,} documents are absent from {config.documents.uri}, more than limits.deleted allows"
        f" ({config.limits.deleted:.0%}): none was deleted; check the source, or run the same command with `--allow-deletes`",
    )


def _sum(column: pa.ChunkedArray) -> int:
    total: int | None = pc.sum(column).as_py()
    return total or 0


def _tally(column: pa.ChunkedArray) -> Counter[str]:
    return Counter({entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()})
