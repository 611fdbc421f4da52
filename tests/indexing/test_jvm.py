"""P35: the JVM and Ray in one process."""

import subprocess
import sys
from pathlib import Path

import pytest

from indexing import lexical_build

ROOT = Path(__file__).resolve().parent.parent.parent
TEXTS = 300

SEARCHES = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from indexing.lexical import LexicalIndex
from jobs import flow

with flow.cluster(None):
    import ray

    index = LexicalIndex.open([("s", Path(sys.argv[1]))], "en")

    def is_right(number):
        row = number % int(sys.argv[2])
        dead = DEAD if number % 3 else None
        hits = index.search(f"word{row} common", 5, dead)
        expected = row if dead is None or row % 2 else None
        return (hits[0].row == row) if expected is not None else all(hit.row % 2 for hit in hits)

    DEAD = {"s": range(0, int(sys.argv[2]), 2)}
    busy = ray.remote(lambda: sum(range(10**6)))
    waiting = [busy.remote() for _ in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(is_right, range(2000)))
    assert ray.get(waiting) == [sum(range(10**6))] * 20

print(f"{sum(answers)} of {len(answers)} right")  # out here: what is printed beside Ray goes to stderr
"""


@pytest.mark.ray
def test_two_thousand_searches_from_threads_beside_ray_are_right(tmp_path: Path) -> None:
    """Ray's handler of signals would end a process whose JVM takes a page fault to be nothing special."""
    texts = [f"word{row} common text {'common ' * (row % 7)}" for row in range(TEXTS)]
    lexical_build.build(texts, "s", tmp_path / "s", "en")
    command = [sys.executable, "-c", SEARCHES, str(tmp_path / "s"), str(TEXTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().splitlines()[-1] == "2000 of 2000 right"


SIGNALS = """
import ctypes
import sys

import ray  # as vLLM does, before anyone has told it anything

from indexing import jvm
from jobs import flow


def handler():
    buffer = ctypes.create_string_buffer(256)  # of a struct sigaction, whose first field is the handler
    ctypes.CDLL(None).sigaction(11, None, buffer)
    return int.from_bytes(buffer.raw[:8], "little")


if "first" in sys.argv:
    jvm.start_jvm()
found = [handler()]
with flow.cluster(None):
    jvm.start_jvm()
    found += [handler()]
found += [handler()]
print(found[0] if "first" in sys.argv else found[1], *found[1:])
"""


@pytest.mark.ray
@pytest.mark.parametrize("when", ["first", "later"])
def test_java_keeps_the_signal_that_it_needs(when: str) -> None:
    """SIGSEGV is how Java finds a null; without its handler the process dies of one that means nothing."""
    command = [sys.executable, "-c", SIGNALS, when]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    javas, beside, after = done.stdout.split()[-3:]
    assert javas != "0" and javas == beside == after
