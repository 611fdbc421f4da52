"""The ledger: what has been paid for, by key, durable as it finishes. Enrichment only ever appends.

Parts are Parquet files that no one edits. Of the entries of a key, reading keeps the first in part order, one that is ok
before any other, so every reader of the same parts sees the same context. What failed is not paid work and is never recorded.

A night looks up a few documents of many: it reads the entries under the ids that may hold what it needs (`ids`), and what it
reads stays in Arrow until a key is asked for.
"""

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.records import Context, DocumentId, Status
from indexing import layout, ledger_parts, tables
from indexing.storage import Storage, is_remote

_CONTEXTS, _VECTORS = "contexts-", "vectors-"
KEY_BYTES = 32
_READERS = 8
_PART_CONTEXTS, _PART_S = 1024, 10.0  # what a killed worker loses at most


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
    storage.put(layout.ledger_part(run_id, f"{part}-{ledger_parts.digits(data)}"), data)


class PaidContexts(Mapping[bytes, Context]):
    """Paid contexts by key. The scope is not part of a key's value: the caller knows it."""

    def __init__(self, table: pa.Table, owners: "Owners | None" = None) -> None:
        self._table, self._owners = table, owners
        self._places = _Places(table["key"])

    def is_of(self, key: bytes, document_id: str) -> bool:
        """Whether a night that looks under this id finds the entry; True where nobody asked for some ids alone."""
        return self._owners is None or (key, document_id) in self._owners

    def __getitem__(self, key: bytes) -> Context:
        (row,) = self._table.slice(self._places[key], 1).to_pylist()
        del row["document_id"]
        return Context(**{**row, "status": Status(row["status"])})

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class PaidVectors(Mapping[bytes, bytes]):
    """Paid vectors by key, as float16 values in bytes."""

    def __init__(self, table: pa.Table, owners: "Owners | None" = None) -> None:
        self._vectors, self._owners = table["vector"], owners
        self._places = _Places(table["key"])

    def is_of(self, key: bytes, document_id: str) -> bool:
        """As of contexts."""
        return self._owners is None or (key, document_id) in self._owners

    def __getitem__(self, key: bytes) -> bytes:
        vector: bytes = self._vectors[self._places[key]].as_py()
        return vector

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


Owners = set[tuple[bytes, str]]


def _owners(table: pa.Table) -> Owners:
    return set(zip(table["key"].to_pylist(), table["document_id"].to_pylist(), strict=True))


class _Places:
    """Where each key stands first: 40 bytes a key, a third of a dict's."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys, self._rows = np.unique(np.array(keys.to_pylist(), dtype=object).astype("S32"), return_index=True)

    def __getitem__(self, key: bytes) -> int:
        wanted = np.bytes_(key.rstrip(b"\0"))  # numpy drops zero bytes at the end of what it hands out
        place = int(np.searchsorted(self._keys, wanted))
        if place == len(self._keys) or self._keys[place] != wanted:
            raise KeyError(key)
        return int(self._rows[place])

    def __iter__(self) -> Iterator[bytes]:
        return (key.ljust(KEY_BYTES, b"\0") for key in self._keys.tolist())

    def __len__(self) -> int:
        return len(self._keys)


def share(source: Storage, target: Storage) -> int:
    """Copy what one corpus has paid for into another's ledger, so that it is not paid for there; how many parts it lacked."""
    known = {entry.name for entry in target.list(layout.LEDGER)}
    missing = [entry.name for entry in source.list(layout.LEDGER) if entry.name not in known]
    for name in missing:
        target.put(name, source.get(name))
    return len(missing)


def read_contexts(
    storage: Storage, ids: pa.Array | None = None, older: pa.Table | None = None, fallbacks: bool = True
) -> PaidContexts:
    """Every paid context, or those that were paid for the documents `ids`; behind them those of `older` (of CONTEXTS).

    Without `fallbacks`, what a guard refused counts as not paid: it is to be asked for again.
    """
    table = _entries(storage, _CONTEXTS, tables.CONTEXTS, ids)
    table = pa.concat_tables([table, older]) if older is not None else table
    is_ok = pc.equal(table["status"], Status.OK)
    kept = [table.filter(is_ok), table.filter(pc.invert(is_ok))] if fallbacks else [table.filter(is_ok)]
    return PaidContexts(pa.concat_tables(kept), None if ids is None else _owners(table))


def read_vectors(storage: Storage, dimension: int, ids: pa.Array | None = None) -> PaidVectors:
    """Every paid vector of `dimension` values, or those that were paid for the documents `ids`."""
    # The dimension is in the part's name: vectors of another embedder are passed over unread.
    table = _entries(storage, f"{_VECTORS}{dimension}-", tables.ledger_vectors(dimension), ids)
    return PaidVectors(table, None if ids is None else _owners(table))


def _entries(storage: Storage, prefix: str, kind: pa.Schema, ids: pa.Array | None) -> pa.Table:
    """The entries of all parts, in their order; of a store that is far away, several parts are fetched at once."""

    def read(name: str) -> pa.Table:
        data, where = storage.get(name), f"{storage.uri}/{name}"
        return tables.read(data, kind, name=where) if ids is None else tables.read_documents(data, kind, ids, where)

    names = [e.name for e in storage.list(layout.LEDGER) if e.name.rpartition("/")[2].startswith(prefix)]
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(read, names) if is_remote(storage.uri) else map(read, names)
        return pa.concat_tables([kind.empty_table(), *found]).combine_chunks()
