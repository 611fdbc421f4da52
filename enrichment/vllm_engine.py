"""vLLM as an Engine: its arguments, its environment, its processes. The only file that knows vLLM."""

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from enrichment import cores
from enrichment.engine import Capacity, Completion, EngineDiedError, ModelOptions, PromptRefusedError, Sampling, never
from enrichment.errors import ConfigError
from enrichment.reaper import Reaper

_WATCH_S = 1.0
_LOOKAHEAD = 8  # requests that wait inside the engine, so that a place that falls free is taken in the same step


class VllmEngine:
    """vLLM in this process's charge, with automatic prefix caching."""

    def __init__(self, directory: Path, options: ModelOptions) -> None:
        _set_environment(options)
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = engine_arguments(directory, options)
        unknown = arguments.keys() - AsyncEngineArgs.__dataclass_fields__.keys()
        if unknown:
            raise ConfigError(f"model.engine.{min(unknown)} is not an engine argument of this vLLM; correct or drop it")
        counter = _preemption_counter()
        self._reaper = Reaper()
        try:
            with self._reaper.started():
                self._engine: Any = AsyncLLM.from_engine_args(
                    AsyncEngineArgs(**arguments), start_engine_loop=True, stat_loggers=[counter]
                )
        except Exception:
            self._reaper.close()
            raise
        self._counter: Any = counter
        self._request_ids = itertools.count()
        self._asking: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        blocks = self._engine.vllm_config.cache_config.num_gpu_blocks
        self.capacity = Capacity(blocks * options.block_tokens, arguments["max_num_seqs"] + _LOOKAHEAD)

    @property
    def preemptions(self) -> int:
        return int(self._counter.preemptions)

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        from vllm import SamplingParams, TokensPrompt
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        parameters = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=0.0,
            repetition_penalty=sampling.repetition_penalty,
            output_kind=RequestOutputKind.CUMULATIVE,
        )
        answers = self._engine.generate(
            TokensPrompt(prompt_token_ids=list(prompt)),
            parameters,
            str(next(self._request_ids)),
            priority=-1 if sampling.urgent else 0,
        )
        if self._engine.errored:
            raise EngineDiedError("it is gone")
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._wake_when_dead())
        asking = asyncio.current_task()
        assert asking is not None
        self._asking.add(asking)
        last: Any = None
        stopped = False
        try:
            async with aclosing(answers):  # leaving early takes the request out of the engine
                async for last in answers:
                    stopped = not last.finished and enough(last.outputs[0].text)
                    if stopped:
                        break
        except (VLLMValidationError, ValueError) as error:
            raise PromptRefusedError(str(error)) from error
        except EngineGenerateError as error:
            if not self._engine.errored:  # it goes on; this prompt was too much for it
                raise PromptRefusedError(f"the engine could not answer it: {error.__cause__ or error}") from error
            raise EngineDiedError(str(error)) from error
        except EngineDeadError as error:
            raise EngineDiedError(str(error)) from error
        except asyncio.CancelledError as error:
            if not self._engine.errored:
                raise
            raise EngineDiedError("it died without a word to this request") from error
        finally:
            self._asking.discard(asking)
        if last is None:
            raise EngineDiedError("it ended a request without an answer")
        answer = last.outputs[0]
        return Completion(
            text=answer.text,
            finish_reason="enough" if stopped else answer.finish_reason or "",
            prompt_tokens=len(prompt),
            cached_tokens=last.num_cached_tokens or 0,
            output_tokens=len(answer.token_ids),
        )

    async def _wake_when_dead(self) -> None:
        """vLLM tells its death to the requests that it knows; one that it was just about to know would wait for ever."""
        while not self._engine.errored:
            await asyncio.sleep(_WATCH_S)
        await asyncio.sleep(_WATCH_S)  # time for those that are told
        for asking in self._asking:
            asking.cancel()

    @property
    def pids(self) -> tuple[int, ...]:
        """The engine's own processes."""
        return self._reaper.pids

    def close(self) -> None:
        try:
            self._engine.shutdown()
        finally:
            self._reaper.close()


def engine_arguments(directory: Path, options: ModelOptions) -> dict[str, Any]:
    """vLLM's arguments, each set on purpose; `model.engine` has the last word."""
    on_gpu = options.gpus_per_replica > 0
    return {
        "model": str(directory),
        "trust_remote_code": False,
        "max_model_len": options.max_model_len,  # the longest prompt and its answer: sequences are planned for it
        "block_size": options.block_tokens,
        "enable_prefix_caching": True,
        # Documents are not trusted: with a hash that can be forged, one could be read as another's prefix.
        "prefix_caching_hash_algo": "sha256",
        # Embedded, vLLM's defaults are 2,048 and 128 on every device, too little for a GPU and too many sequences for a CPU.
        "max_num_batched_tokens": 16384 if on_gpu else 4096,
        "max_num_seqs": 512 if on_gpu else 32,
        "scheduling_policy": "priority",  # first come, first served among equals; see Sampling.urgent
        "tensor_parallel_size": max(1, options.gpus_per_replica),
        "dtype": "auto" if on_gpu else "bfloat16",
        # Half the bytes per cached token, where the attention kernels compute in it.
        "kv_cache_dtype": "fp8" if on_gpu and _has_fp8_attention() else "auto",
        # Compiling takes a minute at every start on a CPU and gives 4 % there.
        "enforce_eager": not on_gpu,
        # Outputs are looked at while they grow (`enough`); at a GPU's rate not each token is worth a message.
        "stream_interval": 8 if on_gpu else 1,
        "disable_log_stats": True,
        "seed": 0,
        **options.engine,
    }


def _has_fp8_attention() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda() and current_platform.has_device_capability(90))


def _preemption_counter() -> Any:
    """A vLLM stat logger class that counts preemptions, all its instances together."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class PreemptionCounter(StatLoggerBase):  # type: ignore[misc]
        preemptions = 0

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if iteration_stats is not None:
                PreemptionCounter.preemptions += iteration_stats.num_preempted_reqs

        def log_engine_initialized(self) -> None: ...

    return PreemptionCounter


def _set_environment(options: ModelOptions) -> None:
    """vLLM reads these when it is imported; what the user has set stays."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "TOKENIZERS_PARALLELISM": "false"}
    if options.gpus_per_replica == 0:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GiB
        # Left to itself vLLM keeps one core free, which costs 40 % on a machine with two; two engines on the same
        # cores cost each other more.
        bound = cores.claim(options.replicas)
        defaults["VLLM_CPU_OMP_THREADS_BIND"] = bound
        # Ray has set it to the CPUs that it counts for the worker, one: a part of the kernels then ran on one core.
        os.environ["OMP_NUM_THREADS"] = str(bound.count(",") + 1)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
