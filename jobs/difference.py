"""What the sources hold against what the previous snapshot was made from: ids and hashes only, never texts."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from indexing import layout, tables
from indexing.manifest import Manifest
from indexing.storage import Storage
from jobs import sources

_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Changes:
    """Documents against the previous snapshot, by id; `settings` says whether a setting changed that rows depend on."""

    new: int
    changed: int
    unchanged: int
    deleted: int
    settings: bool

    @property
    def any(self) -> bool:
        """Whether a new snapshot is due."""
        return self.settings or self.new + self.changed + self.deleted > 0


def compare(storage: Storage, previous: Manifest | None, refs: pa.Table, fingerprints: Mapping[str, str]) -> Changes:
    """Compare what the sources hold with what the previous snapshot was made from, by source hashes."""
    before = [
        tables.read(storage.get(name), tables.DOCUMENTS, ["id", "source", "source_sha256"], f"{storage.uri}/{name}")
        for name in (
            layout.segment(segment.id, layout.DOCUMENTS) for segment in (previous.segments if previous else ())
        )
    ]
    listed = heapq.merge(
        _sorted(pa.concat_tables(before)) if before else (),
        _sorted(refs.select(["id", "file", "number", "sha256"])),
        key=itemgetter(0),
    )
    new = changed = unchanged_ = deleted = 0
    for _, group in groupby(listed, key=itemgetter(0)):
        old: dict[str, str] = {}  # source -> hash
        found: dict[str, str] = {}
        for _, *source, sha256 in group:
            if len(source) == 1:
                old[source[0]] = sha256
            else:
                found[sources.source_name(*source)] = sha256
        if len(old) == len(found) == 1:  # an id is a document wherever it lies: a line may move, a file be renamed
            old = dict(zip(found, old.values(), strict=True))
        new += len(found.keys() - old.keys())
        deleted += len(old.keys() - found.keys())
        same = sum(old[source] == sha256 for source, sha256 in found.items() if source in old)
        unchanged_ += same
        changed += len(found.keys() & old.keys()) - same
    settings = previous is not None and dict(previous.fingerprints) != dict(fingerprints)
    return Changes(new, changed, unchanged_, deleted, settings)


def _sorted(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows in order of their ids; few of them are Python objects at a time, for there may be many millions."""
    for batch in table.sort_by("id").to_batches(max_chunksize=_BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
