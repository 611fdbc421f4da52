"""Erasure of one document, for good: as if it had never been in any snapshot that is kept.

Segments and manifests are otherwise never edited. Here every segment that holds the document, alive or dead, is written anew
without it (from Parquet; no model is called), the newest snapshot is published anew under the next number, and the older
manifests are replaced under their own numbers. Then ledger and runs are cleaned, and what no manifest lists any more is
removed. In this order a crash leaves readable snapshots, and the same command finishes: what was known of the document
lies in the old segments, which go last. No other command may be at work.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.errors import OperationError
from enrichment.strategies import UNGROUNDED
from indexing import compaction, dead, disk, layout, manifest, segments, tables
from indexing.dead import Dead
from indexing.local_files import LocalFiles
from indexing.manifest import Manifest, SegmentEntry
from indexing.segments import IndexOptions, Part
from indexing.storage import Storage
from indexing.traces import Known, redacted


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment without the document; `segment` is None if nothing is left of it. The masks say what of the old one stayed."""

    segment: SegmentEntry | None
    documents: np.ndarray
    rows: np.ndarray
    removed: pa.Table  # the documents that went: status, first_row, num_rows
    statuses: tuple[tuple[str, str | None], ...]  # status and reason of each row that went, in order of the old rows


def rewrite_segments(storage: Storage, known: Known) -> dict[str, Rewritten]:
    """Write every listed segment that holds the document anew without it, by the old segment's id."""
    found: dict[str, Rewritten] = {}
    for snapshot in snapshots(storage):
        for segment in snapshot.segments:
            if segment.id in known.segments and segment.id not in found:
                found[segment.id] = _rewrite(storage, segment, snapshot, known.document_id)
    return found


def snapshots(storage: Storage) -> Iterator[Manifest]:
    """All kept snapshots, oldest first."""
    for sequence in manifest.sequences(storage):
        yield manifest.load(storage, sequence)


def _rewrite(storage: Storage, segment: SegmentEntry, snapshot: Manifest, document_id: str) -> Rewritten:
    with disk.temporary("situate-erasure-") as work:
        paths = {name: _fetched(storage, segment, name, work) for name in compaction.REWRITTEN_FROM}
        listed = ["id", "status", "first_row", "num_rows"]
        documents = tables.read(paths[layout.DOCUMENTS], tables.DOCUMENTS, listed)
        rows = tables.read(paths[layout.ROWS], tables.ROWS, ["document_id", "status", "reason"])
        gone = Dead(*(pc.equal(ids, document_id).to_numpy() for ids in (documents["id"], rows["document_id"])))
        entry = None
        if not gone.documents.all():
            left = compaction.part(paths, gone, snapshot.dimension)
            entry = _build(storage, left, snapshot)
    removed = documents.filter(pa.array(gone.documents)).drop_columns(["id"])
    lost = rows.filter(pa.array(gone.rows))
    statuses = zip(lost["status"].to_pylist(), lost["reason"].to_pylist(), strict=True)
    return Rewritten(entry, ~gone.documents, ~gone.rows, removed, tuple(statuses))


def _build(storage: Storage, left: Part, snapshot: Manifest) -> SegmentEntry:
    """As any segment is built; the snapshot's settings are those that it was built with."""
    ids = left.documents["id"]
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in snapshot.config["index"].items()}
    span = (ids[0].as_py(), ids[-1].as_py())
    return segments.build_from(
        storage, [left], span, snapshot.dimension, IndexOptions(**settings), snapshot.dense.trained
    )


def _fetched(storage: Storage, segment: SegmentEntry, name: str, directory: Path) -> Path:
    """A file of a segment, checked; not through the cache, which is to hold nothing of this."""
    [listed] = [file for file in segment.files if file.name == name]
    path = storage.fetch(layout.segment(segment.id, name), directory / name)
    if disk.file_sha256(path) != listed.sha256:
        raise OperationError(
            f"{storage.uri}/{layout.segment(segment.id, name)} is damaged; restore it, then purge again"
        )
    return path


def rewrite_manifests(storage: Storage, known: Known, rewritten: Mapping[str, Rewritten]) -> tuple[int, ...]:
    """Publish the newest snapshot anew, then replace the others that named the document; the sequences that were touched."""
    found = list(snapshots(storage))
    changed = {old.sequence: _without(storage, old, known, rewritten) for old in found}
    touched = [old for old in found if changed[old.sequence] != old]
    if not touched:
        return ()
    if touched[-1] is found[-1]:
        newest = changed[found[-1].sequence]
        fresh = manifest.new_manifest(None, **{name: getattr(newest, name) for name in _CONTENT})
        manifest.publish(storage, replace(fresh, sequence=newest.sequence + 1, parent=newest.sequence))
    for old in touched:
        name = layout.manifest(old.sequence)
        before = storage.get(name)
        if manifest.from_json(before, name) != old or not storage.replace(
            name, changed[old.sequence].to_json(), before
        ):
            raise OperationError(f"{storage.uri}/{name} was changed meanwhile; run the same command again")
    return tuple(old.sequence for old in touched)


_CONTENT = (
    "run_id", "config", "fingerprints", "dimension", "counts", "segments", "dead", "rejected", "stale", "dense", "held",
)  # fmt: skip


def _without(storage: Storage, old: Manifest, known: Known, rewritten: Mapping[str, Rewritten]) -> Manifest:
    """The same snapshot as if the document had not been in it."""
    entries, bitmaps = [], dict(old.dead)
    counts = {name: dict(values) for name, values in old.counts.items()}
    for segment in old.segments:
        new = rewritten.get(segment.id)
        if new is None:
            entries.append(segment)
            continue
        bits = dead.read(storage, segment, bitmaps.pop(segment.id, None))
        _count_out(counts, new, bits)
        if new.segment is not None:
            entries.append(new.segment)
            left = Dead(bits.documents[new.documents], bits.rows[new.rows])
            if left.documents.any():
                bitmaps[new.segment.id] = dead.write(storage, new.segment, left)
    rejected, stale = (tuple(redacted(list(entries), known.document_id)) for entries in (old.rejected, old.stale))
    return replace(old, segments=tuple(entries), dead=bitmaps, counts=counts, rejected=rejected, stale=stale)


def _count_out(counts: dict[str, dict[str, int]], gone: Rewritten, bits: Dead) -> None:
    """Take what was alive of the document out of the counts, each from the first group that has any."""
    alive = ~bits.documents[~gone.documents]
    alive_rows = ~bits.rows[~gone.rows]
    for status in gone.removed["status"].filter(pa.array(alive)).to_pylist():
        _take(counts["documents"], ("total",), (status,), ("unchanged", "changed", "new"))
    for (status, reason), lives in zip(gone.statuses, alive_rows, strict=True):
        if lives:
            _take(counts["chunks"], ("total",), (status,), ("reused", "generated") if status in _PAID else ())
            word = (reason or "").partition(":")[0]
            if status == "ok" and word == UNGROUNDED:
                _take(counts["chunks"], ("ungrounded",))
            if status in ("fallback", "failed"):
                _take(counts.get("reasons", {}), (word,))


_PAID = ("ok", "fallback")


def _take(counts: dict[str, int], *groups: tuple[str, ...]) -> None:
    for group in groups:
        name = next((name for name in group if counts.get(name)), None)
        if name is not None:
            counts[name] -= 1


def remove_unlisted(storage: Storage) -> list[str]:
    """Remove every segment, bitmap and trained file that no manifest lists, and what killed writers left: nobody else works."""
    kept = {segment.id for snapshot in snapshots(storage) for segment in snapshot.segments}
    bitmaps = {
        layout.dead(segment_id, entry.sha256)
        for snapshot in snapshots(storage)
        for segment_id, entry in snapshot.dead.items()
    }
    removed = [entry.name for entry in storage.list(layout.SEGMENTS) if entry.name.split("/")[1] not in kept]
    removed += [entry.name for entry in storage.list(layout.DEAD) if entry.name not in bitmaps]
    shared = {layout.trained(s.dense.trained.id) for s in snapshots(storage) if s.dense.trained}
    removed += [entry.name for entry in storage.list(layout.TRAINED) if entry.name not in shared]
    for name in removed:
        storage.delete(name)
    for entry in list(storage.unfinished()):
        storage.discard(entry)
        removed.append(entry.name)
    for segment_id in {name.split("/")[1] for name in removed if name.startswith(layout.SEGMENTS)}:
        LocalFiles(storage).forget(segment_id)
    return removed
