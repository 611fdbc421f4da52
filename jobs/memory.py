"""Memory that a process has freed goes back to the system, where the other processes of a run can use it."""

import contextlib
import ctypes

import pyarrow as pa


def give_back() -> None:
    """Hand back what Arrow's pool and the C library keep for a later that may not come. glibc; elsewhere Arrow's alone."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
