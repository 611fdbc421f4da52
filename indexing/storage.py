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


class Entry(NamedTuple):
    """An object's name and its size in bytes."""

    name: str
    size_bytes: int


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
        found = []
        for directory, _, files in os.walk(below, onerror=_refuse):
            for file in files:
                path = Path(directory, file)
                name = path.relative_to(self.root).as_posix()
                if name.startswith(prefix) and not file.endswith(_TEMPORARY) and not _is_special(path):
                    found.append(Entry(name, _size_bytes(path)))
        yield from sorted(found)

    def delete(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.root or not parent.is_dir() or any(parent.iterdir()):
                break
            with contextlib.suppress(OSError):  # another writer may have put a file there just now
                parent.rmdir()

    def _path(self, name: str) -> Path:
        return self.root / name


_TEMPORARY = ".situate-tmp"


@contextlib.contextmanager
def _temporary(path: Path, source: IO[bytes]) -> Iterator[Path]:
    """A durable copy of `source` beside `path`, to be moved or linked there; nothing is left of it, also on a full disk."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
            sink.flush()
            os.fsync(sink.fileno())
        yield temporary
    except OSError as error:
        raise OperationError(f"{path} cannot be written: {error.strerror or error}; nothing was published") from error
    finally:
        with contextlib.suppress(OSError):  # where it could not be made, it cannot be removed
            temporary.unlink(missing_ok=True)


def _refuse(error: OSError) -> None:
    """A folder that cannot be listed must not look empty; one that is none or not there (any more) is."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise OperationError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _is_special(path: Path) -> bool:
    """Whether this is a pipe, a socket or a device: reading one may never end. A broken link is not: reading names it."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _size_bytes(path: Path) -> int:
    """A file's size; 0 for a link that leads nowhere, which reading will name."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_remote(uri: str) -> bool:
    """Whether a URI can be reached from any machine."""
    return uri.startswith("s3://")


def open_storage(uri: str) -> Storage:
    """The store at a directory path or `s3://bucket/prefix`. Raises ConfigError for any other scheme."""
    if is_remote(uri):
        from indexing.s3 import S3Storage

        return S3Storage(uri)
    if "://" in uri:
        raise ConfigError(f"{uri} has a scheme that is not supported; use a directory or s3://bucket/prefix")
    return DirectoryStorage(Path(uri))
