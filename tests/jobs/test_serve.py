"""`situate serve` as a process: where it listens, what it keeps to itself, how it ends."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobs import cli

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "0123456789abcdef-secret"
COMMAND = "import sys; from jobs import cli; sys.exit(cli.main(sys.argv[1:]))"
SLOW = """
import time
from indexing.snapshot import Snapshot
search = Snapshot.search
def slow(*given, **options):
    time.sleep(1.5 if "slowly" in given else 0)
    return search(*given, **options)
Snapshot.search = slow
"""


def text_of(name: str) -> str:
    """A document with a few sentences of its own."""
    return f"# {name}\n\n" + "".join(f"Rule {n} of {name} holds for each thing in it. " for n in range(6))


@pytest.fixture(scope="module")
def uri(stage: Any) -> str:
    staged = stage({f"{name}.md": text_of(name) for name in ("alder", "birch")})
    staged.publish()
    return staged.storage.uri


class Served:
    """A running service."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        self.started: dict[str, Any] = json.loads(line)
        self.port = urlsplit(self.started["url"]).port

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers=dict(headers or {}))
        with contextlib.closing(connection):
            answer = connection.getresponse()
            return answer.status, answer.read()

    def stop(self, number: int) -> tuple[int, str]:
        """The exit status and everything that was printed after the start."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out + err


@contextlib.contextmanager
def served(uri: str, *options: str, before: str = "", **environment: str) -> Iterator[Served]:
    arguments = [sys.executable, "-c", before + COMMAND, "serve", uri, "--port", "0", "--json", *options]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(arguments, text=True, env=variables, cwd=ROOT, **pipes)
    try:
        yield Served(process)
    finally:
        process.kill()
        process.wait()


def addresses(pid: int) -> set[str]:
    """Where a process listens, from the kernel's tables: addresses as they stand there, in hexadecimal."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            links.append(os.readlink(descriptor))
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_listens_on_loopback_alone_answers_and_ends_well(uri: str, number: int) -> None:
    with served(uri) as service:
        assert addresses(service.process.pid) == {"0100007F"}
        status, body = service.get("/search?q=alder&mode=lexical")
        assert status == 200
        assert json.loads(body)["passages"][0]["document_id"] == "alder.md"
        assert service.get("/snapshot", {"Host": "evil.example"})[0] == 421
        assert service.stop(number) == (0, "")


def test_what_is_in_work_is_answered_before_it_ends(uri: str) -> None:
    with served(uri, before=SLOW) as service:
        answers: list[tuple[int, bytes]] = []
        asker = threading.Thread(target=lambda: answers.append(service.get("/search?q=slowly")))
        asker.start()
        while b"situate_requests_in_work 1.0" not in service.get("/metrics")[1]:
            assert asker.is_alive()
        assert service.stop(signal.SIGTERM) == (0, "")
        asker.join()
        assert answers[0][0] == 200
        assert json.loads(answers[0][1])["passages"]
        with pytest.raises(ConnectionRefusedError):
            service.get("/health")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", socket.gethostname()])
def test_beyond_loopback_it_refuses_to_start_without_a_token(
    uri: str, host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SITUATE_TOKEN", raising=False)
    with contextlib.suppress(OSError):
        if socket.gethostbyname(host or "0.0.0.0").startswith("127."):
            pytest.skip(f"{host} is loopback here")
    assert cli.main(["serve", uri, "--host", host, "--port", "0"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "SITUATE_TOKEN" in lines[0]


@pytest.mark.parametrize("token", ["sesame", "with space " * 3, "schlüssel" * 3])
def test_a_token_that_protects_nothing_is_refused_and_not_repeated(
    uri: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", uri, "--host", "0.0.0.0", "--port", "0", "--token", token]) == 2
    said = capsys.readouterr()
    assert "16 characters" in said.err
    assert token not in said.err + said.out


@pytest.mark.parametrize("given", ["option", "environment"])
def test_beyond_loopback_it_asks_for_the_token_and_tells_it_nobody(uri: str, given: str) -> None:
    options = ["--token", TOKEN] if given == "option" else []
    with served(uri, "-v", "--host", "0.0.0.0", *options, SITUATE_TOKEN=TOKEN if not options else "") as service:
        assert addresses(service.process.pid) == {"00000000"}
        assert service.get("/search?q=theirs")[0] == 401
        assert service.get("/search?q=theirs", {"Authorization": "Bearer not-the-right-one"})[0] == 401
        assert service.get("/search?q=theirs", {"Authorization": f"Bearer {TOKEN}"})[0] == 200
        status, printed = service.stop(signal.SIGTERM)
        assert status == 0
        assert TOKEN not in printed
        assert "theirs" not in printed, "what people ask is in no log"


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--port", "70000"], 2, "--port is 70000"),
        (["--follow", "0"], 2, "--follow is 0"),
        (["--follow", "nan"], 2, "--follow is nan"),
        (["--host", "no such host"], 2, "--host is no such host"),
        (["--host", "192.0.2.1", "--token", TOKEN], 1, "cannot be listened on"),
    ],
)
def test_where_it_cannot_listen_it_says_so(
    uri: str, flags: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", uri, *flags]) == status
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]


def test_a_port_in_use_is_one_sentence(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["serve", uri, "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot be listened on (Address already in use)" in capsys.readouterr().err


def test_without_a_corpus_it_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert "holds no snapshot" in capsys.readouterr().err
