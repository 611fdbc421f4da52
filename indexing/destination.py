"""Where an export goes: one file, or a folder of numbered files, on a local disk or on S3; whole or not at all.

On a disk the target appears by one link or one rename. On S3 a single object appears at once; of a folder the record
`_export.json` is written last: a folder without it is not whole. What exists is never overwritten.
"""

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from enrichment.errors import ConfigError, OperationError
from indexing import disk
from indexing.disk import file_sha256
from indexing.storage import Storage, is_remote, open_storage

RECORD = "_export.json"
"""In a folder; readers of Parquet folders pass over names that begin so."""


class Destination(ABC):
    """The files of one export, written one after the other in a folder of this machine."""

    def __init__(self, work: Path, name: str) -> None:
        self._work, self._name = work, name
        self._open: _File | None = None
        self._files: list[dict[str, Any]] = []

    def write(self, table: pa.Table, form: str, part_bytes: int) -> None:
        """Append records; a file that has reached `part_bytes` is followed by the next."""
        if self._open is not None and self._open.size_bytes >= part_bytes:
            self._end_file()
        if self._open is None:
            path = self._work / f"part-{len(self._files):05d}.{form}"
            self._open = _File(path, table.schema if form == "parquet" else None)
        self._open.write(table)

    def finish(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Make the export visible; its files by name, records, size and sha256. `record` says what it is."""
        self._end_file()
        if len(self._files) == 1:
            self._publish_file(self._work / self._files[0]["name"])
            self._files[0]["name"] = self._name
        else:
            (self._work / RECORD).write_text(json.dumps({**record, "files": self._files}, indent=1))
            self._publish_folder()
        return self._files

    def _end_file(self) -> None:
        if self._open is not None:
            path, num_records = self._open.path, self._open.num_records
            self._open.close()
            self._open = None
            facts = {"records": num_records, "size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
            self._files.append({"name": path.name, **facts})
            self._ended(path)

    @abstractmethod
    def _ended(self, path: Path) -> None:
        """A file is whole."""

    @abstractmethod
    def _publish_file(self, path: Path) -> None:
        """Make the only file visible under the target's name."""

    @abstractmethod
    def _publish_folder(self) -> None:
        """Make all files visible, with their record."""


class _File:
    """An open file of records: Parquet of a schema, or lines of JSON. Durable once closed."""

    def __init__(self, path: Path, schema: pa.Schema | None) -> None:
        self.path, self.num_records = path, 0
        with disk.writing(path):
            self._sink: IO[bytes] = path.open("wb")
        self._parquet = (
            pq.ParquetWriter(
                self._sink,
                schema,
                compression="zstd",
                use_dictionary=[name for name in schema.names if name not in ("id", "text", "vector")],
                write_page_checksum=True,
            )
            if schema
            else None
        )

    @property
    def size_bytes(self) -> int:
        return self._sink.tell()

    def write(self, table: pa.Table) -> None:
        self.num_records += table.num_rows
        with disk.writing(self.path):
            if self._parquet is not None:
                self._parquet.write_table(table)
                return
            for record in table.to_pylist():
                # Pure ASCII: no character of a text can end a line or break the encoding.
                line = json.dumps({**record, "metadata": json.loads(record["metadata"])})
                self._sink.write(line.encode("ascii") + b"\n")

    def close(self) -> None:
        with disk.writing(self.path):
            if self._parquet is not None:
                self._parquet.close()
            self._sink.flush()
            os.fsync(self._sink.fileno())
            self._sink.close()


class _OnDisk(Destination):
    """The work folder lies beside the target, so that a link or a rename is enough."""

    def __init__(self, work: Path, target: Path) -> None:
        super().__init__(work, target.name)
        self._target = target

    def _ended(self, path: Path) -> None:
        """It stays where it is until all are."""

    def _publish_file(self, path: Path) -> None:
        with self._claiming():
            os.link(path, self._target)

    def _publish_folder(self) -> None:
        with self._claiming():
            os.rename(self._work, self._target)

    @contextlib.contextmanager
    def _claiming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._target.exists():
                raise _refusal(str(self._target)) from error
            raise OperationError(f"{self._target} cannot be made: {error.strerror}; see that it can be") from error


class _OnS3(Destination):
    """A file is uploaded when the next one begins: before that it may turn out to be the only one."""

    def __init__(self, work: Path, storage: Storage, name: str) -> None:
        super().__init__(work, name)
        self._storage = storage
        self._waiting: Path | None = None
        self._sent: list[str] = []

    def _ended(self, path: Path) -> None:
        self._send()
        self._waiting = path

    def _send(self) -> None:
        if self._waiting is not None:
            self._sent.append(f"{self._name}/{self._waiting.name}")
            self._storage.put_file(self._sent[-1], self._waiting)
            self._waiting.unlink()
            self._waiting = None

    def _publish_file(self, path: Path) -> None:
        _refuse_taken(self._storage, self._name)
        self._storage.put_file(self._name, path)

    def _publish_folder(self) -> None:
        self._send()
        self._storage.put_file(f"{self._name}/{RECORD}", self._work / RECORD)

    def remove(self) -> None:
        """Take back what was uploaded of an export that failed."""
        for name in self._sent:
            self._storage.delete(name)


@contextlib.contextmanager
def opened(target: str) -> Iterator[Destination]:
    """A destination at a path or `s3://bucket/name`. Raises ConfigError if something is there, or if it cannot be there."""
    if is_remote(target):
        parent, _, name = target.rstrip("/").rpartition("/")
        if parent == "s3:/":
            raise ConfigError(f"{target} names a bucket; write s3://bucket/name")
        storage = open_storage(parent)
        _refuse_taken(storage, name)
        with disk.temporary("situate-export-") as work:
            remote = _OnS3(work, storage, name)
            try:
                yield remote
            except BaseException:
                remote.remove()
                raise
        return
    path = Path(target)
    if "://" in target:
        raise ConfigError(f"{target} has a scheme that is not supported; use a path or s3://bucket/name")
    if path.exists() or path.is_symlink():
        raise _refusal(target)
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no directory; make it, or export to another path")
    with disk.temporary(f".{path.name}.situate-export-", within=path.parent) as work:
        (work / "files").mkdir()  # with the permissions that files of this user get
        yield _OnDisk(work / "files", path)


def _refuse_taken(storage: Storage, name: str) -> None:
    folder = next(iter(storage.list(f"{name}/")), None)
    same = next(iter(storage.list(name)), None)  # the shortest name comes first
    if folder is not None or (same is not None and same.name == name):
        raise _refusal(f"{storage.uri}/{name}")


def _refusal(target: str) -> ConfigError:
    return ConfigError(f"{target} exists: an export overwrites nothing; remove it or export to another path")
