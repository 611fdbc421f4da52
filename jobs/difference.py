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
    before: dict[str, dict[str, str]] = {}  # id -> source -> hash
    for segment in previous.segments if previous else ():
        name = layout.segment(segment.id, layout.DOCUMENTS)
        columns = ["id", "source", "source_sha256"]
        table = tables.read(storage.get(name), tables.DOCUMENTS, columns, f"{storage.uri}/{name}")
        for entry in table.to_pylist():
            before.setdefault(entry["id"], {})[entry["source"]] = entry["source_sha256"]
    now: dict[str, dict[str, str]] = {}
    for ref in refs.select(["id", "file", "number", "sha256"]).to_pylist():
        now.setdefault(ref["id"], {})[sources.source_name(ref["file"], ref["number"])] = ref["sha256"]
    new = changed = unchanged_ = deleted = 0
    for document_id in before.keys() | now.keys():
        old, found = before.get(document_id, {}), now.get(document_id, {})
        if len(old) == len(found) == 1:  # an id is a document wherever it lies: a line may move, a file be renamed
            old = dict(zip(found, old.values(), strict=True))
        new += len(found.keys() - old.keys())
        deleted += len(old.keys() - found.keys())
        same = sum(old[source] == sha256 for source, sha256 in found.items() if source in old)
        unchanged_ += same
        changed += len(found.keys() & old.keys()) - same
    settings = previous is not None and dict(previous.fingerprints) != dict(fingerprints)
    return Changes(new, changed, unchanged_, deleted, settings)
