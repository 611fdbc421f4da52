"""The manifest: the one file that defines a snapshot. Creating it is the commit.

manifest -> JSON object `manifests/<20-digit sequence>.json`. Readers list and take the last; nothing points to it. A
manifest lists every file with size and sha256, so a reader can check all it uses before it is used.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from enrichment.errors import ConfigError, OperationError, PublishGateError
from indexing import layout
from indexing.dense_kind import FLAT
from indexing.storage import MissingObjectError, Storage

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
"""1: no dead rows, nothing stale, nothing held. A reader of version 1 would show deleted documents.
2: flat dense indexes only. A reader of version 2 does not know the trained file that others need."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a segment; `rows` counts table rows or vectors, null for files without any."""

    name: str
    size_bytes: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An immutable segment. `digest` covers documents, originals, vectors and rows; `trained` is the id of the trained file
    that its dense index was built with, null for a flat one.
    """

    id: str
    digest: str
    num_documents: int
    num_rows: int
    num_vectors: int
    files: tuple[FileEntry, ...]
    trained: str | None = None


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """The bitmaps of a segment's dead documents and rows: `dead/<segment id>/<sha256>`, and how many bits are set."""

    sha256: str
    size_bytes: int
    num_documents: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class TrainedEntry:
    """What was trained for a corpus: `trained/<id>.faiss`, its kind as a FAISS factory string, the vectors that it was trained
    on, how many the corpus had then, and the mean score of a trained vector with its list's centroid.
    """

    id: str
    kind: str
    size_bytes: int
    sha256: str
    num_vectors: int
    corpus_vectors: int
    score: float


@dataclass(frozen=True, slots=True)
class DenseEntry:
    """The kind of the dense indexes. With lists: how many of them a search looks at, the recall@10 against exact search that
    was measured when they were made, with how many queries, and the vectors that came since. A flat index is exact.
    """

    kind: str = FLAT
    recall: float = 1.0
    num_queries: int = 0
    nprobe: int | None = None
    added: int = 0
    trained: TrainedEntry | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete state of the corpus."""

    sequence: int
    run_id: str
    created_at: str
    nonce: str
    parent: int | None
    config: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    dimension: int
    counts: Mapping[str, Mapping[str, int]]
    segments: tuple[SegmentEntry, ...]
    dead: Mapping[str, DeadEntry]  # by segment id
    rejected: tuple[Mapping[str, str], ...]
    stale: tuple[Mapping[str, Any], ...] = ()
    """Documents whose new version could not be used and whose previous one serves: id, source and source_sha256 of the new
    version, reason, and the nights in which it was tried."""
    dense: DenseEntry = DenseEntry()
    gate: Mapping[str, Any] = field(default_factory=dict)  # what a gate found; why it was forced open, if it was
    held: int | None = None  # the snapshot that was rolled back to, until the rollback is released

    def to_json(self) -> bytes:
        """The stored form: keys sorted, so that equal manifests are equal bytes; with the sha256 of all the rest."""
        record = {"kind": "situate.manifest", "format_version": FORMAT_VERSION, **asdict(self)}
        return _dumped({**record, "sha256": hashlib.sha256(_dumped(record)).hexdigest()})


def new_manifest(parent: Manifest | None, **fields: Any) -> Manifest:
    """A manifest that follows `parent`, with a fresh nonce by which its writer recognises it."""
    return Manifest(
        sequence=parent.sequence + 1 if parent else 1,
        parent=parent.sequence if parent else None,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        nonce=secrets.token_hex(16),
        **fields,
    )


def from_json(data: bytes, name: str) -> Manifest:
    """Parse a stored manifest. Raises OperationError naming it if it is damaged or of a newer version."""
    try:
        record = json.loads(data)
        if record["kind"] != "situate.manifest":
            raise OperationError(f"{name} is not a manifest of this program")
        if record["format_version"] > FORMAT_VERSION:
            raise OperationError(f"{name} is of a newer version than this program reads; upgrade situate")
        claimed = record.pop("sha256", None)  # absent from the first manifests; damage does not take a whole line out
        if claimed is not None and claimed != hashlib.sha256(_dumped(record)).hexdigest():
            raise ValueError("its content is not what its sha256 says")
        del record["kind"], record["format_version"]
        segments = tuple(
            SegmentEntry(**{**segment, "files": tuple(FileEntry(**file) for file in segment["files"])})
            for segment in record.pop("segments")
        )
        dead = {segment: DeadEntry(**entry) for segment, entry in record.pop("dead").items()}
        rejected, stale = tuple(record.pop("rejected")), tuple(record.pop("stale", ()))
        dense = _dense(record.pop("dense", None))
        return Manifest(segments=segments, dead=dead, rejected=rejected, stale=stale, dense=dense, **record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OperationError(f"{name} is damaged ({error}); restore it or roll back to an earlier snapshot") from error


def _dense(listed: dict[str, Any] | None) -> DenseEntry:
    """Flat where a manifest says nothing: up to version 2 there was nothing else."""
    if listed is None:
        return DenseEntry()
    trained = listed.pop("trained")
    return DenseEntry(**listed, trained=TrainedEntry(**trained) if trained else None)


def latest(storage: Storage) -> Manifest | None:
    """The newest snapshot's manifest, or None in an empty store."""
    known = sequences(storage)
    while known:
        try:
            return load(storage, known[-1])
        except MissingObjectError:  # collected since it was listed: then there are newer ones
            before, known = known, sequences(storage)
            if known == before:
                raise
    return None


def sequences(storage: Storage) -> list[int]:
    """The sequence numbers of all snapshots, in order."""
    found = (layout.sequence_of(entry.name) for entry in storage.list(layout.MANIFESTS))
    return sorted(sequence for sequence in found if sequence is not None)


def load(storage: Storage, sequence: int) -> Manifest:
    """The manifest of one snapshot."""
    name = layout.manifest(sequence)
    found = from_json(storage.get(name), f"{storage.uri}/{name}")
    if found.sequence != sequence:
        raise OperationError(
            f"{storage.uri}/{name} is damaged (it is snapshot {found.sequence}); restore it or roll back"
        )
    return found


def require_latest(storage: Storage) -> Manifest:
    """The newest snapshot's manifest. Raises ConfigError where there is none."""
    found = latest(storage)
    if found is None:
        raise ConfigError(f"{storage.uri} holds no snapshot; run `situate refresh CONFIG` first or check the path")
    return found


def find(storage: Storage, sequence: int | None = None) -> Manifest:
    """The newest manifest, or the one with the given sequence number. Raises ConfigError if there is none."""
    try:
        return require_latest(storage) if sequence is None else load(storage, sequence)
    except MissingObjectError as error:
        raise ConfigError(f"{storage.uri} holds no snapshot {sequence}; see what lies in {layout.MANIFESTS}") from error


class LostRaceError(OperationError):
    """Another writer published the sequence first: plan anew from its snapshot."""


def publish(storage: Storage, manifest: Manifest) -> None:
    """Create the manifest if it is absent: the commit. Raises LostRaceError if another writer published the
    sequence first, or a later one.

    Who won is decided by the nonce that is read back, never by the answer alone: an answer can be lost, and a write that is
    repeated after a lost answer finds its own manifest there. The look before it is for stores without conditional
    writes, which would replace what is there.
    """
    name = layout.manifest(manifest.sequence)
    if not _is_published(storage, manifest):
        newest = max(sequences(storage), default=0)
        if newest > manifest.sequence:  # ours was published by another and collected since
            raise LostRaceError(f"{storage.uri} is at snapshot {newest} already; run the same command again")
        try:
            storage.create(name, manifest.to_json())
        except OperationError as doubt:
            if not _is_published(storage, manifest):
                raise
            logger.info("%s/%s was published although the store said: %s", storage.uri, name, doubt)
        if not _is_published(storage, manifest):
            raise OperationError(f"{storage.uri}/{name} was written but is not there; check the store and run again")


def _is_published(storage: Storage, manifest: Manifest) -> bool:
    """Whether the sequence is taken by this very manifest; False if it is free. Raises LostRaceError if by another."""
    try:
        found = load(storage, manifest.sequence)
    except MissingObjectError:
        return False
    if found.nonce != manifest.nonce:
        where = f"{storage.uri}/{layout.manifest(manifest.sequence)}"
        raise LostRaceError(f"{where} was published by another run; run the same command again")
    return True


def check_lists(found: Manifest) -> None:
    """Raise OperationError if a segment's dense index has other lists than its snapshot says: it would find wrong ones."""
    wanted = found.dense.trained.id if found.dense.trained else None
    for segment in found.segments:
        if segment.trained != wanted:
            raise OperationError(
                f"snapshot {found.sequence} lists {wanted or 'no trained file'}, but its segment {segment.id} was built with"
                f" {segment.trained or 'none'}: it is damaged; publish again or roll back to an earlier snapshot"
            )


def refuse_held(storage: Storage, found: Manifest | None) -> None:
    """Raise PublishGateError if a rollback holds: a new snapshot would silently undo it."""
    if found is not None and found.held is not None:
        raise PublishGateError(
            f"{storage.uri} was rolled back to snapshot {found.held} and holds there; "
            f"`situate rollback {storage.uri} --release` lets refreshes publish again"
        )


def _dumped(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).encode()


def digest(*parts: bytes) -> str:
    """A sha256 over parts with their lengths, so that moving a boundary changes it."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()
