"""`situate submit` to a Ray that is started for it: the job publishes what a refresh on this machine does."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from indexing import layout, manifest
from indexing.storage import open_storage


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | more


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a Ray with token authentication, and the environment of its users; `ray stop` would end every Ray."""
    variables = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    dashboard = free_port()
    ports = ("port", "dashboard-agent-listen-port", "runtime-env-agent-port", "metrics-export-port")
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    command += ["--include-dashboard=true", f"--object-store-memory={100 << 20}", "--disable-usage-stats"]
    command += [f"--{name}={free_port()}" for name in ports]
    address = f"http://127.0.0.1:{dashboard}"
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as work:
        process = subprocess.Popen(
            [*command, f"--temp-dir={work}"],
            env=variables | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"},  # else SIGTERM takes half a minute
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_for(f"{address}/api/version", variables["RAY_AUTH_TOKEN"])
            yield address, variables
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(url: str, token: str) -> None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"no answer from {url}"
            time.sleep(0.5)


def command(folder: Path, variables: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *arguments, "--json"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.ray
def test_a_submitted_refresh_publishes_what_a_local_one_does(
    ray_cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, variables = ray_cluster
    (tmp_path / "docs").mkdir()
    for number in range(4):
        text = "".join(
            f"Sentence {n} of document {number} is about pumps. It has a second half.\n\n" for n in range(20)
        )
        (tmp_path / "docs" / f"{number}.md").write_text(f"# Document {number}\n\n{text}")
    for name in ("here", "there"):
        settings = {"corpus": name, "documents": {"uri": "docs"}, "split": {"size": 60, "min_size": 20}}
        settings |= {"model": {"name": "fake"}, "embedding": {"name": "fake"}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(settings))

    # What the user typed counts, whatever the environment says of another Ray.
    submitted = command(
        tmp_path, variables | {"RAY_ADDRESS": "127.0.0.1:1"}, "submit", "there.yaml", "--address", address
    )
    assert {**submitted, "job": ""} == {"job": "", "status": "SUCCEEDED", "address": address, "snapshot": 1}
    assert command(tmp_path, environment(), "refresh", "here.yaml")["snapshot"] == 1

    here, there = (manifest.require_latest(open_storage(str(tmp_path / name))) for name in ("here", "there"))
    assert [entry.digest for entry in there.segments] == [entry.digest for entry in here.segments]
    assert there.fingerprints == here.fingerprints
    assert there.config["corpus"] == str(tmp_path / "there")
    for ours, theirs in zip(here.segments, there.segments, strict=True):
        for name in (layout.ROWS, layout.VECTORS):
            pair = [
                pq.read_table(tmp_path / corpus / layout.segment(segment.id, name))
                for corpus, segment in (("there", theirs), ("here", ours))
            ]
            assert pair[0].num_rows > 4
            # Which tokens were cached follows the order of the work, which is Ray's.
            columns = [column for column in pair[0].schema.names if column != "cached_tokens"]
            assert pair[0].select(columns).equals(pair[1].select(columns))
