"""The run in progress or the last one, and the last success, through the store alone: nothing is written.

The manifest has the last word: a run whose snapshot is there is done, whatever its last sign of life says.
"""

import json
from datetime import UTC, datetime
from typing import Any

from enrichment.errors import ConfigError, OperationError
from indexing import heartbeat, layout, manifest
from indexing.manifest import Manifest
from indexing.storage import MissingObjectError, Storage, open_storage

ENDED = ("done", "stopped", "silent")
SILENT_S = 60  # a run records itself every few seconds
_PROGRESS = "progress.json"


def read(corpus: str) -> dict[str, Any]:
    """The newest run's progress, with its report once it is over. Raises ConfigError where nothing ever ran."""
    storage = open_storage(corpus)
    runs: dict[str, set[str]] = {}
    for entry in storage.list(layout.RUNS):
        _, run_id, *file = entry.name.split("/", 2)  # without a file of its own it is nothing that a run wrote
        runs.setdefault(run_id, set()).update(file)
    record = _newest(storage, runs)
    if record is None:
        raise ConfigError(f"{corpus} has no runs; start one with `situate refresh CONFIG`, or check the path")
    latest = manifest.latest(storage)
    own = _published_by(storage, record["run_id"])
    silent = (datetime.now(UTC) - datetime.fromisoformat(record["updated_at"])).total_seconds()
    record["silent_s"] = round(silent)
    if record["stage"] not in ENDED and silent > SILENT_S:
        record["stage"] = "silent"  # killed, or cut off from the store
    if own is not None and record["stage"] in ENDED:
        record["stage"] = "done"  # killed after the commit, perhaps: published all the same
    record["report"] = _json(storage, layout.run_file(record["run_id"], "report.json"))
    record["snapshot"] = latest.sequence if latest else None
    record["held"] = latest.held if latest else None
    record["last_success"] = _last_success(storage, runs, own or (latest if not _successes(runs) else None))
    return record


def _newest(storage: Storage, runs: dict[str, set[str]]) -> dict[str, Any] | None:
    """What the newest refresh said of itself last; one that has only just begun, or found nothing to do, says little."""
    for run_id in sorted(runs, reverse=True):
        if _PROGRESS in runs[run_id]:
            progress = _json(storage, layout.run_file(run_id, _PROGRESS))
            if progress is not None:
                return progress
        success = _json(storage, layout.run_file(run_id, layout.SUCCESS)) if layout.SUCCESS in runs[run_id] else None
        if success is not None:
            return _bare(run_id, success["finished_at"], "done")
        beat = _json(storage, layout.run_file(run_id, heartbeat.FILE)) if heartbeat.FILE in runs[run_id] else None
        if beat is not None and beat["kind"] == "refresh":
            begun = datetime.fromisoformat(beat["started_at"]).timestamp() + beat["elapsed_s"]
            return _bare(run_id, datetime.fromtimestamp(begun, UTC).isoformat(timespec="seconds"), "starting")
    return None


def _bare(run_id: str, updated_at: str, stage: str) -> dict[str, Any]:
    return {"run_id": run_id, "updated_at": updated_at, "stage": stage, "total": 0, "counts": {}, "seconds": {}}


def _successes(runs: dict[str, set[str]]) -> list[str]:
    return sorted(run_id for run_id, files in runs.items() if layout.SUCCESS in files)


def _last_success(storage: Storage, runs: dict[str, set[str]], published: Manifest | None) -> dict[str, Any] | None:
    """The newest refresh that ended well, with its age: recorded, or known by its snapshot alone."""
    found = []
    for run_id in _successes(runs)[-1:]:
        record = _json(storage, layout.run_file(run_id, layout.SUCCESS))
        if record is not None:
            found.append({name: record[name] for name in ("run_id", "finished_at", "snapshot", "published")})
    if published is not None:
        found.append(
            {
                "run_id": published.run_id,
                "finished_at": published.created_at,
                "snapshot": published.sequence,
                "published": True,
            }
        )
    if not found:
        return None
    newest = max(found, key=lambda record: datetime.fromisoformat(record["finished_at"]))
    age = datetime.now(UTC) - datetime.fromisoformat(newest["finished_at"])
    return {**newest, "age_s": round(age.total_seconds())}


def _published_by(storage: Storage, run_id: str) -> Manifest | None:
    """The first snapshot that carries a run's id: a rollback to it carries it once more, later. Only newer ones are read."""
    found = None
    for sequence in reversed(manifest.sequences(storage)):
        snapshot = manifest.load(storage, sequence)
        if snapshot.run_id == run_id:
            found = snapshot
        if datetime.fromisoformat(snapshot.created_at).strftime("%Y%m%dT%H%M%S") < run_id:
            break
    return found


def _json(storage: Storage, name: str) -> dict[str, Any] | None:
    try:
        record = json.loads(storage.get(name))
    except MissingObjectError:
        return None
    except ValueError as error:
        raise OperationError(f"{storage.uri}/{name} is damaged ({error}); remove it") from error
    if not isinstance(record, dict):
        raise OperationError(f"{storage.uri}/{name} is damaged (it holds no object); remove it")
    return record
