"""The ledger: what has been paid for, by key, durable as it finishes. Enrichment only ever appends.

Parts are Parquet files that no one edits. Reading keeps the first entry of a key in part order, so every reader of the
same parts sees the same context. What failed is not paid work and is never recorded.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from enrichment.records import Context, DocumentId, Span, Status
from indexing import layout, tables
from indexing.storage import Storage

_CONTEXTS, _VECTORS = "contexts-", "vectors-"
_PART_CONTEXTS, _PART_S = 256, 10.0  # what a killed worker loses at most


@dataclass(frozen=True, slots=True)
class Paid:
    """A context with its key and the document that it was generated for."""

    document_id: DocumentId
    context: Context


class ContextWriter:
    """Makes contexts durable as they are written, many to a part; threads may share it."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self._storage, self._run_id = storage, run_id
        self._waiting: list[Paid] = []
        self._flushed = time.monotonic()
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def add(self, paid: Paid) -> bool:
        """Take a context; whether a flush is due, by number or by age."""
        with self._lock:
            self._waiting.append(paid)
            return len(self._waiting) >= _PART_CONTEXTS or time.monotonic() - self._flushed >= _PART_S

    def flush(self) -> None:
        """Write what waits. When this returns, everything taken before the call is durable."""
        with self._writing:
            with self._lock:
                paid, self._waiting, self._flushed = self._waiting, [], time.monotonic()
            try:
                append_contexts(self._storage, self._run_id, secrets.token_hex(8), paid)
            except BaseException:
                with self._lock:
                    self._waiting = paid + self._waiting  # the next flush tries again, and says so if it fails
                raise


def append_contexts(storage: Storage, run_id: str, part: str, paid: Iterable[Paid]) -> None:
    """Record contexts that a model wrote in this run; nothing is written if none did."""
    rows = [
        {
            "key": entry.context.key,
            "document_id": entry.document_id,
            "text": entry.context.text,
            "status": str(entry.context.status),
            "reason": entry.context.reason,
            "output": entry.context.output,
            "prompt_tokens": entry.context.prompt_tokens,
            "cached_tokens": entry.context.cached_tokens,
            "output_tokens": entry.context.output_tokens,
            "attempts": entry.context.attempts,
        }
        for entry in paid
        if entry.context.status in (Status.OK, Status.FALLBACK)
    ]
    if rows:
        table = pa.Table.from_pylist(rows, schema=tables.CONTEXTS)
        _put(storage, run_id, _CONTEXTS + part, table)


def append_vectors(
    storage: Storage, run_id: str, part: str, keys: list[bytes], ids: list[DocumentId], vectors: np.ndarray
) -> None:
    """Record vectors, `(n, d) float16`, under their keys; nothing is written if there are none."""
    if keys:
        columns = [keys, ids, [vector.tobytes() for vector in vectors]]
        table = pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, tables.ledger_vectors(vectors.shape[1]), strict=True)],
            schema=tables.ledger_vectors(vectors.shape[1]),
        )
        _put(storage, run_id, f"{_VECTORS}{vectors.shape[1]}-{part}", table)


def _put(storage: Storage, run_id: str, part: str, table: pa.Table) -> None:
    """Write a part under a name that says what it holds, since no manifest lists it with its hash."""
    data = tables.to_bytes(table)
    storage.put(layout.ledger_part(run_id, f"{part}-{hashlib.sha256(data).hexdigest()[:16]}"), data)


def read_contexts(storage: Storage) -> dict[bytes, Context]:
    """Every paid context by key. The scope is not part of a key's value: the caller knows it."""
    found: dict[bytes, Context] = {}
    for table in _parts(storage, _CONTEXTS, tables.CONTEXTS):
        for row in table.to_pylist():
            found.setdefault(
                row["key"],
                Context(
                    text=row["text"],
                    status=Status(row["status"]),
                    reason=row["reason"],
                    scope=Span(0, 0),
                    key=row["key"],
                    output=row["output"],
                    prompt_tokens=row["prompt_tokens"],
                    cached_tokens=row["cached_tokens"],
                    output_tokens=row["output_tokens"],
                    attempts=row["attempts"],
                ),
            )
    return found


def read_vectors(storage: Storage, dimension: int) -> dict[bytes, bytes]:
    """Every paid vector by key, as `dimension` float16 values in bytes."""
    found: dict[bytes, bytes] = {}
    # The dimension is in the part's name: vectors of another embedder are passed over unread.
    for table in _parts(storage, f"{_VECTORS}{dimension}-", tables.ledger_vectors(dimension)):
        for key, vector in zip(table["key"].to_pylist(), table["vector"].to_pylist(), strict=True):
            found.setdefault(key, vector)
    return found


def _parts(storage: Storage, prefix: str, kind: pa.Schema) -> Iterator[pa.Table]:
    for entry in storage.list(layout.LEDGER):
        if entry.name.rpartition("/")[2].startswith(prefix):
            yield tables.read(storage.get(entry.name), kind, name=f"{storage.uri}/{entry.name}")
