"""Documents read back from the snapshot before, where their source does not give them (any more) but they are to be kept.

Needed when a setting changed that rows depend on: what was made by the old settings is never mixed in, so the previous version
is worked on anew, from its stored original.
"""

import json
from typing import Any

from enrichment import documents
from enrichment.documents import FormatName, Loaded
from indexing.snapshot import Snapshot

FORMAT = "stored"
"""In the place of a reference's format; its `file` is then the stored document's whole source."""


class StoredReader:
    """Reads documents of one snapshot by their ids."""

    def __init__(self, snapshot: Snapshot, format_name: FormatName) -> None:
        self._snapshot, self._format = snapshot, format_name

    def load(self, ref: dict[str, Any]) -> tuple[Loaded, str]:
        """The document as it was stored, and the sha256 of the source that it came from."""
        stored = self._snapshot.document(ref["id"])
        loaded = documents.restored(
            ref["id"],
            self._snapshot.original(ref["id"]),
            stored["title"],
            stored["date"],
            json.loads(stored["metadata"]),
            self._format,
        )
        return loaded, stored["source_sha256"]
