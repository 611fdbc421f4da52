"""One interface over a directory and S3: immutable objects by name, created if absent, read by range.

Names are slash-separated keys that this program makes itself; no document id ever becomes a name. The S3 half is in
`indexing/s3.py`. Objects are never edited: `put` replaces a whole object at once, `create` decides a race.
"""

import contextlib
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from enrichment.errors import ConfigError, OperationError
from indexing import disk


class Entry(NamedTuple):
    """An object's name, its size in bytes, and when it was written by the store's own clock (seconds since 1970)."""

    name: str
    size_bytes: int
    modified: float = 0.0


class MissingObjectError(OperationError):
    """An object that should exist does not."""


class ShortObjectError(OperationError):
    """An object ends before the range that was asked for."""


class Storage(Protocol):
    """A flat namespace of objects below one URI."""

    uri: str

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole; a reader sees all of it or nothing."""

    def put_file(self, name: str, path: Path) -> None:
        """Write an object from a local file."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only if it is absent; False if another writer was first."""

    def replace(self, name: str, data: bytes, expected: bytes) -> bool:
        """Write an object that still holds `expected`; False if another writer changed or removed it."""

    def get(self, name: str) -> bytes:
        """Read an object whole. Raises MissingObjectError."""

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`. Raises MissingObjectError, or ShortObjectError where fewer are there."""

    def fetch(self, name: str, path: Path) -> Path:
        """Make an object available as a local file and return where: `path`, or the object itself on a local disk."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Objects whose name starts with `prefix`, sorted by name."""

    def delete(self, name: str) -> None:
        """Remove an object; absent is fine."""

    def keeps_versions(self) -> bool:
        """Whether what is replaced or deleted is kept as an older version."""

    def unfinished(self) -> Iterator[Entry]:
        """What writers that were killed left behind, in no listing: temporary files, parts of uploads."""

    def discard(self, entry: Entry) -> None:
        """Remove an entry of `unfinished`; absent is fine."""


class DirectoryStorage:
    """Objects as files below a directory. Writes are durable before they are visible."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _temporary(path, io.BytesIO(data)) as temporary:
            os.replace(temporary, path)
        _sync_directory(path.parent)

    def put_file(self, name: str, path: Path) -> None:
        target = self._path(name)
        with path.open("rb") as source, _temporary(target, source) as temporary:
            os.replace(temporary, target)
        _sync_directory(target.parent)

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with _temporary(path, io.BytesIO(data)) as temporary:
            try:
                os.link(temporary, path)  # fails if the name exists: the file system decides the race
            except FileExistsError:
                return False
        _sync_directory(path.parent)
        return True

    def replace(self, name: str, data: bytes, expected: bytes) -> bool:
        """No file system swaps a file by its content: who replaces must be alone, which the heartbeats see to."""
        try:
            if self.get(name) != expected:
                return False
        except MissingObjectError:
            return False
        self.put(name, data)
        return True

    def get(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError as error:
            raise MissingObjectError(f"{self.uri}/{name} does not exist") from error

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        try:
            with self._path(name).open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except FileNotFoundError as error:
            raise MissingObjectError(f"{self.uri}/{name} does not exist") from error
        if len(data) != length:
            raise ShortObjectError(f"{self.uri}/{name} is shorter than {offset + length} bytes: it is damaged")
        return data

    def fetch(self, name: str, path: Path) -> Path:
        return self._path(name)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        below = self._path(prefix.rpartition("/")[0]) if "/" in prefix else self.root
        found = (entry for entry in self._walk(below) if not entry.name.endswith(_TEMPORARY))
        yield from sorted(entry for entry in found if entry.name.startswith(prefix))

    def keeps_versions(self) -> bool:
        return False

    def unfinished(self) -> Iterator[Entry]:
        yield from sorted(entry for entry in self._walk(self.root) if entry.name.endswith(_TEMPORARY))

    def discard(self, entry: Entry) -> None:
        self.delete(entry.name)

    def _walk(self, below: Path) -> Iterator[Entry]:
        for directory, _, files in os.walk(below, onerror=_refuse):
            for file in files:
                path = Path(directory, file)
                try:
                    found = path.stat()
                except OSError:  # a link that leads nowhere, or a file that is gone: reading it will name it
                    yield Entry(path.relative_to(self.root).as_posix(), 0)
                    continue
                if stat.S_ISREG(found.st_mode):  # reading a pipe, a socket or a device may never end
                    yield Entry(path.relative_to(self.root).as_posix(), found.st_size, found.st_mtime)

    def delete(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.root:
                break
            try:
                parent.rmdir()  # only if it is empty: another writer may have put a file there just now
            except OSError:
                break

    def _path(self, name: str) -> Path:
        return self.root / name


_TEMPORARY = ".situate-tmp"
_FOLDER_TRIES = 10


@contextlib.contextmanager
def _temporary(path: Path, source: IO[bytes]) -> Iterator[Path]:
    """A durable copy of `source` beside `path`, to be moved or linked there; nothing is left of it, also on a full disk."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        with disk.writing(path):
            with _opened(temporary) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
                sink.flush()
                os.fsync(sink.fileno())
            yield temporary
    finally:
        with contextlib.suppress(OSError):  # where it could not be made, it cannot be removed
            temporary.unlink(missing_ok=True)


def _opened(path: Path) -> IO[bytes]:
    """A new file. Another command may remove the folder or one above, being empty, just when it was made: then once more."""
    for _ in range(_FOLDER_TRIES):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb")
    return path.open("xb")


def _refuse(error: OSError) -> None:
    """A folder that cannot be listed must not look empty; one that is none or not there (any more) is."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise OperationError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_remote(uri: str) -> bool:
    """Whether a URI can be reached from any machine."""
    return uri.startswith("s3://")


def read_file(uri: str) -> bytes:
    """One file by its path or `s3://bucket/name`. Raises what its store raises."""
    root, _, name = uri.rpartition("/")
    return open_storage(root or ".").get(name)


def open_storage(uri: str) -> Storage:
    """The store at a directory path or `s3://bucket/prefix`. Raises ConfigError for any other scheme and for a file."""
    if is_remote(uri):
        from indexing.s3 import S3Storage

        return S3Storage(uri)
    if "://" in uri:
        raise ConfigError(f"{uri} has a scheme that is not supported; use a directory or s3://bucket/prefix")
    if "\0" in uri or os.path.isfile(uri):
        raise ConfigError(f"{uri!r} is no directory; name a directory or s3://bucket/prefix")
    return DirectoryStorage(Path(uri))
