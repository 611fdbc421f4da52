"""A snapshot's files on this machine, each checked against the manifest before it is used.

A directory's files are used where they lie; those of S3 are fetched once into the user's cache, which any number of processes
share: a file appears there by a rename, whole and verified, and is never taken away from one that uses it. Damage is named,
never served.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from pathlib import Path

from enrichment import models
from enrichment.errors import OperationError
from indexing import layout, trained
from indexing.dense_files import Trained
from indexing.disk import file_sha256
from indexing.manifest import FileEntry, SegmentEntry, TrainedEntry
from indexing.storage import Storage

_FETCHING = "fetching"  # beside the segments: Lucene takes any `segments_1.part` in its folder for a commit of its own
_ABANDONED_S = 86_400


class LocalFiles:
    """The files of one store's segments. Any number of threads may use it; what it has verified it does not read again."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cache = models.cache_directory() / "corpora" / hashlib.sha256(storage.uri.encode()).hexdigest()[:24]
        self._known: set[tuple[str, int, int, int, int]] = set()

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
        if self._is_as_listed(cached, entry):
            return cached
        fetched = self._cache / _FETCHING / secrets.token_hex(8)
        try:
            path = self._storage.fetch(name, fetched)
            where = f"{self._storage.uri}/{name}"
            if not path.is_file():
                raise OperationError(f"{where} is missing; restore it or roll back to an earlier snapshot")
            if not self._is_as_listed(path, entry):
                raise OperationError(f"{where} differs from its manifest: it is damaged; restore it or roll back")
            if path != fetched:
                return path
            cached.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fetched, cached)
            return cached
        finally:
            fetched.unlink(missing_ok=True)
            self._sweep()

    def _is_as_listed(self, path: Path, entry: FileEntry | TrainedEntry) -> bool:
        """Whether a file has the listed size and hash. It is hashed once, and again when its inode, size or time changes."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        stamp = (entry.sha256, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp in self._known:
            return True
        if found.st_size != entry.size_bytes or file_sha256(path) != entry.sha256:
            return False
        self._known.add(stamp)
        return True

    def _sweep(self) -> None:
        """Remove what processes that were killed had fetched half."""
        with contextlib.suppress(OSError):
            for path in (self._cache / _FETCHING).iterdir():
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink(missing_ok=True)
