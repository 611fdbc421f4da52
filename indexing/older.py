"""What the rows of the snapshot before hold of the documents that a night works on again: contexts that need no new call.

By exact key, whatever the ledger says: rows outlive an entry that was written under another document's id. And by the
chunk's own text and heading path, for `reuse: chunk`, where the prompt changed but the chunk did not.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from enrichment.records import Chunk, Context, Document, Status
from indexing import dead, layout, tables
from indexing.local_files import LocalFiles
from indexing.manifest import Manifest
from indexing.storage import Storage

_OF_CONTEXT = ("reason", "prompt_tokens", "cached_tokens", "output_tokens", "attempts")
_COLUMNS = ["document_id", "status", "context", "rewrite", "context_key", *_OF_CONTEXT]
_OF_CHUNK = ["text", "heading_path", "strategy", "prompt_fingerprint", "model_fingerprint"]

Chunks = Mapping[tuple[str, str, tuple[str, ...]], Context]


def rows(storage: Storage, found: Manifest, ids: pa.Array, with_chunks: bool) -> pa.Table:
    """The live rows of the documents `ids` that have a context or had one refused; `with_chunks` their texts too."""
    columns = _COLUMNS + (_OF_CHUNK if with_chunks else [])
    files, kept = LocalFiles(storage), []
    for segment in found.segments if len(ids) else ():
        alive = pa.array(~dead.read(storage, segment, found.dead.get(segment.id)).rows)
        first = 0
        for batch in tables.batches(files.named(segment, layout.ROWS), tables.ROWS, columns):
            wanted = pc.and_(pc.is_in(batch["document_id"], ids), alive.slice(first, batch.num_rows))
            wanted = pc.and_(wanted, pc.is_in(batch["status"], pa.array([Status.OK, Status.FALLBACK], pa.string())))
            kept.append(pa.Table.from_batches([batch.filter(wanted)]))
            first += batch.num_rows
    schema = pa.schema([tables.ROWS.field(name) for name in columns])
    return pa.concat_tables([schema.empty_table(), *(table.replace_schema_metadata(None) for table in kept)])


def contexts(found: pa.Table) -> pa.Table:
    """The rows as entries of the ledger's kind; what the model wrote before it was trimmed is not known of them."""
    found = found.filter(pc.is_valid(found["context_key"]))
    given = {
        "key": found["context_key"],
        "text": pc.coalesce(found["context"], found["rewrite"]),
        "output": pa.nulls(found.num_rows, pa.string()),
    }
    columns = [given[name] if name in given else found[name] for name in tables.CONTEXTS.names]
    return pa.table(columns, schema=tables.CONTEXTS)


def chunks(found: pa.Table, strategy: str, prompt_fingerprint: str | None, model_fingerprint: str | None) -> Chunks:
    """Contexts made in the same way, by document id, chunk text and heading path; of equal chunks the first one's."""
    same = pc.and_(
        pc.and_(pc.equal(found["strategy"], strategy), pc.equal(found["status"], str(Status.OK))),
        pc.and_(
            pc.equal(found["prompt_fingerprint"], prompt_fingerprint or ""),
            pc.equal(found["model_fingerprint"], model_fingerprint or ""),
        ),
    )
    made: dict[tuple[str, str, tuple[str, ...]], Context] = {}
    for row in found.filter(pc.fill_null(same, False)).to_pylist():
        context = Context(
            row["context"] or row["rewrite"],
            Status.OK,
            key=row["context_key"],
            **{name: row[name] for name in _OF_CONTEXT},
        )
        made.setdefault((row["document_id"], row["text"], tuple(row["heading_path"])), context)
    return made


def of_chunk(known: Chunks, document: Document, chunk: Chunk) -> Context | None:
    """The context that the older version has for a chunk of the same text under the same headings."""
    return known.get((document.id, document.text[chunk.start : chunk.end], chunk.heading_path))
