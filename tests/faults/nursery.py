"""A process that has imported the program and forks a night on each request: real processes, without the seconds of imports.

A request is a line of JSON on stdin: `directory`, `environment`, `arguments` of the command `situate`, `moment`, `action`,
`log`, `limit` (bytes per file, or null). The answers are two lines on stdout: the child's process id, which is its process
group's, and in the end its exit status, negative for a signal. Steps run in the child itself (`jobs/local_flow.py`).
"""

import contextlib
import json
import os
import resource
import signal
import sys
import types
from typing import Any

import moments

import enrichment.documents  # noqa: F401
import indexing.serving  # noqa: F401
from jobs import cli, local_flow, refresh

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
        pid = os.fork()
        if pid == 0:
            child(**json.loads(line))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # the child does the same: whoever is first
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def child(
    directory: str,
    environment: dict[str, str],
    arguments: list[str],
    moment: str,
    action: str,
    log: str,
    limit: int | None,
) -> None:
    """One night, in a process group of its own; does not return."""
    status = 70
    try:
        os.setpgid(0, 0)
        os.chdir(directory)
        os.environ.update(environment)
        for descriptor, name in ((0, "/dev/null"), (1, f"{log}.out"), (2, f"{log}.err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY), descriptor)
        moments.install(moment, action, log)
        refresh.flow = WORKERS
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
