"""A row as people know it who come from R2R, which writes a rewrite over a chunk and keeps what the chunk said before.

Here the row keeps both; this is a view of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from enrichment.records import Status
from enrichment.strategies import is_rewriting


@dataclass(frozen=True, slots=True)
class ChunkMetadata:
    """`original_text` is the document's; what became of its rewrite."""

    original_text: str
    chunk_enrichment_status: Literal["success", "failed"]


@dataclass(frozen=True, slots=True)
class EnrichedChunk:
    """`text` is the rewrite, or the original where the rewrite failed."""

    text: str
    metadata: ChunkMetadata


def enriched_chunk(row: Mapping[str, Any], original: str) -> EnrichedChunk | None:
    """The view of a stored row, None where no rewrite was tried: by strategy, or of a document with one chunk."""
    if not is_rewriting(row["strategy"]) or row["status"] == Status.SKIPPED:
        return None
    succeeded = row["status"] == Status.OK
    text = row["rewrite"] if succeeded else original
    return EnrichedChunk(text, ChunkMetadata(original, "success" if succeeded else "failed"))
