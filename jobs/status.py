"""The run in progress or the last one, through the store alone."""

import json
from datetime import UTC, datetime
from typing import Any

from enrichment.errors import ConfigError
from indexing import layout
from indexing.storage import MissingObjectError, open_storage

ENDED = ("done", "stopped", "silent")
SILENT_S = 60  # a run records itself every few seconds


def read(corpus: str) -> dict[str, Any]:
    """The newest run's progress, with its report once it is over. Raises ConfigError where nothing ever ran."""
    storage = open_storage(corpus)
    names = [entry.name for entry in storage.list(layout.RUNS) if entry.name.endswith("/progress.json")]
    if not names:
        raise ConfigError(f"{corpus} has no runs; start one with `situate refresh CONFIG`")
    record: dict[str, Any] = json.loads(storage.get(names[-1]))
    silent = datetime.now(UTC) - datetime.fromisoformat(record["updated_at"])
    record["silent_s"] = round(silent.total_seconds())
    if record["stage"] not in ENDED and silent.total_seconds() > SILENT_S:
        record["stage"] = "silent"  # killed, or cut off from the store
    try:
        record["report"] = json.loads(storage.get(layout.run_file(record["run_id"], "report.json")))
    except MissingObjectError:
        record["report"] = None
    return record
