"""vLLM itself, on a CPU with the small model: exact accounts, early stops, refusals, overrides, and its death."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from enrichment import models
from enrichment.engine import Completion, EngineDiedError, ModelOptions, PromptRefusedError, Sampling
from enrichment.errors import ConfigError
from enrichment.generation import Generation
from enrichment.headings import headings
from enrichment.prompts import Prompts, chat_template
from enrichment.records import Document, DocumentId
from enrichment.situating import WORDING
from enrichment.split import SplitOptions, split
from enrichment.strategies import ContextOptions, Tokens
from enrichment.tokens import FileTokenizer
from enrichment.vllm_engine import VllmEngine, engine_arguments

OPTIONS = ModelOptions("smollm2-135m-instruct", max_model_len=2048, engine={"num_gpu_blocks_override": 128})
CACHE_TOKENS = 128 * 32
STORY = "<|im_start|>user\nTell a story.<|im_end|>\n<|im_start|>assistant\nOnce"  # goes on for a while


def test_arguments_are_overridden_by_name() -> None:
    ours = engine_arguments(Path("m"), ModelOptions("m"))
    assert (ours["block_size"], ours["max_num_seqs"], ours["enable_prefix_caching"]) == (32, 32, True)
    changed = engine_arguments(Path("m"), ModelOptions("m", engine={"max_num_seqs": 8, "dtype": "float32"}))
    assert changed == {**ours, "max_num_seqs": 8, "dtype": "float32"}


@pytest.mark.parametrize("name", ["model", "max_model_len", "trust_remote_code", "enable_prefix_caching", "seed"])
def test_what_has_its_own_key_or_must_not_change_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.engine\.{name} cannot be set; "):
        ModelOptions("m", engine={name: 1})


def test_a_gpu_replica_is_as_many_gpus_in_parallel_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for fp8 in (True, False):
        monkeypatch.setattr("enrichment.vllm_engine._has_fp8_attention", lambda fp8=fp8: fp8)
        found = engine_arguments(Path("m"), ModelOptions("m", gpus_per_replica=4))
        assert (found["tensor_parallel_size"], found["block_size"], found["dtype"]) == (4, 16, "auto")
        assert found["kv_cache_dtype"] == ("fp8" if fp8 else "auto")


@pytest.mark.parametrize(
    ("engine", "changes"), [({"max_num_seqs": 8}, False), ({"quantization": "fp8"}, True), ({"dtype": "float16"}, True)]
)
def test_arguments_that_may_change_outputs_are_known(engine: dict[str, object], changes: bool) -> None:
    assert bool(ModelOptions("m", engine=engine).outputs_depend_on) is changes


@pytest.fixture(scope="module")
def running() -> Iterator[VllmEngine]:
    engine = VllmEngine(models.resolve(OPTIONS.name), OPTIONS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer() -> FileTokenizer:
    return FileTokenizer(models.resolve(OPTIONS.name))


async def ask(engine: VllmEngine, prompt: list[int], sampling: Sampling, **more: object) -> Completion:
    return await engine.generate(prompt, sampling, **more)  # type: ignore[arg-type]


@pytest.mark.model
def test_the_real_engine(running: VllmEngine, tokenizer: FileTokenizer) -> None:
    """One event loop for all of it: an engine belongs to the loop that first asked it."""
    asyncio.run(_all_of_it(running, tokenizer))


async def _all_of_it(engine: VllmEngine, tokenizer: FileTokenizer) -> None:
    assert engine.capacity.cache_tokens == CACHE_TOKENS and len(engine.pids) >= 1
    prompt = tokenizer.encode_template(STORY)

    whole = await ask(engine, prompt, Sampling(40))
    cut = await ask(engine, prompt, Sampling(40), enough=lambda text: text.count(" ") >= 5)
    assert cut.finish_reason == "enough" and whole.text.startswith(cut.text)
    assert 5 <= cut.output_tokens < whole.output_tokens == 40
    assert (await ask(engine, prompt, Sampling(40))).cached_tokens == (len(prompt) - 1) // 32 * 32

    with pytest.raises(PromptRefusedError):
        await ask(engine, [5] * 2048, Sampling(16))
    with pytest.raises(PromptRefusedError):
        await ask(engine, [], Sampling(16))

    # Five documents of half the cache each: without admission they would throw each other out.
    situate = Generation(
        engine,
        Prompts(tokenizer, chat_template(str(models.resolve(OPTIONS.name))), "causal", WORDING),
        ContextOptions(max_output_tokens=16),
        OPTIONS.max_model_len,
        OPTIONS.block_tokens,
        "model",
        {},
    )

    async def one(number: int) -> Tokens:
        text = "".join(f"# {number}.{n}\n\n" + f"Rule {n} of book {number} holds. " * 25 + "\n\n" for n in range(8))
        document = Document(DocumentId(str(number)), text, title=f"Book {number}")
        encoding = tokenizer.encode(text)
        chunks = split(document, headings(text), SplitOptions(), encoding.offsets)
        return (await situate.contexts(document, headings(text), chunks, encoding)).tokens

    total = Tokens()
    for tokens in await asyncio.gather(*(one(number) for number in range(5))):
        total = total.plus(tokens)
    first_attempts = total.computed - total.retries
    assert total.prompt > 2 * CACHE_TOKENS
    # The template's own beginning may be in the cache already, from the prompts above.
    assert total.ideal + total.block_rounding - 128 <= first_attempts <= total.ideal + total.block_rounding
    assert engine.preemptions == 0


@pytest.mark.model
def test_an_engine_whose_process_is_killed_is_dead_for_all_requests_and_leaves_no_process(
    tokenizer: FileTokenizer,
) -> None:
    engine = VllmEngine(models.resolve(OPTIONS.name), replace(OPTIONS, max_model_len=512))
    pids = engine.pids
    prompt = tokenizer.encode_template(STORY)

    async def killed() -> list[Completion | BaseException]:
        begun = asyncio.Event()

        def begins(text: str) -> bool:
            begun.set()
            return False

        requests = [asyncio.create_task(engine.generate(prompt, Sampling(400), begins)) for _ in range(3)]
        await asyncio.wait_for(begun.wait(), 60)
        (core,) = (pid for pid in pids if "EngineCore" in psutil.Process(pid).name())
        os.kill(core, signal.SIGKILL)
        answers = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 60)
        with pytest.raises(EngineDiedError):
            await engine.generate(prompt, Sampling(4))
        return answers

    assert {type(answer) for answer in asyncio.run(killed())} == {EngineDiedError}
    engine.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.model
def test_an_argument_that_this_vllm_does_not_know_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.engine\.blok_size is not an engine argument of this vLLM"):
        VllmEngine(Path("m"), ModelOptions("m", engine={"blok_size": 32}))
