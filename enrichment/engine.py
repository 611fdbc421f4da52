"""The language model: prompts as token ids in, completions out, in whatever order they finish.

`Engine` is the Protocol that `vllm_engine.VllmEngine`, `endpoint.EndpointEngine` and `fake_engine.FakeEngine` honour.
Requests are queued in the order of the calls; the caller makes a document's calls back to back, so that its prefix is
computed once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from enrichment.errors import ConfigError
from enrichment.models import FAKE

T = TypeVar("T")

# Prefix blocks: 16 tokens is vLLM's own choice on a GPU; its choice on a CPU is 128, which rounds half a block of 128 away
# per chunk. 32 is the smallest that the CPU attention kernels take.
CPU_BLOCK_TOKENS = 32
GPU_BLOCK_TOKENS = 16
REPETITION_PENALTY = (
    1.1  # over the tokens of prompt and output: enough that small models do not loop within two sentences
)
_NOT_OVERRIDABLE = {
    "model": "use model.name",
    "revision": "use model.revision",
    "max_model_len": "use model.max_model_len",
    "trust_remote_code": "code that comes with a model is never run",
    "enable_prefix_caching": "everything here rests on it",
    "seed": "sampling is greedy",
}
_SPEED_ONLY = frozenset(
    [
        "block_size",
        "max_num_batched_tokens",
        "max_num_seqs",
        "gpu_memory_utilization",
        "num_gpu_blocks_override",
        "kv_cache_memory_bytes",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "distributed_executor_backend",
        "enforce_eager",
        "scheduling_policy",
        "stream_interval",
        "prefix_caching_hash_algo",
        "async_scheduling",
        "enable_chunked_prefill",
        "disable_log_stats",
        "load_format",
        "download_dir",
        "max_parallel_loading_workers",
        "disable_custom_all_reduce",
    ]
)
MAX_CONCURRENCY = 1000  # connections that the client of a server keeps at once


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The `model` section of the configuration.

    With `endpoint`, the base URL of a server, `name` gives the tokenizer and the chat template; `served_name` is what the
    server calls the model; each replica has `concurrency` requests with it at once.
    """

    name: str
    revision: str | None = None
    replicas: int = 1
    gpus_per_replica: int = 0
    max_model_len: int = 8192
    engine: Mapping[str, Any] = field(default_factory=dict)
    """vLLM engine arguments that replace ours."""
    endpoint: str | None = None
    served_name: str | None = None
    concurrency: int = 32

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"model.replicas is {self.replicas}; it must be at least 1")
        if self.gpus_per_replica < 0:
            raise ConfigError(f"model.gpus_per_replica is {self.gpus_per_replica}; it must be 0 or more")
        if self.max_model_len < 512:
            raise ConfigError(f"model.max_model_len is {self.max_model_len}; it must be at least 512 tokens")
        for name in _NOT_OVERRIDABLE.keys() & self.engine.keys():
            raise ConfigError(f"model.engine.{name} cannot be set; {_NOT_OVERRIDABLE[name]}")
        if not isinstance(self.block_tokens, int) or self.block_tokens < 1:
            raise ConfigError(f"model.engine.block_size is {self.block_tokens!r}; it must be a number of tokens")
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"model.concurrency is {self.concurrency}; it must be from 1 to {MAX_CONCURRENCY}")
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)
            if self.gpus_per_replica:
                raise ConfigError("model.gpus_per_replica is for a model of our own; with model.endpoint it must be 0")
            if self.name == FAKE:
                raise ConfigError(f"model.name is {FAKE}, which no server has; with model.endpoint name its tokenizer")

    @property
    def block_tokens(self) -> int:
        """The size of a prefix block."""
        size: int = self.engine.get("block_size", GPU_BLOCK_TOKENS if self.gpus_per_replica else CPU_BLOCK_TOKENS)
        return size

    @property
    def outputs_depend_on(self) -> dict[str, Any]:
        """The engine arguments that may change what the model writes: all but those known to change only its speed."""
        return {name: value for name, value in sorted(self.engine.items()) if name not in _SPEED_ONLY}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; part of a context's key. Always greedy, so that no run depends on a seed.

    That is also for vLLM's sake: its CPU runner (0.32) dies of a seeded random request whose prompt is computed in two steps.
    """

    max_tokens: int
    repetition_penalty: float = REPETITION_PENALTY
    urgent: bool = False
    """Served before what waits: else a document's second attempt would stand behind every other document's first."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What one request gave. `cached_tokens` counts prompt tokens that were not computed again."""

    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine works on at once: tokens in its cache (None where that is not known), and requests."""

    cache_tokens: int | None
    requests: int


class PromptRefusedError(Exception):
    """The engine does not take this prompt; others are unaffected."""


class EngineDiedError(Exception):
    """The engine is gone, with all that it was working on."""


def never(text: str) -> bool:
    """Let an output go on to its end."""
    return False


class Engine(Protocol):
    """A language model that answers many requests at once."""

    @property
    def capacity(self) -> Capacity:
        """What it works on at once; more waits inside it, in order."""

    @property
    def preemptions(self) -> int:
        """How often it threw out a running request for lack of cache; what that had computed is computed again."""

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        """Answer one prompt; once `enough` of the output so far holds, nothing more needs to be written.

        Raises PromptRefusedError for a prompt that is too long or malformed, EngineDiedError if the engine is gone.
        """

    def close(self) -> None:
        """Release the model and end its processes, also after the engine died."""


def _check_endpoint(endpoint: str) -> None:
    """Raise ConfigError unless it is a plain URL; its credentials would end up in manifests, so it must have none."""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError("model.endpoint is not a URL; write http://host:8000/v1") from None
    if "@" in endpoint or parts.query or parts.fragment:
        raise ConfigError(
            "model.endpoint holds more than an address, which would be published in manifests;"
            " write http://host:8000/v1 and put the key into the environment variable SITUATE_API_KEY"
        )
    if not valid:
        raise ConfigError(f"model.endpoint is {endpoint}, which is no http or https URL; write http://host:8000/v1")


async def gather_in_order(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await calls that start in the given order; all finish before an error is raised, so none is left running."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    good: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good
