"""A process that has imported the program and forks a night on each request: real processes, without the seconds of imports.

A request is a line of JSON on stdin: `directory`, `environment`, `arguments` of the command `situate`, `moment`, `action`,
`log`, `limit` (bytes per file, or null). The answers are two lines on stdout: the child's process id, which is its process
group's, and in the end its exit status, negative for a signal. Steps run in the child itself (`jobs/local_flow.py`).
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

import moments

import enrichment.documents  # noqa: F401
import indexing.serving  # noqa: F401
from indexing.manifest import SegmentEntry
from jobs import cli, local_flow, refresh
from jobs.carrying import Task
from jobs.run import Run

steps = ("scan", "enrich_and_stage", "build_segments")
WORKERS: Any = types.SimpleNamespace(**{name: getattr(local_flow, name) for name in steps})
WORKERS.cluster = lambda address, replicas: contextlib.nullcontext()


def main() -> None:
    """Serve requests, one child at a time, until stdin ends."""
    import boto3  # noqa: F401
    import faiss  # noqa: F401
    import sentencex  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        log = request.pop("log")
        pipes = [os.pipe() for _ in range(3)]
        pid = os.fork()
        if pid == 0:
            child(*(end for _, end in pipes), **request)
        for _, end in pipes:
            os.close(end)
        names = (f"{log}.out", f"{log}.err", log)
        copies = [threading.Thread(target=keep, args=(end, name)) for (end, _), name in zip(pipes, names, strict=True)]
        for copy in copies:
            copy.start()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # the child does the same: whoever is first
        print(pid, flush=True)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for copy in copies:
            copy.join()
        print(status, flush=True)


def one_by_one(run: Run, tasks: Sequence[Task]) -> list[SegmentEntry]:
    """Carry out the tasks in their order, none beside another."""
    return [entry for task in tasks for entry in local_flow.build_segments(run, [task])]


def keep(end: int, name: str) -> None:
    """What comes through a pipe, in a file: no disk of the child's, and no limit, is in its way."""
    with os.fdopen(end, "rb") as pipe, open(name, "wb") as file:
        shutil.copyfileobj(pipe, file)


def child(
    stdout: int,
    stderr: int,
    log: int,
    directory: str,
    environment: dict[str, str],
    arguments: list[str],
    moment: str,
    action: str,
    limit: int | None,
) -> None:
    """One night, in a process group of its own; does not return."""
    status = 70
    try:
        os.setpgid(0, 0)
        os.chdir(directory)
        os.environ.update(environment)
        for place, descriptor in enumerate((os.open("/dev/null", os.O_RDONLY), stdout, stderr)):
            os.dup2(descriptor, place)
        moments.install(moment, action, log)
        refresh.flow = WORKERS
        if action != "kill":  # which write is refused, and not another one at the same time
            WORKERS.build_segments = one_by_one
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        status = cli.main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        raise
    finally:
        os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
