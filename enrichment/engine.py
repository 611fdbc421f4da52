"""The language model: prompts as token ids in, completions out, in whatever order they finish.

`Engine` is the Protocol that the vLLM engine here, `endpoint.EndpointEngine` and `fake_engine.FakeEngine` honour. Requests are
queued in the order of the calls; the caller makes a document's calls back to back, so that its prefix is computed once. This
is the only file that knows vLLM.
"""

import asyncio
import itertools
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from enrichment.errors import ConfigError, OperationError
from enrichment.models import FAKE

T = TypeVar("T")

# Prefix blocks: 16 tokens is vLLM's own choice on a GPU; its choice on a CPU is 128, which rounds half a block of 128 away
# per chunk. 32 is the smallest that the CPU attention kernels take.
CPU_BLOCK_TOKENS = 32
GPU_BLOCK_TOKENS = 16
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
        return GPU_BLOCK_TOKENS if self.gpus_per_replica else CPU_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; part of a context's key. Always greedy, so that no run depends on a seed.

    That is also for vLLM's sake: its CPU runner (0.32) dies of a seeded random request whose prompt is computed in two steps.
    """

    max_tokens: int
    repetition_penalty: float = 1.1
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


class PromptRefusedError(Exception):
    """The engine does not take this prompt; others are unaffected."""


class Engine(Protocol):
    """A language model that answers many requests at once."""

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        """Answer one prompt. Raises PromptRefusedError for a prompt that is too long or malformed."""

    def close(self) -> None:
        """Release the model and its processes."""


class VllmEngine:
    """vLLM in this process's charge, with automatic prefix caching."""

    def __init__(self, directory: Path, options: ModelOptions) -> None:
        _set_environment(options)
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._engine: Any = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**engine_arguments(directory, options)), start_engine_loop=True
        )
        self._request_ids = itertools.count()

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        from vllm import SamplingParams, TokensPrompt
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=0.0,
            repetition_penalty=sampling.repetition_penalty,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final: Any = None
        try:
            async for output in self._engine.generate(
                TokensPrompt(prompt_token_ids=list(prompt)),
                parameters,
                str(next(self._request_ids)),
                priority=-1 if sampling.urgent else 0,
            ):
                final = output
        except (VLLMValidationError, ValueError) as error:
            raise PromptRefusedError(str(error)) from error
        if final is None:
            raise OperationError("the engine ended a request without an answer; its log says why")
        answer = final.outputs[0]
        return Completion(
            text=answer.text,
            finish_reason=answer.finish_reason or "",
            prompt_tokens=len(prompt),
            cached_tokens=final.num_cached_tokens or 0,
            output_tokens=len(answer.token_ids),
        )

    def close(self) -> None:
        self._engine.shutdown()


def engine_arguments(directory: Path, options: ModelOptions) -> dict[str, Any]:
    """vLLM's arguments, each set on purpose."""
    on_gpu = options.gpus_per_replica > 0
    return {
        "model": str(directory),
        "trust_remote_code": False,
        "max_model_len": options.max_model_len,
        "block_size": options.block_tokens,
        "enable_prefix_caching": True,
        # Embedded, vLLM's defaults are 2,048 and 128 on every device, too little for a GPU and too many sequences for a CPU.
        "max_num_batched_tokens": 16384 if on_gpu else 4096,
        "max_num_seqs": 512 if on_gpu else 32,
        "scheduling_policy": "priority",  # first come, first served among equals; see Sampling.urgent
        "tensor_parallel_size": max(1, options.gpus_per_replica),
        "dtype": "auto" if on_gpu else "bfloat16",
        # Compiling takes a minute at every start on a CPU and gives 4 % there.
        "enforce_eager": not on_gpu,
        "disable_log_stats": True,
        "seed": 0,
    }


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


def _set_environment(options: ModelOptions) -> None:
    """vLLM reads these when it is imported; what the user has set stays."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "TOKENIZERS_PARALLELISM": "false"}
    if options.gpus_per_replica == 0:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GiB
        if options.replicas == 1:
            # Left to itself vLLM keeps one core free, which costs 40 % on a machine with two.
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{(os.cpu_count() or 1) - 1}"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


async def gather_in_order(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await calls that start in the given order; all finish before an error is raised, so none is left running."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    good: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good
