"""Keeps Ray's native log lines off the user's terminal while everything else on stderr still gets there.

Ray's core library writes errors of its own concern (such as an actor that could not restart if this process died) straight to
file descriptor 2 and has no setting for it. They start with a time in brackets and a C++ file; they are in Ray's own logs.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator

_NATIVE = re.compile(rb"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] \S+\.cc:\d+: ")


@contextlib.contextmanager
def filtered() -> Iterator[None]:
    """Put a filter between descriptor 2 and the terminal; Python's own stderr goes around it."""
    try:
        is_real = sys.stderr.fileno() == 2
    except (OSError, ValueError, AttributeError):  # closed, replaced, or none at all
        is_real = False
    if not is_real:
        yield
        return
    sys.stderr.flush()
    terminal, before = os.dup(2), sys.stderr
    read_end, write_end = os.pipe()
    os.set_inheritable(terminal, False)
    os.dup2(write_end, 2)
    os.close(write_end)
    thread = threading.Thread(target=_forward, args=(read_end, terminal), daemon=True)
    thread.start()
    sys.stderr = os.fdopen(os.dup(terminal), "w", buffering=1, encoding=before.encoding, errors="backslashreplace")
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = before
        os.dup2(terminal, 2)
        thread.join(1.0)  # children that outlive this process may hold the pipe open: what they say is not waited for


def _forward(read_end: int, terminal: int) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not _NATIVE.match(line):
                with contextlib.suppress(OSError):
                    os.write(terminal, line)
