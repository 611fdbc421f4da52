"""The second of the two steps that workers carry out, a plain callable: `jobs/flow.py` wires it behind the first.

`StageVectors`: units -> staged documents, rows and vectors, and one summary row per document: one unit in, one summary row
out, whatever became of the document.
"""

import secrets
from collections.abc import Container, Sequence

import numpy as np
import pyarrow as pa

from enrichment.embed import Embedder, open_embedder, parts, vector_key
from enrichment.records import DocumentId
from indexing import disk, ledger, staging, tables
from indexing.layout import DOCUMENTS, ROWS, VECTORS, staged
from indexing.segments import TextField, text_fields
from indexing.storage import Storage, open_storage
from jobs.models import resolve_model
from jobs.steps import Report, Run
from jobs.summaries import summaries

EMBED_TEXTS = 256  # texts per call of the embedder: bounds memory, enough to sort by length


def texts_of(
    rows: pa.Table, fields: Sequence[TextField], embedder: Embedder
) -> tuple[list[str], list[tuple[int, int]]]:
    """What is embedded of rows: the texts, and of each its row's place and its number among that row's parts."""
    leads = text_fields(rows, [name for name in fields if name != "body"])
    bodies = text_fields(rows, ["body"] if "body" in fields else [])
    texts: list[str] = []
    owners: list[tuple[int, int]] = []
    for row, (lead, body) in enumerate(zip(leads, bodies, strict=True)):
        pieces = parts("\n".join(lead), "".join(body), embedder)
        texts += pieces
        owners += [(row, number) for number in range(len(pieces))]
    return texts, owners


def unpaid(texts: Sequence[str], embedder: Embedder, paid: Container[bytes]) -> tuple[list[bytes], list[int]]:
    """The key of each text, and the places of those to embed: of equal ones the first."""
    keys = [vector_key(embedder.passage_fingerprint, text) for text in texts]
    missing = {key: place for place, key in reversed(list(enumerate(keys))) if key not in paid}
    return keys, sorted(missing.values())


class StageVectors:
    """Units -> staged Parquet, and a summary row per document. Holds the embedder."""

    def __init__(self, run: Run, report: Report) -> None:
        run.enter()
        self._run, self._report = run, report
        self._storage: Storage = open_storage(run.config.corpus)
        self._embedder: Embedder = open_embedder(run.config.embedding, resolve_model(run.config.embedding))
        self._paid = ledger.read_vectors(self._storage, self._embedder.dimension, run.reuse.ids)

    def __call__(self, units: pa.Table) -> pa.Table:
        part = secrets.token_hex(8)
        rows = staging.rows_of(units)
        vectors = self._vectors(rows, part)
        with disk.temporary("situate-part-") as work:
            for name, table in ((ROWS, rows), (VECTORS, vectors), (DOCUMENTS, staging.documents_of(units))):
                tables.write(table, work / name)
                self._storage.put_file(staged(self._run.id, part, name), work / name)
        self._report({"documents": units.num_rows, "embedded": rows.num_rows})
        return summaries(units, part, vectors["row"].to_numpy())

    def _vectors(self, rows: pa.Table, part: str) -> pa.Table:
        texts, owners = texts_of(rows, self._run.config.index.dense_text, self._embedder)
        documents = rows["document_id"].to_pylist()
        vectors = self._embed(texts, [documents[row] for row, _ in owners], part)
        schema = tables.vectors(self._embedder.dimension)
        columns = [[row for row, _ in owners], [number for _, number in owners], vectors]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _embed(self, texts: Sequence[str], ids: Sequence[str], part: str) -> list[bytes]:
        """A vector per text, as float16 bytes; texts embedded before, here or in the ledger, are not embedded again."""
        keys, rows = unpaid(texts, self._embedder, self._paid)
        found = [
            self._embedder.embed_passages([texts[row] for row in batch]).astype(np.float16)
            for batch in (rows[start : start + EMBED_TEXTS] for start in range(0, len(rows), EMBED_TEXTS))
        ]
        vectors = b"".join(batch.tobytes() for batch in found)
        size = 2 * self._embedder.dimension
        new = {keys[row]: vectors[place * size : (place + 1) * size] for place, row in enumerate(rows)}
        # What was paid for under another id is kept under this one too: later nights look nowhere else.
        entries = dict.fromkeys((keys[row], ids[row]) for row in rows)
        entries |= {pair: None for pair in zip(keys, ids, strict=True) if not self._paid.is_of(*pair)}
        known = [new[key] if key in new else self._paid[key] for key, _ in entries]
        matrix = np.frombuffer(b"".join(known), np.float16).reshape(-1, self._embedder.dimension)
        owners = [DocumentId(name) for _, name in entries]
        ledger.append_vectors(self._storage, self._run.id, part, [key for key, _ in entries], owners, matrix)
        return [new[key] if key in new else self._paid[key] for key in keys]
