"""`situate purge CORPUS DOCUMENT`: legal erasure, with a proof.

The document goes from every kept snapshot, from originals, ledger and runs; then every object of the store is read once more
and looked at for what was known of it. What the store cannot reach is said, not hidden: sources, other machines' caches,
backups, and older versions that a bucket keeps.
"""

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import Any

from enrichment.errors import ConfigError
from indexing import erasure, heartbeat, layout, manifest, traces
from indexing.storage import Storage
from indexing.traces import Known


def purge(storage: Storage, document_id: str) -> dict[str, Any]:
    """Erase a document and prove it. `left` names the objects that still hold a trace: empty unless something is wrong.

    Raises ConfigError for a store without a snapshot and for an id that no document can have, AlreadyRunningError while any
    other command is at work.
    """
    if re.search("[\ud800-\udfff]", document_id):
        raise ConfigError(f"the id {ascii(document_id)} is not UTF-8; no document has such an id")
    manifest.require_latest(storage)
    run_id = heartbeat.new_run_id()
    with heartbeat.beating(storage, run_id, "purge"):
        listed = {segment.id for snapshot in erasure.snapshots(storage) for segment in snapshot.segments}
        known = traces.find(storage, document_id, listed)
        rewritten = erasure.rewrite_segments(storage, known)
        snapshots = erasure.rewrite_manifests(storage, known, rewritten)
        entries = traces.clean_ledger(storage, known)
        records = traces.clean_runs(storage, known, run_id)
        removed = erasure.remove_unlisted(storage)
        proof = _proof(storage, known)
        done = {
            "snapshot": manifest.require_latest(storage).sequence,
            "snapshots_rewritten": list(snapshots),
            "segments_rewritten": len(rewritten),
            "ledger_entries_removed": entries,
            "run_records_cleaned": records,
            "objects_removed": len(removed),
            "found": bool(known.segments or snapshots or entries or records),
            **proof,
        }
        _record(storage, run_id, document_id, done)
    return {"document": document_id, **done, "notes": _notes(storage)}


def _proof(storage: Storage, known: Known) -> dict[str, Any]:
    """Read everything again: what was looked at, what is left, and who else has the same text of his own."""
    num_objects = size_bytes = 0
    left = []
    for name, size, trace in traces.look(storage, known):
        num_objects, size_bytes = num_objects + 1, size_bytes + size
        if trace is not None:
            left.append({"object": name, "trace": trace})
    copies = [{"id": name, "what": what} for name, what in traces.copies(storage, known)]
    return {"searched": {"objects": num_objects, "size_bytes": size_bytes}, "left": left, "copies": copies}


def _record(storage: Storage, run_id: str, document_id: str, done: dict[str, Any]) -> None:
    """Keep the proof without what it is about: the id as its sha256; whose copies there are is only printed."""
    record = {
        **done,
        "document_sha256": hashlib.sha256(document_id.encode()).hexdigest(),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "copies": len(done["copies"]),
    }
    storage.put(layout.run_file(run_id, layout.ERASURE), json.dumps(record, indent=1).encode())


def _notes(storage: Storage) -> list[str]:
    notes = [
        "the sources were not touched: remove the document there too, or the next refresh brings it back",
        "serving hosts keep copies until they open the new snapshot and their caches are emptied",
    ]
    if storage.keeps_versions():
        notes.append(
            "the bucket keeps older versions of its objects: they still hold the document until they are removed"
        )
    return notes
