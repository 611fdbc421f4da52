"""The snapshots of a corpus: what each is, how two differ, and going back to one.

Nothing is read but manifests and, for a difference, the documents.parquet of segments that the two do not share unchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from enrichment.errors import ConfigError, OperationError
from indexing import heartbeat, layout, live, manifest
from indexing.heartbeat import Kind
from indexing.manifest import LostRaceError, Manifest
from indexing.storage import MissingObjectError, Storage

_COMPARED = ["id", "text_sha256", "title", "date", "metadata"]
_ATTEMPTS = 5
_BESIDES: frozenset[Kind] = frozenset({"refresh"})


def snapshots(storage: Storage) -> list[dict[str, Any]]:
    """One record per snapshot, oldest first; one that cannot be read has `error` instead."""
    found: list[dict[str, Any]] = []
    for sequence in manifest.sequences(storage):
        try:
            found.append(_record(manifest.load(storage, sequence)))
        except OperationError as error:
            found.append({"snapshot": sequence, "error": str(error)})
    if not found:
        raise ConfigError(f"{storage.uri} holds no snapshot; run `situate refresh CONFIG` first or check the path")
    return found


def _record(found: Manifest) -> dict[str, Any]:
    return {
        "snapshot": found.sequence,
        "parent": found.parent,
        "created_at": found.created_at,
        "run_id": found.run_id,
        "held": found.held,
        "documents": found.counts["documents"]["total"],
        "chunks": found.counts["chunks"]["total"],
        "segments": len(found.segments),
        "dead_rows": sum(entry.num_rows for entry in found.dead.values()),
        "dense": found.dense.kind,
        "recall": found.dense.recall,
        "size_bytes": sum(file.size_bytes for segment in found.segments for file in segment.files),
    }


def load(storage: Storage, sequence: int) -> Manifest:
    """One snapshot's manifest. Raises ConfigError naming those that there are if it is none of them."""
    try:
        return manifest.load(storage, sequence)
    except MissingObjectError as error:
        known = manifest.sequences(storage)
        there = f"snapshots {known[0]} to {known[-1]} are" if known else "no snapshot is"
        raise ConfigError(f"{storage.uri} holds no snapshot {sequence}; {there} kept") from error


def diff(storage: Storage, before: int, after: int) -> dict[str, Any]:
    """What changed from one snapshot to another: documents by id; counts, settings and fingerprints as
    [before, after] pairs.
    """
    old, new = load(storage, before), load(storage, after)
    left, right = _documents(storage, old, new), _documents(storage, new, old)
    return {
        "before": before,
        "after": after,
        "new": sorted(right.keys() - left.keys()),
        "changed": sorted(name for name in left.keys() & right.keys() if left[name] != right[name]),
        "deleted": sorted(left.keys() - right.keys()),
        "counts": {
            name: _pairs(old.counts.get(name, {}), new.counts.get(name, {}))
            for name in sorted(old.counts.keys() | new.counts.keys())
        },
        "settings": _pairs(_flat(old.config), _flat(new.config)),
        "fingerprints": _pairs(old.fingerprints, new.fingerprints),
    }


def _documents(storage: Storage, snapshot: Manifest, other: Manifest) -> dict[str, tuple[Any, ...]]:
    """The live documents of the segments in which the other snapshot does not have the same live documents."""
    shared = {segment.id: other.dead.get(segment.id) for segment in other.segments}
    segments = [s for s in snapshot.segments if s.id not in shared or shared[s.id] != snapshot.dead.get(s.id)]
    table: pa.Table = live.documents(storage, segments, snapshot.dead, [*_COMPARED, "status"])
    return {
        row["id"]: tuple(row[name] for name in _COMPARED)
        for batch in table.to_batches(max_chunksize=10_000)
        for row in batch.to_pylist()
        if row["status"] != "quarantined"
    }


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names that `--vary` gives them: `context.prompt`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = _flat(value) if isinstance(value, Mapping) else {}
        found |= {f"{name}.{key}": each for key, each in inner.items()} or {name: value}
    return found


def _pairs(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What differs, by name."""
    names = sorted(old.keys() | new.keys())
    return {name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)}


def roll_back(storage: Storage, sequence: int) -> Manifest:
    """Publish a snapshot that is the same as an older one, and holds. What it points at is not copied.

    The newest manifest may be damaged: that is what one flees from. Raises ConfigError if the older one is not kept,
    AlreadyRunningError while a gc or a purge is at work. The heartbeat is there before the old manifest is read, and a gc
    deletes a manifest before it looks for heartbeats: so a gc either sees this, or this sees that the manifest is gone.
    """

    def restored(newest: int) -> Manifest:
        target = load(storage, sequence)
        return _following(newest, target, held=target.held if target.held is not None else sequence)

    return _published(storage, restored)


def release(storage: Storage) -> Manifest:
    """Publish the held snapshot once more without its hold. Raises ConfigError if nothing is held."""

    def released(newest: int) -> Manifest:
        latest = manifest.load(storage, newest)
        if latest.held is None:
            raise ConfigError(f"{storage.uri} is not rolled back: snapshot {newest} holds nothing to release")
        return _following(newest, latest, held=None)

    return _published(storage, released)


def _published(storage: Storage, make: Callable[[int], Manifest]) -> Manifest:
    """Publish what `make(the newest snapshot's number)` gives; anew if another publisher is first."""
    if not manifest.sequences(storage):
        manifest.require_latest(storage)  # says so; and where there is no corpus, not even a heartbeat is left
    with heartbeat.beating(storage, heartbeat.new_run_id(), "rollback", besides=_BESIDES):
        for attempt in range(1, _ATTEMPTS + 1):
            candidate: Manifest = make(manifest.sequences(storage)[-1])
            _require_files(storage, candidate)
            try:
                manifest.publish(storage, candidate)
                break
            except LostRaceError:
                if attempt == _ATTEMPTS:
                    raise
    return candidate


def _following(newest: int, content: Manifest, held: int | None) -> Manifest:
    fresh = manifest.new_manifest(None, **{name: getattr(content, name) for name in _CONTENT})
    return replace(fresh, sequence=newest + 1, parent=newest, held=held)


_CONTENT = (
    "run_id", "config", "fingerprints", "dimension", "counts", "segments", "dead", "rejected", "stale", "dense", "gate",
)  # fmt: skip


def _require_files(storage: Storage, snapshot: Manifest) -> None:
    """Raise OperationError if a file that the snapshot lists is not there in its size; `verify` reads them, this does not."""
    wanted = {
        layout.segment(segment.id, file.name): file.size_bytes
        for segment in snapshot.segments
        for file in segment.files
    }
    wanted |= {layout.dead(segment_id, entry.sha256): entry.size_bytes for segment_id, entry in snapshot.dead.items()}
    if snapshot.dense.trained:
        wanted[layout.trained(snapshot.dense.trained.id)] = snapshot.dense.trained.size_bytes
    folders = [layout.segment(segment.id, "") for segment in snapshot.segments]
    folders += [layout.dead(segment_id, "") for segment_id in snapshot.dead] + [layout.TRAINED]
    there = {entry.name: entry.size_bytes for folder in folders for entry in storage.list(folder)}
    for name, size_bytes in wanted.items():
        if there.get(name) != size_bytes:
            raise OperationError(f"{storage.uri}/{name} is missing or cut short; choose another snapshot")
