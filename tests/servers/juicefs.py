"""JuiceFS's S3 gateway: a real server that takes `If-None-Match` and ignores it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

USER, PASSWORD = "situate", "situate-password"


def binary() -> str | None:
    """Where the program is, beside this Python or on the path."""
    beside = Path(sys.executable).parent / "juicefs"
    return str(beside) if beside.exists() else shutil.which("juicefs")


def environment(url: str) -> dict[str, str]:
    """How a client finds the server at `url`."""
    keys = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD}
    return {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", **keys}


@contextlib.contextmanager
def gateway(work: Path) -> Iterator[str]:
    """A server on loopback with its data below `work`: its URL."""
    program = binary()
    assert program is not None
    meta = f"sqlite3://{work}/meta.db"
    formatting = [program, "format", "--storage", "file", "--bucket", f"{work}/data/", meta, "situate"]
    subprocess.run(formatting, check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "gateway", "--no-usage-report", "--multi-buckets", meta, f"127.0.0.1:{port}"]
    environment = {**os.environ, "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD}
    with (work / "gateway.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert server.poll() is None and time.monotonic() < until, (work / "gateway.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)
