"""A document's chunks before and after: the original by byte range, header, context, and how they came to be."""

import json
from dataclasses import asdict
from typing import Any

from indexing import serving
from indexing.enriched_chunk import enriched_chunk
from indexing.expansion import Expansion
from indexing.windows import check_chunk

ITSELF = Expansion()


def read(corpus: str, document_id: str, chunk: int | None, how: Expansion = ITSELF) -> dict[str, Any]:
    """The record of `show --json`. Raises ConfigError for a document or chunk that is not there."""
    snapshot = serving.open(corpus)
    document = snapshot.document(document_id)
    document["metadata"] = json.loads(document["metadata"])
    rows = snapshot.rows(document_id)
    if chunk is not None:
        check_chunk(document_id, len(rows), chunk)
    picked = rows if chunk is None else [rows[chunk]]
    for row in picked:
        row["text"] = snapshot.original(document_id, (row["byte_start"], row["byte_end"]))
        view = enriched_chunk(row, row["text"])
        row["enrichment"] = asdict(view) if view else None
        row["context_key"] = row["context_key"].hex() if row["context_key"] else None
    result: dict[str, Any] = {"snapshot": snapshot.manifest.sequence, "document": document, "chunks": picked}
    if chunk is not None and how.window:
        span, text = snapshot.window(document_id, chunk, how)
        result["window"] = {"start": span.start, "end": span.end, "text": text}
    return result
