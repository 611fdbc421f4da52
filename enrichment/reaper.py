"""Processes that must not outlive this one: an engine's own, which hold its memory.

vLLM's engine process waits for ever when the process that started it is killed. A small shell waits on a pipe that closes
when this process ends, however it ends, and kills them.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


class Reaper:
    """Kills the processes that `started` started, when it is closed or this process dies."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self._watcher: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Take charge of the processes that the block starts; if it raises they are killed at once."""
        before = _descendants()
        try:
            yield
        finally:
            self.pids = tuple(sorted(_descendants() - before))
        if self.pids:
            kill = f"read _; kill -KILL {' '.join(map(str, self.pids))} 2>/dev/null"
            self._watcher = subprocess.Popen(["/bin/sh", "-c", kill], stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Kill what is left of them."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.pids = ()
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()


def _descendants() -> set[int]:
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True)}
