"""Garbage collection: remove what no kept snapshot needs. Unless told to delete it only says what it would remove.

Kept are the newest N snapshots. Of the rest the manifests go first; only then is it asked what the manifests that are there now
list, and who is at work. Spared are: all that a manifest lists, whatever its age; bitmaps of a segment that a manifest lists,
because the same bitmap may be written again under the same name; all that is younger than `older_than_s` or than the oldest
command at work, by the store's own clock; the ledger, which is paid for. A rollback or a purge at work stops it.
"""

from dataclasses import dataclass
from typing import Any

from enrichment.errors import ConfigError
from indexing import heartbeat, layout, manifest
from indexing.heartbeat import Kind
from indexing.storage import Entry, Storage

KEEP, OLDER_THAN_S = 14, 24 * 3600.0
_BESIDES: frozenset[Kind] = frozenset({"refresh"})


@dataclass(frozen=True, slots=True)
class Garbage:
    """What is to be removed: snapshots by sequence, objects, and what killed writers left behind."""

    snapshots: tuple[int, ...]
    objects: tuple[Entry, ...]
    unfinished: tuple[Entry, ...]

    def as_dict(self, deleted: bool) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "deleted": deleted,
            "snapshots": list(self.snapshots),
            "objects": [entry.name for entry in (*self.objects, *self.unfinished)],
            "size_bytes": sum(entry.size_bytes for entry in (*self.objects, *self.unfinished)),
        }


def collect(storage: Storage, keep: int = KEEP, older_than_s: float = OLDER_THAN_S, delete: bool = False) -> Garbage:
    """Find what is garbage and, with `delete`, remove it. Raises ConfigError for a store without a snapshot."""
    if keep < 1:
        raise ConfigError(f"--keep is {keep}; it must be at least 1: the newest snapshot is being served")
    if older_than_s < 0:
        raise ConfigError(f"--older-than is {older_than_s}; it must not be negative")
    manifest.require_latest(storage)
    run_id = heartbeat.new_run_id()
    with heartbeat.beating(storage, run_id, "gc", besides=_BESIDES):
        known = manifest.sequences(storage)
        dropped = tuple(known[:-keep])
        if delete:
            for sequence in dropped:
                storage.delete(layout.manifest(sequence))
        garbage = _garbage(storage, run_id, keep, dropped, older_than_s)
        if delete:
            for entry in garbage.objects:
                storage.delete(entry.name)
            for entry in garbage.unfinished:
                storage.discard(entry)
    return garbage


def _garbage(storage: Storage, run_id: str, keep: int, dropped: tuple[int, ...], older_than_s: float) -> Garbage:
    """What nothing needs, in this order: who is at work, what lies there, what is needed. What comes later is younger."""
    working = heartbeat.live(storage, run_id)
    before = heartbeat.store_time(storage, run_id) - older_than_s
    before = min([before, *(heartbeat.began(other) for other in working)])
    folders = (layout.SEGMENTS, layout.DEAD, layout.TRAINED, layout.RUNS)
    old = [entry for folder in folders for entry in storage.list(folder) if entry.modified < before]
    unfinished = tuple(entry for entry in storage.unfinished() if entry.modified < before)
    kept = [manifest.load(storage, sequence) for sequence in manifest.sequences(storage) if sequence not in dropped]
    segments = {segment.id for snapshot in kept for segment in snapshot.segments}
    shared = {layout.trained(snapshot.dense.trained.id) for snapshot in kept if snapshot.dense.trained}
    at_work = {run_id, *(other.run_id for other in working)}
    known_runs = {_owner(entry) for entry in old if entry.name.startswith(layout.RUNS)}
    runs = at_work | {snapshot.run_id for snapshot in kept} | set(sorted(known_runs)[-keep:])

    def is_garbage(entry: Entry) -> bool:
        owner = _owner(entry)
        if entry.name.startswith(layout.TRAINED):
            return entry.name not in shared
        if not entry.name.startswith(layout.RUNS):
            return owner not in segments
        file = entry.name.removeprefix(layout.run_file(owner, ""))
        if file == layout.ERASURE:
            return False
        return owner not in runs or (owner not in at_work and file.startswith(layout.INTERMEDIATE))

    return Garbage(dropped, tuple(entry for entry in old if is_garbage(entry)), unfinished)


def _owner(entry: Entry) -> str:
    """The segment or the run that an object belongs to, or the name of a trained file."""
    return entry.name.split("/")[1]
