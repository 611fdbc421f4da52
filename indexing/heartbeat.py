"""Who is at work on a corpus: a small object per command that changes it, written again every few seconds.

Advisory: what is correct rests on the commit and the ledger. Two nightly runs do not both spend the night, and what removes
files keeps away from what is in work. Ages are told by the store's own clock, against an object written just now. A heartbeat
counts as dead when it is older than STALE_S, or at once if its process was one of this machine and is gone.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from enrichment.errors import OperationError, SituateError
from indexing import layout
from indexing.storage import Entry, MissingObjectError, Storage

logger = logging.getLogger(__name__)

Kind = Literal["refresh", "rollback", "gc", "purge"]
BEAT_S, STALE_S = 5.0, 60.0  # a dozen beats may fail before a run is taken for dead
FILE = "heartbeat.json"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One command at work. `elapsed_s` is how long it was when this was written: 0 means that it has only just begun."""

    run_id: str
    kind: Kind
    host: str
    process: str
    started_at: str
    elapsed_s: float
    modified: float = 0.0  # when it was last written, by the store's clock; not stored


class AlreadyRunningError(OperationError):
    """Another command is at work that this one must not run beside."""


def new_run_id() -> str:
    """Sorts by time, unique without asking anyone."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def beating(storage: Storage, run_id: str, kind: Kind, besides: frozenset[Kind] = frozenset()) -> Iterator[None]:
    """Be seen to be at work while this lasts. Raises AlreadyRunningError if a command of another kind than `besides` is.

    It is written before the others are read, so of two that begin at once at least one sees the other.
    """
    name = layout.run_file(run_id, FILE)
    started_at = datetime.now(UTC).isoformat()
    over, begun = threading.Event(), time.monotonic()

    def beat(elapsed_s: float) -> None:
        record = asdict(Heartbeat(run_id, kind, _host(), _process(os.getpid()), started_at, elapsed_s))
        del record["modified"]
        storage.put(name, json.dumps(record).encode())

    def keep_beating() -> None:
        while not over.wait(BEAT_S):
            try:
                beat(time.monotonic() - begun)
            except SituateError as error:  # the store may be back at the next beat; the work itself will say so if not
                logger.warning("no heartbeat: %s", error)

    beat(0.0)
    thread = threading.Thread(target=keep_beating, daemon=True, name="heartbeat")
    try:
        _refuse(storage, run_id, besides, started_at)
        thread.start()
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()
        with contextlib.suppress(SituateError):  # it goes stale by itself; what went wrong before is the news
            storage.delete(name)


def _refuse(storage: Storage, run_id: str, besides: frozenset[Kind], started_at: str) -> None:
    mine = (store_time(storage, run_id), started_at, run_id)
    for other in live(storage, run_id):
        # One that has only just begun, too, may see us: then the time decides which of the two goes on.
        before = other.elapsed_s > 0 or (other.modified, other.started_at, other.run_id) < mine
        if other.kind not in besides and before:
            raise AlreadyRunningError(
                f"a {other.kind} of {storage.uri} is in progress (run {other.run_id} on {other.host.partition('/')[0]}, "
                f"since {other.started_at[:19]}); wait for it, or stop it and wait {STALE_S:.0f} s"
            )


def began(heartbeat: Heartbeat) -> float:
    """When it began, by the store's own clock; a little early rather than late."""
    return heartbeat.modified - heartbeat.elapsed_s - BEAT_S


def live(storage: Storage, run_id: str) -> list[Heartbeat]:
    """The other commands at work on this corpus besides `run_id`, which must itself be beating, by run id."""
    now = store_time(storage, run_id)
    entries = [entry for entry in storage.list(layout.RUNS) if entry.name.endswith(f"/{FILE}")]
    found = [_read(storage, entry) for entry in entries if now - entry.modified <= STALE_S]
    return [other for other in found if other is not None and other.run_id != run_id and not _is_gone(other)]


def store_time(storage: Storage, run_id: str) -> float:
    """The time by the store's own clock, in seconds since 1970: that of the newest beat of `run_id`."""
    name = layout.run_file(run_id, FILE)
    for entry in storage.list(name):
        return entry.modified
    raise OperationError(f"{storage.uri}/{name} is gone while its run is at work; run the same command again")


def _read(storage: Storage, entry: Entry) -> Heartbeat | None:
    """A heartbeat; None if it ended just now."""
    try:
        return Heartbeat(**json.loads(storage.get(entry.name)), modified=entry.modified)
    except MissingObjectError:
        return None
    except (ValueError, TypeError) as error:
        raise OperationError(f"{storage.uri}/{entry.name} is no heartbeat ({error}); remove it") from error


def _is_gone(heartbeat: Heartbeat) -> bool:
    """Whether its process ran on this machine and does not any more. Of other machines nothing is known."""
    pid = int(heartbeat.process.partition(":")[0])
    return heartbeat.host == _host() and heartbeat.process != _process(pid)


def _host() -> str:
    """This machine since it was started, as this container sees it: process ids mean the same within one of these."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _process(pid: int) -> str:
    """A process by its id and when it started, so that a number that is used again is another; empty if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid}:{fields[19]}" if fields[0] not in "ZX" else ""
