"""A snapshot's files on this machine, each checked against the manifest before it is used.

A directory's files are used where they lie; those of S3 are fetched once into the user's cache. Damage is named, never served.
"""

import hashlib
import shutil
from pathlib import Path

from enrichment import models
from enrichment.errors import OperationError
from indexing import layout, trained
from indexing.dense_files import Trained
from indexing.disk import file_sha256
from indexing.manifest import FileEntry, SegmentEntry, TrainedEntry
from indexing.storage import Storage


class LocalFiles:
    """The files of one store's segments."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cache = models.cache_directory() / "corpora" / hashlib.sha256(storage.uri.encode()).hexdigest()[:24]

    def named(self, segment: SegmentEntry, name: str) -> Path:
        """One file of a segment by its name, verified."""
        for entry in segment.files:
            if entry.name == name:
                return self.verified(segment, entry)
        raise OperationError(f"segment {segment.id} has no {name} in its manifest: it is damaged")

    def below(self, segment: SegmentEntry, prefix: str) -> Path:
        """The directory of all files of a segment below `prefix`, verified."""
        paths = [self.verified(segment, entry) for entry in segment.files if entry.name.startswith(prefix)]
        if not paths:
            raise OperationError(f"segment {segment.id} has no {prefix} in its manifest: it is damaged")
        return paths[0].parent

    def trained(self, entry: TrainedEntry) -> Trained:
        """What the dense indexes share, verified."""
        return trained.opened(entry, self._verified(layout.trained(entry.id), entry))

    def forget(self, segment_id: str) -> None:
        """Remove this machine's copies of a segment's files."""
        shutil.rmtree(self._cache / layout.segment(segment_id, ""), ignore_errors=True)

    def verified(self, segment: SegmentEntry, entry: FileEntry) -> Path:
        """A local file that is as the manifest says. Raises OperationError naming the file that is not."""
        return self._verified(layout.segment(segment.id, entry.name), entry)

    def _verified(self, name: str, entry: FileEntry | TrainedEntry) -> Path:
        cached = self._cache / name
        if cached.is_file() and _is_as_listed(cached, entry):
            return cached
        cached.unlink(missing_ok=True)  # damage of the copy is no damage of the store
        path = self._storage.fetch(name, cached)
        where = f"{self._storage.uri}/{name}"
        if not path.is_file():
            raise OperationError(f"{where} is missing; restore it or roll back to an earlier snapshot")
        if not _is_as_listed(path, entry):
            cached.unlink(missing_ok=True)
            raise OperationError(f"{where} differs from its manifest: it is damaged; restore it or roll back")
        return path


def _is_as_listed(path: Path, entry: FileEntry | TrainedEntry) -> bool:
    return path.stat().st_size == entry.size_bytes and file_sha256(path) == entry.sha256
