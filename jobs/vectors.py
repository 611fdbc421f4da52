"""The second of the two steps that workers carry out, a plain callable: `jobs/flow.py` wires it behind the first.

`StageVectors`: units -> staged documents, rows and vectors, and one summary row per document: one unit in, one summary row
out, whatever became of the document.
"""

import secrets
from collections.abc import Sequence

import pyarrow as pa

from enrichment.embed import Embedder, parts
from indexing import disk, staging, tables
from indexing.layout import DOCUMENTS, ROWS, VECTORS, staged
from indexing.segments import TextField, text_fields
from indexing.storage import Storage, open_storage
from jobs.embedding import EmbedOnce
from jobs.run import Report, Run
from jobs.summaries import summaries


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


class StageVectors:
    """Units -> staged Parquet, and a summary row per document. Holds the embedder."""

    def __init__(self, run: Run, report: Report) -> None:
        run.enter()
        self._run, self._report = run, report
        self._storage: Storage = open_storage(run.config.corpus)
        self._vectors_of = EmbedOnce(self._storage, run.id, run.config.embedding, run.reuse.ids)
        self._embedder = self._vectors_of.embedder

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
        vectors = self._vectors_of.embed(texts, [documents[row] for row, _ in owners], part)
        schema = tables.vectors(self._embedder.dimension)
        columns = [[row for row, _ in owners], [number for _, number in owners], vectors]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
