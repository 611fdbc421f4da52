"""Cores: replicas on one machine take disjoint shares, and a dead one's share is free again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLAIMS = "import sys; from enrichment.cores import claim; print(claim(int(sys.argv[1])), flush=True); sys.stdin.read()"


class Claimer:
    def __init__(self, replicas: int, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLAIMS, str(replicas)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        assert self.process.stdout is not None
        self.cores = {int(core) for core in self.process.stdout.readline().split(",")}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def test_one_replica_takes_all_cores(tmp_path: Path) -> None:
    one = Claimer(1, tmp_path)
    assert one.cores == os.sched_getaffinity(0)
    one.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to divide")
def test_two_replicas_take_disjoint_shares_and_a_share_is_free_after_a_kill(tmp_path: Path) -> None:
    first, second = Claimer(2, tmp_path), Claimer(2, tmp_path)
    assert not first.cores & second.cores
    assert first.cores | second.cores == os.sched_getaffinity(0)
    third = Claimer(2, tmp_path)
    assert third.cores == os.sched_getaffinity(0)  # more engines than shares: no worse than without binding
    first.kill()
    again = Claimer(2, tmp_path)
    assert again.cores == first.cores
    for claimer in (second, third, again):
        claimer.kill()
