"""What earlier runs of a corpus took: their reports -> rates by which the next one is estimated."""

import json
from dataclasses import dataclass
from typing import Any

from indexing import layout
from indexing.storage import Storage

REPORT = "report.json"
_ASSUMED_SHARE = 0.75
"""Of `max_output_tokens`, where no run has written anything yet: what the demo's model writes about the handbook."""
_RUNS = 10  # the newest ones count: models and machines change


@dataclass(frozen=True, slots=True)
class Rates:
    """Per context `output_tokens`; `retried_share` of the computed prompt tokens again for second attempts; tokens read and
    written per second of enriching, None if no run says. `runs` is how many reports they come from, 0 for assumptions.
    """

    runs: int
    output_tokens: float
    retried_share: float
    tokens_per_s: float | None


def rates(storage: Storage, max_output_tokens: int) -> Rates:
    """From the newest runs that asked the model for something."""
    reports = [report for report in _reports(storage) if report["chunks"]["generated"]]
    if not reports:
        return Rates(0, _ASSUMED_SHARE * max_output_tokens, 0.0, None)
    generated = sum(report["chunks"]["generated"] for report in reports)
    tokens = {name: sum(report["tokens"][name] for report in reports) for name in ("computed", "output", "retries")}
    seconds = sum(report["seconds"]["enrich"] for report in reports)
    return Rates(
        runs=len(reports),
        output_tokens=round(tokens["output"] / generated, 2),
        retried_share=round(tokens["retries"] / max(1, tokens["computed"] - tokens["retries"]), 4),
        tokens_per_s=round((tokens["computed"] + tokens["output"]) / seconds, 1) if seconds else None,
    )


def _reports(storage: Storage) -> list[dict[str, Any]]:
    names = sorted(entry.name for entry in storage.list(layout.RUNS) if entry.name.endswith(f"/{REPORT}"))
    return [json.loads(storage.get(name)) for name in names[-_RUNS:]]
