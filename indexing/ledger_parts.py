"""The ledger's parts one by one, for those who look after them: each checked against its name, each rewritten whole.

No manifest lists a part, so its name ends with the first digits of its sha256 (those of the first release do not; of them the
pages' checksums are checked). Look-ups by key are in `ledger.py`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator

import pyarrow as pa

from enrichment.errors import OperationError
from indexing import layout, tables
from indexing.storage import Storage

_NAME = re.compile(r"(contexts|vectors-(\d+))-.+?(-[0-9a-f]{16})?\.parquet")


def digits(data: bytes) -> str:
    """What the name of a part that holds `data` ends with."""
    return hashlib.sha256(data).hexdigest()[:16]


def names(storage: Storage) -> Iterator[str]:
    """The names of all parts."""
    for entry in storage.list(layout.LEDGER):
        yield entry.name


def read(storage: Storage, name: str) -> pa.Table:
    """A part's entries. Raises OperationError naming it if it is damaged or none."""
    where = f"{storage.uri}/{name}"
    found = _NAME.fullmatch(name.rpartition("/")[2])
    if found is None:
        raise OperationError(f"{where} is no part of the ledger; remove it")
    data = storage.get(name)
    if found[3] and digits(data) != found[3][1:]:
        raise OperationError(f"{where} holds other bytes than its name says; restore it, or remove it and pay anew")
    return tables.read(data, tables.ledger_vectors(int(found[2])) if found[2] else tables.CONTEXTS, name=where)


def rewrite(storage: Storage, name: str, keep: Callable[[pa.Table], pa.Table]) -> int:
    """Put what `keep` leaves of a part in its place; how many entries went. The new part is there before the old one goes."""
    table = read(storage, name)
    kept = keep(table)
    if kept.num_rows < table.num_rows:
        if kept.num_rows:
            data = tables.to_bytes(kept)
            stem = re.sub(r"(-[0-9a-f]{16})?\.parquet$", "", name)
            storage.put(f"{stem}-{digits(data)}.parquet", data)
        storage.delete(name)
    return int(table.num_rows - kept.num_rows)
