"""`situate submit`: what travels to a cluster, what is refused, and how a job is followed. No Ray is started."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError, PublishGateError
from jobs import config, submit

REMOTE: dict[str, Any] = {
    "corpus": "s3://bucket/corpus",
    "documents": {"uri": "s3://bucket/docs"},
    "model": {"name": "owner/model"},
    "embedding": {"name": "all-minilm-l6-v2"},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a model in it, and one that is called like a built-in model."""
    for name in ("models/own", "all-minilm-l6-v2"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOCAL = [
    ("corpus", {"corpus": "corpora/x"}),
    ("corpus", {"corpus": "/srv/corpus"}),
    ("documents.uri", {"documents": {"uri": "docs/*.md"}}),
    ("split.spans", {"split": {"by": "spans", "spans": "spans.jsonl"}}),
    ("model.name", {"model": {"name": "models/own"}}),
    ("embedding.name", {"embedding": {"name": "./models/none"}}),
]


@pytest.mark.parametrize(("key", "settings"), LOCAL)
def test_a_cluster_elsewhere_refuses_local_paths(home: Path, key: str, settings: dict[str, Any]) -> None:
    address = "http://198.51.100.7:8265"
    with pytest.raises(ConfigError, match=rf"^{key} is the local path .*{address} cannot see"):
        submit.submit(Path("job.yaml"), config.parse({**REMOTE, **settings}), address, wait=False)


def test_the_end_of_a_tunnel_refuses_local_paths_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_connect", lambda address, loopback: None)
    elsewhere = [SimpleNamespace(node_ip="127.0.0.1"), SimpleNamespace(node_ip="198.51.100.7")]
    monkeypatch.setattr("ray.util.state.list_nodes", lambda **arguments: elsewhere)
    with pytest.raises(ConfigError, match="corpus is the local path x,"):
        submit.submit(Path("job.yaml"), config.parse({**REMOTE, "corpus": "x"}), "http://localhost:8265", wait=False)
    monkeypatch.setattr("ray.util.state.list_nodes", lambda **arguments: elsewhere[:1])
    assert submit._runs_here("http://localhost:8265")


def test_remote_stores_hub_ids_and_built_in_names_travel_as_they_are(home: Path) -> None:
    parsed = config.parse(REMOTE)
    assert submit.local_paths(parsed) == {}
    assert submit.absolute(parsed, home) == parsed.as_dict()


def test_local_paths_become_absolute_and_mean_the_same(home: Path) -> None:
    parsed = config.parse(
        {
            "corpus": "corpora/x",
            "documents": {"uri": "../docs/**/*.md"},
            "split": {"by": "spans", "spans": "spans.jsonl"},
            "model": {"name": "models/own"},
            "embedding": {"name": "all-minilm-l6-v2"},
        }
    )
    settings = submit.absolute(parsed, home)
    assert settings["corpus"] == f"{home}/corpora/x"
    assert settings["documents"]["uri"] == f"{home}/../docs/**/*.md"
    assert settings["split"]["spans"] == f"{home}/spans.jsonl"
    assert settings["model"]["name"] == f"{home}/models/own"
    assert settings["embedding"]["name"] == "all-minilm-l6-v2"
    assert submit.absolute(config.parse(settings), Path("/elsewhere")) == settings


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:8265", "ray://127.0.0.1:10001", "http://"])
def test_an_address_that_is_no_job_server_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is no job server's address"):
        submit.submit(Path("job.yaml"), config.parse(REMOTE), address, wait=False)


def test_an_address_without_an_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://127.0.0.1:1"  # a port that nothing may listen on without being root
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "disabled")  # so that the test's end restores what submit sets
    with pytest.raises(ConfigError, match=f"no Ray job server at {address}"):
        submit.submit(Path("job.yaml"), config.parse(REMOTE), address, wait=False)


class Server:
    """A job whose log comes over connections that break, each from the beginning."""

    def __init__(self, connections: list[list[str]], status: str, exit_code: int) -> None:
        self._connections, self._status, self._exit_code = connections, status, exit_code

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for text in self._connections.pop(0):
            yield text
        if self._connections:
            raise RuntimeError("the connection broke")

    def get_job_info(self, job: str) -> Any:
        from ray.job_submission import JobStatus

        status = JobStatus(self._status) if not self._connections else JobStatus.RUNNING
        return SimpleNamespace(status=status, driver_exit_code=self._exit_code, message=None)


def wait(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> str:
    monkeypatch.setattr(submit, "_POLL_S", 0)
    return submit._wait(Server(*arguments), "http://localhost:8265", "job-1")


def test_each_line_of_the_log_is_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connections = [["a\n", "b\n"], ["a\n"], ["a\nb\nc\n"], ["a\n", "b\nc\n", "d\x1b\n"]]
    assert wait(monkeypatch, connections, "SUCCEEDED", 0) == "SUCCEEDED"
    assert capsys.readouterr().err == "a\nb\nc\nd\\u001b\n"


def test_a_failed_job_ends_with_the_last_line_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperationError, match="^the job job-1 ended as FAILED: situate: it broke$"):
        wait(monkeypatch, [["start\n", "situate: it broke\n"]], "FAILED", 1)


def test_a_published_refresh_beyond_a_limit_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, [["done\n"]], "FAILED", 3) == submit.LIMIT_EXCEEDED


def test_a_gate_that_refused_is_told_from_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PublishGateError, match="^the job job-1 published nothing: situate: it is rolled back$"):
        wait(monkeypatch, [["situate: it is rolled back\n"]], "FAILED", 4)


@pytest.mark.parametrize("single_writer", [True, False])
def test_the_job_is_told_that_it_writes_alone(single_writer: bool) -> None:
    sent: list[str] = []
    client = SimpleNamespace(submit_job=lambda entrypoint, runtime_env: sent.append(entrypoint) or "job-1")
    parsed = config.parse(REMOTE)
    assert submit._send(client, "http://localhost:8265", "job.yaml", parsed, False, single_writer) == "job-1"
    assert sent == ["python -m jobs.cli refresh ./job.yaml --json" + " --single-writer" * single_writer]


def test_a_job_server_that_stays_away_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_POLLS_LOST", 3)
    with pytest.raises(OperationError, match="answers no more.*job-1 goes on.*ray job logs"):
        wait(monkeypatch, [[] for _ in range(5)], "RUNNING", 0)


def test_ray_is_imported_only_to_submit() -> None:
    code = "import sys; from jobs import submit; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
