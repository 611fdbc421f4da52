"""What a refresh did, as `refresh --json` prints it and the run's report keeps it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from indexing.manifest import Manifest
from jobs import counts, indexes
from jobs.config import Config
from jobs.difference import Plan
from jobs.progress import Progress


@dataclass(frozen=True, slots=True)
class Result:
    """What a refresh did; `as_dict` is `refresh --json`."""

    snapshot: int
    published: bool
    run_id: str
    corpus: str
    finished_at: str
    documents: Mapping[str, int]
    chunks: Mapping[str, int]
    tokens: Mapping[str, int]
    replicas: tuple[Mapping[str, float], ...]
    object_store_bytes: Mapping[str, int]
    reasons: Mapping[str, int]
    seconds: Mapping[str, float]
    exceeded: tuple[str, ...]
    rejected: tuple[Mapping[str, str], ...]
    stale: tuple[Mapping[str, Any], ...]
    dense: Mapping[str, Any]
    gate: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        record = asdict(self)
        for name in ("replicas", "exceeded", "rejected", "stale"):
            record[name] = list(record[name])
        return record


def unchanged(run_id: str, config: Config, previous: Manifest, plan: Plan, progress: Progress) -> Result:
    """Nothing to do: the previous snapshot stands."""
    counted = {name: dict(values) for name, values in previous.counts.items()}
    counted["documents"] |= asdict(plan.changes)
    counted["chunks"] |= {"generated": 0, "reused": counted["chunks"]["ok"] + counted["chunks"]["fallback"]}
    counted["tokens"] = dict.fromkeys(counted["tokens"], 0)
    return Result(
        previous.sequence,
        False,
        run_id=run_id,
        corpus=config.corpus,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **counted,
        replicas=(),
        object_store_bytes={},
        seconds=progress.seconds,
        exceeded=counts.withheld(config, plan.changes.withheld),
        rejected=previous.rejected,
        stale=previous.stale,
        dense=indexes.summary(previous.dense),
        gate=previous.gate,
    )
