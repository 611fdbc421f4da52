"""Reaper: an engine's processes end with the process that started them, however it ends."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from enrichment.reaper import Reaper

STARTS_AND_WAITS = """
import subprocess, time
from enrichment.reaper import Reaper
reaper = Reaper()
with reaper.started():
    child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""

HAS_A_GRANDCHILD = """
import subprocess, time
from enrichment.reaper import Reaper
reaper = Reaper()
with reaper.started():
    child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    grandchild = child.stdout.readline()
print(grandchild, end="", flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_children_of_a_killed_process_are_killed(how: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", STARTS_AND_WAITS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.send_signal(how)
    parent.wait(10)
    assert gone(pid)


def test_they_are_killed_too_where_the_children_of_a_dying_process_are_killed_first() -> None:
    """As Ray does it: an engine's own children, of whom it knows nothing, would stay."""
    parent = subprocess.Popen([sys.executable, "-c", HAS_A_GRANDCHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    for child in psutil.Process(parent.pid).children():
        child.kill()
    parent.kill()
    parent.wait(10)
    assert gone(pid)


def test_closing_kills_what_was_started_inside_and_nothing_else() -> None:
    before = subprocess.Popen(["sleep", "600"])
    reaper = Reaper()
    with reaper.started():
        inside = subprocess.Popen(["sleep", "600"])
    assert reaper.pids == (inside.pid,)
    reaper.close()
    assert gone(inside.pid) and before.poll() is None
    reaper.close()  # a second time does nothing
    before.kill()
    before.wait(10)


def test_a_start_that_fails_leaves_no_process() -> None:
    reaper = Reaper()
    with pytest.raises(RuntimeError), reaper.started():
        child = subprocess.Popen(["sleep", "600"])
        raise RuntimeError("the model does not load")
    reaper.close()
    assert gone(child.pid)


def test_a_process_that_hangs_behind_its_end_is_gone() -> None:
    hangs = (
        "import atexit, time; from enrichment.reaper import bound_exit; atexit.register(time.sleep, 60); bound_exit(1)"
    )
    assert subprocess.run([sys.executable, "-c", hangs], timeout=30).returncode == -signal.SIGALRM


def test_a_process_that_ends_by_itself_keeps_its_status() -> None:
    ends = "import sys; from enrichment.reaper import bound_exit; bound_exit(1); sys.exit(3)"
    assert subprocess.run([sys.executable, "-c", ends], timeout=30).returncode == 3
