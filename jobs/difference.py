"""What the sources hold against what the previous snapshot was made from: ids and hashes only, never texts."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from indexing import layout, tables
from indexing.manifest import Manifest
from indexing.storage import Storage
from jobs import sources


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
    before: dict[tuple[str, str], str] = {}
    for segment in previous.segments if previous else ():
        data = storage.get(layout.segment(segment.id, layout.DOCUMENTS))
        table = tables.read(data, tables.DOCUMENTS, columns=["id", "source", "source_sha256"])
        for entry in table.to_pylist():
            before[entry["id"], entry["source"]] = entry["source_sha256"]
    new = changed = unchanged_ = 0
    for ref in refs.select(["id", "file", "number", "sha256"]).to_pylist():
        known = before.pop((ref["id"], sources.source_name(ref["file"], ref["number"])), None)
        if known is None:
            new += 1
        elif known == ref["sha256"]:
            unchanged_ += 1
        else:
            changed += 1
    settings = previous is not None and dict(previous.fingerprints) != dict(fingerprints)
    return Changes(new, changed, unchanged_, len(before), settings)
