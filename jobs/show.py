"""A document's chunks before and after: the original by byte range, header, context, and how they came to be."""

import json
from typing import Any

from enrichment.errors import ConfigError
from enrichment.records import Span
from indexing import serving
from indexing.windows import Neighbour, widen


def read(corpus: str, document_id: str, chunk: int | None, window: int) -> dict[str, Any]:
    """The record of `show --json`. Raises ConfigError for a document or chunk that is not there."""
    snapshot = serving.open(corpus)
    document = snapshot.document(document_id)
    document["metadata"] = json.loads(document["metadata"])
    rows = snapshot.rows(document_id)
    if chunk is not None and not 0 <= chunk < len(rows):
        has = f"chunks 0 to {len(rows) - 1}" if rows else "no chunks"
        raise ConfigError(f"the document {document_id} has {has}; {chunk} is none of them")
    picked = rows if chunk is None else [rows[chunk]]
    for row in picked:
        row["text"] = snapshot.original(document_id, (row["byte_start"], row["byte_end"]))
        row["context_key"] = row["context_key"].hex() if row["context_key"] else None
    result: dict[str, Any] = {"snapshot": snapshot.manifest.sequence, "document": document, "chunks": picked}
    if chunk is not None and window:
        neighbours = [Neighbour(Span(row["start"], row["end"]), tuple(row["heading_path"])) for row in rows]
        span = widen(neighbours, chunk, window, within_section=False)
        start = min(row["byte_start"] for row in rows if row["start"] == span.start)
        end = max(row["byte_end"] for row in rows if row["end"] == span.end)
        text = snapshot.original(document_id, (start, end))
        result["window"] = {"start": span.start, "end": span.end, "text": text}
    return result
