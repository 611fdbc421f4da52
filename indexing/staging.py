"""Enriched documents on their way to a segment: one Arrow row per document between workers, then staged Parquet.

Enriched -> unit row (text once, chunks as spans) -> staged documents, rows and vectors of one part. A part is written by one
worker and read by the builder of the segment that its documents fall into.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.header import header
from enrichment.records import Enriched
from indexing import tables
from indexing.tables import DOCUMENTS, ROWS

TOKEN_COUNTS = ("prompt", "cached", "ideal", "block_rounding", "retries", "output")
_OF_DOCUMENT = ("strategy", "prompt_fingerprint", "model_fingerprint")  # of a row: the same in all rows of a document
_DERIVED = ("document_id", "text", "header")  # of a row: follows from the rest
_COUNTED = ("chunks_ok", "chunks_fallback", "chunks_failed", "chunks_skipped", "ungrounded", "reasons")
BUILT = ("offset", "length", "first_row", "num_rows", *_COUNTED)  # of a document: known when its segment is built

# Positions as int32: a text that Arrow can hold has no more.
_ROW_FIELDS = [
    field.with_type(pa.int32()) if field.type == pa.int64() else field
    for field in ROWS
    if field.name not in (*_OF_DOCUMENT, *_DERIVED)
]
UNITS = pa.schema(
    [
        *[field for field in DOCUMENTS if field.name not in BUILT],
        pa.field("text", pa.string(), nullable=False),
        *[ROWS.field(name) for name in _OF_DOCUMENT],
        pa.field("rows", pa.list_(pa.field("element", pa.struct(_ROW_FIELDS), nullable=False)), nullable=False),
        pa.field("generated", pa.int32(), nullable=False),
        *[pa.field(f"tokens_{name}", pa.int64(), nullable=False) for name in TOKEN_COUNTS],
    ]
)
STAGED_DOCUMENTS = tables.with_kind(
    "staged documents",
    [*[field for field in DOCUMENTS if field.name not in BUILT], pa.field("text", pa.string(), nullable=False)],
)


def status_of(enriched: Enriched) -> str:
    """`indexed`, `empty` (nothing but blanks) or `quarantined`."""
    if enriched.reason is None:
        return "indexed"
    return "empty" if enriched.reason == "empty" else "quarantined"


def units(documents: Iterable[Enriched]) -> pa.Table:
    """One row per document. Lossless but for what `_DERIVED` names."""
    return pa.Table.from_pylist([_unit(enriched) for enriched in documents], schema=UNITS)


def _unit(enriched: Enriched) -> dict[str, object]:
    document = enriched.document
    return {
        "id": document.id,
        "title": document.title,
        "date": document.date,
        "metadata": json.dumps(dict(document.metadata), sort_keys=True, ensure_ascii=False),
        "source": enriched.source,
        "source_sha256": enriched.source_sha256,
        "text_sha256": hashlib.sha256(document.text.encode()).hexdigest(),
        "status": status_of(enriched),
        "reason": enriched.reason,
        "replaced": enriched.replaced,
        "tries": enriched.tries,
        "text": document.text,
        **{name: getattr(enriched, name) for name in _OF_DOCUMENT},
        "rows": _rows(enriched),
        "generated": enriched.generated,
        **{f"tokens_{name}": enriched.tokens.get(name, 0) for name in TOKEN_COUNTS},
    }


def _rows(enriched: Enriched) -> list[Mapping[str, object]]:
    return [
        {
            "chunk_index": chunk.index,
            "start": chunk.start,
            "end": chunk.end,
            "byte_start": chunk.byte_start,
            "byte_end": chunk.byte_end,
            "heading_path": list(chunk.heading_path),
            "context": None if enriched.rewrites else context.text,
            "rewrite": context.text if enriched.rewrites else None,
            "status": str(context.status),
            "reason": context.reason,
            "scope_start": context.scope.start,
            "scope_end": context.scope.end,
            "context_key": context.key,
            "prompt_tokens": context.prompt_tokens,
            "cached_tokens": context.cached_tokens,
            "output_tokens": context.output_tokens,
            "attempts": context.attempts,
        }
        for chunk, context in zip(enriched.chunks, enriched.contexts, strict=True)
    ]


def rows_of(table: pa.Table) -> pa.Table:
    """The rows of a table of units, in its order, with all that need not travel once per row."""
    lists = table["rows"].combine_chunks()
    rows = pa.Table.from_struct_array(lists.flatten())
    parents = pc.list_parent_indices(lists)
    owners = parents.to_pylist()
    texts = table["text"].to_pylist()
    starts, ends = rows["start"].to_pylist(), rows["end"].to_pylist()
    titles, strategies = table["title"].to_pylist(), table["strategy"].to_pylist()
    headers = [
        header(titles[owner], path) if strategies[owner] != "none" else None
        for owner, path in zip(owners, rows["heading_path"].to_pylist(), strict=True)
    ]
    columns = {
        **{name: rows[name] for name in rows.schema.names},
        **{name: table[name].take(parents) for name in _OF_DOCUMENT},
        "document_id": table["id"].take(parents),
        "text": pa.array([texts[owners[row]][starts[row] : ends[row]] for row in range(len(owners))], pa.string()),
        "header": pa.array(headers, pa.string()),
    }
    return pa.table([columns[field.name].cast(field.type) for field in ROWS], schema=ROWS)


def documents_of(table: pa.Table) -> pa.Table:
    """The documents of a table of units, with their texts, as they are staged."""
    return pa.table([table[name] for name in STAGED_DOCUMENTS.names], schema=STAGED_DOCUMENTS)
