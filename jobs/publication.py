"""What surrounds every refresh, whatever it finds: the store is tried, the heartbeat beats, a lost race is planned anew.

An attempt plans from the newest snapshot and ends with the commit. Another publisher's commit makes it lose the race; the next
attempt begins from that snapshot and pays for nothing again, because the ledger has all that this run wrote.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from indexing import heartbeat, layout, manifest, probe
from indexing.manifest import LostRaceError, Manifest
from indexing.storage import Storage

logger = logging.getLogger(__name__)

_ATTEMPTS = 5  # against other publishers: each loss means that another one published meanwhile


class Outcome(Protocol):
    """What is recorded of a refresh that ended well."""

    @property
    def snapshot(self) -> int: ...
    @property
    def published(self) -> bool: ...
    @property
    def exceeded(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Outcome)


def guarded(storage: Storage, attempt: Callable[[str, Manifest | None], R], single_writer: bool = False) -> R:
    """Refresh by `attempt(run id, newest manifest)`; success is recorded, also of a night without changes.

    The attempt follows the very manifest that was looked at for a hold, so a rollback in between makes it lose the race.

    Raises ConfigError for a store that cannot be published to, AlreadyRunningError while another refresh or a purge is at
    work, PublishGateError while a rollback holds, LostRaceError after too many attempts.
    """
    run_id = heartbeat.new_run_id()
    with heartbeat.beating(storage, run_id, "refresh", besides=frozenset({"gc", "rollback"})):
        probe.check(storage, layout.run_file(run_id, ""), single_writer)
        for number in range(1, _ATTEMPTS + 1):
            previous = manifest.latest(storage)
            manifest.refuse_held(storage, previous)
            try:
                result = attempt(run_id, previous)
                break
            except LostRaceError as lost:
                if number == _ATTEMPTS:
                    raise
                logger.warning("%s: planning anew (attempt %d)", lost, number + 1)
        _record(storage, run_id, result)
    return result


def _record(storage: Storage, run_id: str, result: Outcome) -> None:
    record: dict[str, Any] = {
        "run_id": run_id,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "snapshot": result.snapshot,
        "published": result.published,
        "exceeded": list(result.exceeded),
    }
    storage.put(layout.run_file(run_id, layout.SUCCESS), json.dumps(record).encode())
