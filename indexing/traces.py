"""What a store knows of one document: found, removed from ledger and runs, and looked for once more as a proof.

A trace is the document's id; its text or one of its chunks' texts; a context or a vector that was made of it, under whatever id
it was paid for (a document that was renamed was paid for under its old name).
"""

import io
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from enrichment.errors import OperationError
from indexing import layout, ledger_parts, tables
from indexing.storage import Storage

ERASED = "[erased]"
_LEAST_QUOTED = 4  # characters of an id that is looked for inside sentences; a shorter one stands in many by chance
_LEAST_TEXT = 32  # bytes of a text that identify its document
_NAMING = ("rejected", "stale")  # in a manifest; an id may be a word of the rest, such as `dense`, or digits of a hash
_LONGEST = 8  # chunks that are looked for byte by byte; the others are compared with whole chunks


@dataclass(slots=True)
class Known:
    """What is to be erased. `segments` hold it, listed or not; texts as the bytes of whole documents and of chunks."""

    document_id: str
    segments: set[str] = field(default_factory=set)
    originals: set[bytes] = field(default_factory=set)
    chunks: set[str] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)
    vectors: set[bytes] = field(default_factory=set)


def find(storage: Storage, document_id: str, listed: Collection[str]) -> Known:
    """All that the segments in the store know of a document, also those that are not `listed` by a manifest (any more)."""
    known = Known(document_id)
    found = {entry.name.split("/")[1] for entry in storage.list(layout.SEGMENTS) if entry.name.count("/") > 1}
    for segment_id in sorted(found):
        try:
            _find_in(storage, segment_id, known)
        except OperationError:
            if segment_id in listed:
                raise
            # An upload that was cut short: no paid work was made from it, and it is removed as a whole.
    return known


def _find_in(storage: Storage, segment_id: str, known: Known) -> None:
    names = {name: layout.segment(segment_id, name) for name in (layout.DOCUMENTS, layout.ROWS, layout.VECTORS)}
    documents = _table(storage, names[layout.DOCUMENTS], tables.DOCUMENTS)
    mine = documents.filter(pc.equal(documents["id"], known.document_id))
    if not mine.num_rows:
        return
    known.segments.add(segment_id)
    for document in mine.to_pylist():
        if document["length"]:
            name = layout.segment(segment_id, layout.ORIGINALS)
            known.originals.add(storage.get_range(name, document["offset"], document["length"]))
    rows = _table(storage, names[layout.ROWS], tables.ROWS)
    places = pc.indices_nonzero(pc.equal(rows["document_id"], known.document_id))
    own = rows.take(places)
    known.chunks |= set(own["text"].to_pylist())
    known.keys |= {key for key in own["context_key"].to_pylist() if key}
    data = storage.get(names[layout.VECTORS])
    vectors = tables.read(data, _vectors_kind(data), name=f"{storage.uri}/{names[layout.VECTORS]}")
    known.vectors |= set(vectors.filter(pc.is_in(vectors["row"], places.cast(pa.int64())))["vector"].to_pylist())


def _table(storage: Storage, name: str, kind: pa.Schema) -> pa.Table:
    return tables.read(storage.get(name), kind, name=f"{storage.uri}/{name}")


def _vectors_kind(data: bytes) -> pa.Schema:
    """The kind of a table of vectors, whatever their dimension."""
    return tables.vectors(pq.read_schema(io.BytesIO(data)).field("vector").type.byte_width // 2)


def clean_ledger(storage: Storage, known: Known) -> int:
    """Remove what was paid for the document; how many entries went."""
    names = list(ledger_parts.names(storage))
    return sum(ledger_parts.rewrite(storage, name, lambda table: table.filter(_kept(table, known))) for name in names)


def _kept(table: pa.Table, known: Known) -> pa.Array:
    gone = pc.equal(table["document_id"], known.document_id)
    gone = pc.or_(gone, pc.is_in(table["key"], pa.array(sorted(known.keys), pa.binary())))
    if "vector" in table.schema.names:
        kind = table.schema.field("vector").type
        same = pa.array([vector for vector in known.vectors if len(vector) == kind.byte_width], kind)
        gone = pc.or_(gone, pc.is_in(table["vector"], same))
    return pc.invert(gone)


def clean_runs(storage: Storage, known: Known, besides: str) -> int:
    """Remove the document from the records of runs but one, and all intermediate files; how many records named it."""
    touched = 0
    own = layout.run_file(besides, "")
    for entry in [entry for entry in storage.list(layout.RUNS) if not entry.name.startswith(own)]:
        file = entry.name.split("/", 2)[-1]
        before = storage.get(entry.name)
        after = None if file.startswith(layout.INTERMEDIATE) else _cleaned(file, before, known.document_id)
        if after is None:
            storage.delete(entry.name)
        elif after != before:
            storage.put(entry.name, after)
        touched += after != before and not file.startswith(layout.INTERMEDIATE)
    return touched


def _cleaned(file: str, data: bytes, document_id: str) -> bytes | None:
    """A run's file without the document; None if it is to go, because nobody can say what it holds."""
    if file.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data))
        if "id" not in table.schema.names:
            return None
        kept = table.filter(pc.not_equal(table["id"], document_id))
        if kept.num_rows == table.num_rows:
            return data
        sink = io.BytesIO()
        pq.write_table(kept, sink)
        return sink.getvalue()
    try:
        records = _records(file, data)
    except ValueError:
        return None
    cleaned = [_without(record, document_id) for record in records]
    if cleaned == records:
        return data
    indent = None if file.endswith(".jsonl") else 1
    return "".join(json.dumps(record, indent=indent) + "\n" for record in cleaned).encode()


def _records(name: str, data: bytes) -> list[Any]:
    return [json.loads(line) for line in (data.splitlines() if name.endswith(".jsonl") else [data])]


def _without(record: Any, document_id: str) -> Any:
    """A record whose lists do not name the document. Only lists hold ids: a word of our own may be somebody's id."""
    if not isinstance(record, dict):
        return record
    return {key: redacted(value, document_id) if isinstance(value, list) else value for key, value in record.items()}


def redacted(value: Any, document_id: str) -> Any:
    """A JSON value without what names the document: entries under its id go, sentences that quote it lose it."""
    if isinstance(value, list):
        return [redacted(v, document_id) for v in value if not _is_about(v, document_id)]
    if isinstance(value, dict):
        return {key: redacted(v, document_id) for key, v in value.items()}
    if isinstance(value, str) and len(document_id) >= _LEAST_QUOTED:
        return value.replace(document_id, ERASED)
    return ERASED if value == document_id else value


def _is_about(value: Any, document_id: str) -> bool:
    return value == document_id or (isinstance(value, dict) and value.get("id") == document_id)


def look(storage: Storage, known: Known) -> Iterator[tuple[str, int, str | None]]:
    """Every object that there is: its name, its size, and what is left of the document in it, or None."""
    for entry in storage.list():
        data = storage.get(entry.name)
        yield entry.name, len(data), _left(entry.name, data, known)
    for entry in storage.unfinished():
        yield entry.name, entry.size_bytes, "it was left by a killed writer"


def _left(name: str, data: bytes, known: Known) -> str | None:
    if name.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        for column in ("id", "document_id"):
            if column in table.schema.names and pc.any(pc.equal(table[column], known.document_id)).as_py():
                return "its id"
        if name.startswith(layout.LEDGER) and not pc.all(_kept(table, known)).as_py():
            return "a context or a vector of it"
        return None
    if name.startswith((layout.MANIFESTS, layout.RUNS)):
        return "its id" if _names(name, data, known.document_id) else None
    return None


def _names(name: str, data: bytes, document_id: str) -> bool:
    """Whether a manifest or a record of a run names the document; of a manifest only what it says of documents counts."""
    try:
        records = _records(name, data)
    except ValueError:  # nothing of ours
        return len(document_id) >= _LEAST_QUOTED and document_id.encode() in data
    if name.startswith(layout.MANIFESTS):
        records = [{key: record.get(key, []) for key in _NAMING} for record in records if isinstance(record, dict)]
    return any(_without(record, document_id) != record for record in records)


def copies(storage: Storage, known: Known) -> list[tuple[str, str]]:
    """Documents that stay and hold the same text or a part of it, by (id, what). Raises OperationError if bytes of the
    document lie between the documents of a file, owned by none."""
    texts = [data for data in (*known.originals, *_longest(known)) if len(data) >= _LEAST_TEXT]
    chunks = pa.array([text for text in known.chunks if len(text.encode()) >= _LEAST_TEXT], pa.string())
    found: set[tuple[str, str]] = set()
    for segment_id in sorted({entry.name.split("/")[1] for entry in storage.list(layout.SEGMENTS)}):
        rows = _table(storage, layout.segment(segment_id, layout.ROWS), tables.ROWS)
        owners = rows.filter(pc.is_in(rows["text"], chunks))["document_id"].to_pylist()
        found |= {(name, "a chunk of the same text") for name in owners}
        documents = _table(storage, layout.segment(segment_id, layout.DOCUMENTS), tables.DOCUMENTS)
        name = layout.segment(segment_id, layout.ORIGINALS)
        data = storage.get(name)
        for text in texts:
            place = data.find(text)
            if place >= 0:
                found.add((_owner_of(documents, place, f"{storage.uri}/{name}"), "the same bytes in its original"))
    return sorted(found)


def _longest(known: Known) -> list[bytes]:
    return sorted((text.encode() for text in known.chunks), key=lambda data: (-len(data), data))[:_LONGEST]


def _owner_of(documents: pa.Table, place: int, where: str) -> str:
    for document in documents.select(["id", "offset", "length"]).to_pylist():
        if document["offset"] <= place < document["offset"] + document["length"]:
            owner: str = document["id"]
            return owner
    raise OperationError(f"{where} holds bytes of the document that no document owns, at {place}; refresh from scratch")
