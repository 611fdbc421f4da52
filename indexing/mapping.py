"""Tables that do not fill the memory: written once, uncompressed, into a file without a name, and mapped from there.

Parquet cannot be read at one row. Held in memory, a million rows with their contexts take most of a gigabyte, for good; mapped,
the system keeps the pages that are read and may drop them. The file lies in the cache folder and is gone with the table.
"""

import mmap
import tempfile
from collections.abc import Iterable

import pyarrow as pa

from enrichment import models
from indexing import disk


def mapped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The same rows, read from the disk where they are used. Raises OperationError if they cannot be written."""
    folder = models.cache_directory()
    with disk.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pa.default_memory_pool().release_unused()  # what the batches took, or the process would keep it
    return pa.ipc.open_file(pa.py_buffer(content)).read_all()
