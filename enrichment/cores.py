"""Which cores of this machine an engine computes on: replicas beside each other take disjoint shares.

A share is taken by locking a file for as long as the process lives, so no replica has to know of another.
"""

import fcntl
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_held: list[Any] = []


@cache
def claim(replicas: int) -> str:
    """The cores of one of `replicas` engines, such as `0,1`, in the form that vLLM reads; all of them if no share is free."""
    cores = sorted(os.sched_getaffinity(0))
    shares = min(replicas, len(cores))
    directory = Path(tempfile.gettempdir()) / f"situate-cores-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    for share in range(shares):
        file = (directory / f"{share + 1}-of-{shares}").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        _held.append(file)  # closing it would free the share
        cores = cores[share * len(cores) // shares : (share + 1) * len(cores) // shares]
        break
    return ",".join(map(str, cores))
