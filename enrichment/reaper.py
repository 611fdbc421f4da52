"""Processes that must not outlive this one: an engine's own, which hold its memory.

vLLM's engine process waits for ever when the process that started it is killed, and its workers take minutes to end by
themselves on a busy machine. A small shell waits on a pipe that closes when this process ends, however it ends, and kills
them. It is no child of this process: of a worker that ends Ray kills the children, and with them would go who kills theirs.
And this process itself, when it has nothing left to do: `bound_exit`.
"""

import atexit
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import IO, Any

_GONE_S = 10.0  # a killed process that holds gigabytes takes a moment to give them back


def bound_exit(seconds: int) -> None:
    """See that this process is gone so many seconds after Python has ended in it.

    What its libraries do behind Python may wait for ever: now and then one of Ray's workers stays behind so, orphaned and
    with all its memory.
    """

    def set_alarm() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)

    atexit.register(set_alarm)


class Reaper:
    """Kills the processes that `started` started, when it is closed or this process dies."""

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._watcher: int | None = None  # a shell, by its number
        self._pipe: IO[bytes] | None = None  # closed, it has the watcher kill

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Take charge of the processes that the block starts; if it raises they are killed at once."""
        before = _descendants()
        try:
            yield
        finally:
            self._processes = sorted(_descendants() - before, key=lambda process: process.pid)
        if self._processes:
            self._watch()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes in its charge."""
        return tuple(process.pid for process in self._processes)

    def close(self) -> None:
        """Kill what is left of them; they are gone when this returns."""
        import psutil

        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # never another process that got the same number
        psutil.wait_procs(self._processes, timeout=_GONE_S)
        self._processes = []
        if self._watcher is not None and self._pipe is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._watcher, signal.SIGKILL)
            self._pipe.close()
            self._watcher = self._pipe = None

    def _watch(self) -> None:
        """Have a shell start the one that watches, and end: so that has no parent here."""
        kill = f"read _ <&3; kill -KILL {' '.join(map(str, self.pids))}"
        start = f"exec 3<&0; ({kill}) >/dev/null 2>&1 & echo $!"  # what runs behind reads nothing from 0
        shell = subprocess.Popen(
            ["/bin/sh", "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert shell.stdout is not None
        self._watcher, self._pipe = int(shell.stdout.readline()), shell.stdin
        shell.stdout.close()
        shell.wait()


def _descendants() -> set[Any]:
    import psutil

    return set(psutil.Process().children(recursive=True))
