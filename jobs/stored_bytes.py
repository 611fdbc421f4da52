"""What a snapshot's text takes: as it is stored, and as windows stored with every row would take."""

import numpy as np
import pyarrow as pa

from indexing import layout
from indexing.manifest import Manifest
from jobs.retries import integers

WINDOW = 3
"""Chunks on each side, as the systems have it that store windows."""
WINDOW_COLUMNS = ("document_id", "byte_start", "byte_end")


def by_kind(found: Manifest) -> dict[str, int]:
    """Bytes of all segments by kind of file, dead rows included; the files of a Lucene index are one kind."""
    sizes: dict[str, int] = {}
    for file in (file for segment in found.segments for file in segment.files):
        name = layout.LEXICAL.rstrip("/") if file.name.startswith(layout.LEXICAL) else file.name
        sizes[name] = sizes.get(name, 0) + file.size_bytes
    return sizes


def of_windows(rows: pa.Table, window: int = WINDOW) -> int:
    """Bytes of the originals with `window` rows of its document before and behind every row, each stored; rows in order."""
    if not rows.num_rows:
        return 0
    owners = rows["document_id"].combine_chunks().dictionary_encode()
    documents = (owners.combine_chunks() if isinstance(owners, pa.ChunkedArray) else owners).indices.to_numpy()
    places = np.arange(len(documents))
    begins = np.flatnonzero(np.r_[True, documents[1:] != documents[:-1]])
    ends = np.r_[begins[1:], len(documents)]
    of_row = np.searchsorted(begins, places, side="right") - 1
    first = np.maximum(places - window, begins[of_row])
    last = np.minimum(places + window, ends[of_row] - 1)
    return int((integers(rows["byte_end"])[last] - integers(rows["byte_start"])[first]).sum())
