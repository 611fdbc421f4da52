"""A refresh on a Ray cluster: submitted through its job server, followed until it is over.

(configuration, address of the job server) -> a job that runs `refresh` where situate is installed, inside the cluster. Only
the configuration travels, as the job's working directory. No credentials do: the nodes need their own for S3 and for model
hubs; of the environment only AWS_ENDPOINT_URL goes along. What was published is read from the manifest.
"""

import asyncio
import contextlib
import json
import os
import shlex
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from enrichment import models
from enrichment.errors import ConfigError, OperationError, PublishGateError, SituateError
from indexing import manifest
from indexing.storage import open_storage
from jobs import cli
from jobs.config import Config

LIMIT_EXCEEDED = "LIMIT_EXCEEDED"  # published, but the refresh ended with cli.LIMIT_EXCEEDED, which Ray calls FAILED
_TOKEN_FILE = Path("~/.ray/auth_token")  # Ray's default; RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH come before it
_POLL_S, _POLLS_LOST = 2.0, 150  # five minutes without an answer, then the wait is over (the job is not)


def submit(path: Path, config: Config, address: str, wait: bool, single_writer: bool = False) -> dict[str, Any]:
    """Submit a refresh of `config`, which was read from `path`; with `wait`, show its log and return when it is over.

    Returns `job`, `status` (Ray's, or LIMIT_EXCEEDED), `address`, and `snapshot`: the newest one where the corpus can be read
    from here, else None. Raises ConfigError before anything is sent, OperationError if the job fails,
    PublishGateError if a gate refused to publish what it made.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--address {address} is no job server's address; write http://127.0.0.1:8265")
    loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not loopback:
        refuse_local_paths(config, address)
    client = _connect(address, loopback)
    here = loopback and _runs_here(address)
    if not here:
        refuse_local_paths(config, address)
    job = _send(client, address, path.name, config, here, single_writer)
    status, found = "PENDING", None
    if wait:
        status = _wait(client, address, job)
        with contextlib.suppress(SituateError):  # without credentials here the cluster can still have published
            found = manifest.latest(open_storage(config.corpus))
    return {"job": job, "status": status, "address": address, "snapshot": found.sequence if found else None}


def local_paths(config: Config) -> dict[str, str]:
    """The settings that name something on this machine's disks, by key."""
    found = {"corpus": config.corpus, "documents.uri": config.documents.uri}
    if config.split.spans is not None:
        found["split.spans"] = config.split.spans
    names = {"model.name": config.model.name if config.model else models.FAKE, "embedding.name": config.embedding.name}
    found |= {key: name for key, name in names.items() if _is_directory_name(name)}
    return {key: uri for key, uri in found.items() if "://" not in uri}


def refuse_local_paths(config: Config, address: str) -> None:
    """A cluster elsewhere reaches only remote stores. Raises ConfigError naming the first local path."""
    for key, uri in local_paths(config).items():
        raise ConfigError(f"{key} is the local path {uri}, which {address} cannot see; use s3://bucket/prefix")


def absolute(config: Config, base: Path) -> dict[str, Any]:
    """The configuration's settings with every local path made absolute against `base`; `..` and links stay as they are."""
    settings = config.as_dict()
    for key, uri in local_paths(config).items():
        section, _, name = key.rpartition(".")
        (settings[section] if section else settings)[name] = str(base / uri)
    return settings


def _is_directory_name(name: str) -> bool:
    return not models.is_built_in(name) and (name.startswith(("/", "./", "../")) or Path(name).is_dir())


def _connect(address: str, loopback: bool) -> Any:
    """A client of the job server, which has answered."""
    os.environ["RAY_API_SERVER_ADDRESS"] = address  # or Ray lets RAY_ADDRESS override what the user typed
    # A Ray that finds a token asks for it, but the client sends it only if told so before the first import. To other hosts
    # than this one (where tunnels end too) it goes only if the user sets the mode.
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if loopback and (named or _TOKEN_FILE.expanduser().is_file()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError("submit needs Ray, which is not installed; run: pip install 'situate[ray]'") from error
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        where = f"RAY_AUTH_TOKEN_PATH (default {_TOKEN_FILE})"
        raise ConfigError(f"{address} wants a token; set RAY_AUTH_MODE=token and {where} to the cluster's") from error
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(f"no Ray job server at {address}; start one, or run: ray dashboard cluster.yaml") from error


def _runs_here(address: str) -> bool:
    """Whether every node is this machine: a loopback address may also be the end of a tunnel to a cluster elsewhere."""
    from ray.util.state import list_nodes

    for node in list_nodes(address=address, filters=[("state", "=", "ALIVE")], limit=10_000):
        with socket.socket(socket.AF_INET6 if ":" in node.node_ip else socket.AF_INET) as probe:
            try:
                probe.bind((node.node_ip, 0))  # the kernel binds own addresses only
            except OSError:
                return False
    return True


def _send(client: Any, address: str, name: str, config: Config, here: bool, single_writer: bool) -> str:
    settings = absolute(config, Path.cwd()) if here else config.as_dict()
    python = shlex.quote(sys.executable) if here else "python"  # the one that has situate
    entrypoint = f"{python} -m jobs.cli refresh {shlex.quote(f'./{name}')} --json"
    entrypoint += " --single-writer" if single_writer else ""
    environment = {key: os.environ[key] for key in ("AWS_ENDPOINT_URL",) if key in os.environ}
    with tempfile.TemporaryDirectory(prefix="situate-submit-") as work:
        (Path(work) / name).write_text(json.dumps(settings, indent=1), encoding="utf-8")  # JSON is YAML
        try:
            runtime_env = {"working_dir": work, "env_vars": environment}
            return str(client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env))
        except (OSError, RuntimeError) as error:
            raise OperationError(f"{address} did not take the job: {error}") from error


def _wait(client: Any, address: str, job: str) -> str:
    """Follow a job to its end; its status. Raises OperationError if it failed, or if it can be followed no longer."""
    import aiohttp

    mode = os.environ.get("RAY_AUTH_MODE", "disabled")
    goes_on = f"the job {job} goes on; to look: RAY_AUTH_MODE={mode} ray job logs --follow --address {address} {job}"
    log, lost = _Log(), 0
    try:
        while True:
            try:
                asyncio.run(log.follow(client, job))
                details, lost = client.get_job_info(job), 0
                if details.status.is_terminal():
                    break
            except (OSError, RuntimeError, aiohttp.ClientError) as error:  # the job server is away, or the tunnel to it
                lost += 1
                if lost == _POLLS_LOST:
                    raise OperationError(f"{address} answers no more; if the cluster lives, {goes_on}") from error
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise OperationError(f"no longer waiting, but {goes_on}") from None
    status = LIMIT_EXCEEDED if details.driver_exit_code == cli.LIMIT_EXCEEDED else str(details.status)
    if details.driver_exit_code == cli.GATE_REFUSED:
        raise PublishGateError(f"the job {job} published nothing: {log.last or details.message}")
    if status not in (LIMIT_EXCEEDED, "SUCCEEDED"):
        raise OperationError(f"the job {job} ended as {status}: {log.last or details.message}")
    return status


class _Log:
    """A job's log on stderr, each line once: every new connection to the server starts it from the beginning."""

    def __init__(self) -> None:
        self.last, self._shown = "", 0

    async def follow(self, client: Any, job: str) -> None:
        """Show what comes until the server closes: when the job is over, or earlier."""
        from jobs.console import visible

        position = 0
        async for text in client.tail_job_logs(job):
            new = visible(text[max(0, self._shown - position) :])
            position += len(text)
            self._shown = max(self._shown, position)
            self.last = new.strip().rpartition("\n")[2] or self.last
            sys.stderr.write(new)
