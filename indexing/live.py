"""The live documents of a snapshot: its segments' documents.parquet without what is dead. Ids, hashes and numbers only.

One row per live document in order of segments and places. A night compares, counts and compacts from this table alone;
no text is read for it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from indexing import dead, layout, tables
from indexing.local_files import LocalFiles
from indexing.manifest import DeadEntry, SegmentEntry
from indexing.storage import Storage


def documents(
    storage: Storage, segments: Sequence[SegmentEntry], listed: Mapping[str, DeadEntry], columns: Sequence[str]
) -> pa.Table:
    """`columns` of documents.parquet, and where each document stands: `segment` (place in `segments`) and `place` in it."""
    files = LocalFiles(storage)
    found = []
    for number, segment in enumerate(segments):
        table = tables.read(files.named(segment, layout.DOCUMENTS), tables.DOCUMENTS, list(columns))
        places = np.flatnonzero(~dead.read(storage, segment, listed.get(segment.id)).documents)
        table = table.take(pa.array(places)) if len(places) < table.num_rows else table
        found.append(_located(table, number, places))
    schema = pa.schema([tables.DOCUMENTS.field(name) for name in columns])
    return pa.concat_tables([_located(schema.empty_table(), 0, np.zeros(0, np.int64)), *found])


def _located(table: pa.Table, segment: int, places: np.ndarray) -> pa.Table:
    table = table.replace_schema_metadata(None).append_column("segment", pa.array([segment] * len(places), pa.int32()))
    return table.append_column("place", pa.array(places, pa.int64()))
