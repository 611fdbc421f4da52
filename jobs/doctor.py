"""`situate doctor`: what is missing on this machine and how to get it. Reads and tries, changes nothing that stays."""

import functools
import importlib.util
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from enrichment import endpoint
from enrichment.embed import EmbeddingOptions
from enrichment.engine import ModelOptions
from enrichment.errors import ConfigError, OperationError
from indexing import layout, probe
from indexing.storage import open_storage
from jobs.config import Config
from jobs.models import resolve_model
from jobs.sources import list_files

_PACKAGES = {
    "ray": "pip install 'situate[cpu]' (or [gpu])",
    "vllm": "pip install 'situate[cpu]' (or [gpu]), or set model.endpoint",
    "openai": "pip install 'situate[endpoint]'",
    "faiss": "pip install faiss-cpu",
    "pyserini": "pip install pyserini",
}
_LEAST_MEMORY_BYTES = 4 << 30  # a small model, its cache, the embedder and a JVM
_DASHBOARD_PORT = 8265


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


def examine(config: Config | None) -> dict[str, Any]:
    """All checks, in order; `ok` is whether every one passed."""
    server = config.model.endpoint if config is not None and config.model is not None else None
    looks = (functools.partial(_packages, server), _java, _memory, _port)
    checks = [check for look in looks for check in look()]
    if config is not None:
        checks += [_try("documents", functools.partial(_sources, config))]
        checks += _models(config)
        checks += _store(config)
    return {"ok": all(check.ok for check in checks), "checks": [check._asdict() for check in checks]}


def _packages(server: str | None) -> Iterator[Check]:
    unused = "vllm" if server else "openai"
    for name, remedy in _PACKAGES.items():
        if name == unused:
            continue
        found = importlib.util.find_spec(name) is not None
        yield Check(name, found, "installed" if found else remedy)


def _java() -> Iterator[Check]:
    from indexing.jvm import java_home

    yield _try("java", lambda: f"at {java_home()}")


def _memory() -> Iterator[Check]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    detail = f"{total / 2**30:.0f} GiB" + (
        "" if total >= _LEAST_MEMORY_BYTES else "; a local model needs 4 GiB or more"
    )
    yield Check("memory", total >= _LEAST_MEMORY_BYTES, detail)
    free = shutil.disk_usage(".").free
    yield Check("disk", free >= 1 << 30, f"{free / 2**30:.0f} GiB free here")


def _port() -> Iterator[Check]:
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", _DASHBOARD_PORT)) == 0
    detail = "in use: a Ray dashboard may be running" if taken else "free"
    yield Check(f"port {_DASHBOARD_PORT}", True, detail)


def _models(config: Config) -> Iterator[Check]:
    wanted: list[tuple[str, EmbeddingOptions | ModelOptions]] = [("embedding model", config.embedding)]
    if config.context.asks_model and config.model is not None:
        wanted.append(("language model", config.model))
    for name, options in wanted:
        yield _try(name, functools.partial(_locate, options))
        if isinstance(options, ModelOptions) and options.endpoint:
            yield _try("model server", functools.partial(_serve, options))


def _sources(config: Config) -> str:
    found = list_files(config.documents, besides=config.corpus)
    return f"{len(found.files)} files in {config.documents.uri}"


def _locate(options: EmbeddingOptions | ModelOptions) -> str:
    return f"{options.name} at {resolve_model(options)}"


def _serve(options: ModelOptions) -> str:
    served = endpoint.check(options)
    length = f", up to {served.max_model_len} tokens" if served.max_model_len else ""
    return f"{options.endpoint} serves {served.id}{length}"


def _store(config: Config) -> Iterator[Check]:
    def attempt() -> str:
        storage = open_storage(config.corpus)
        conditional = probe.check(storage, layout.run_file("doctor", ""), single_writer=True)
        remark = "" if conditional else ", but ignores conditional writes: refresh needs --single-writer"
        return f"{config.corpus} can be written{remark}"

    yield _try("store", attempt)


def _try(name: str, attempt: Callable[[], str]) -> Check:
    try:
        return Check(name, True, attempt())
    except (ConfigError, OperationError, OSError) as error:
        return Check(name, False, str(error))
