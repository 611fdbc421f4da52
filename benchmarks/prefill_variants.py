"""The four ways of `benchmarks/prefill.py`, each run in a process of its own: prompts or documents -> one dict of figures.

Three of them read the Parquet file with the prompts that `prefill_prompts.py` wrote; ours starts from the documents. Greedy
sampling, engine arguments and threads are the same for all. Nothing is shared between two runs. How each figure is defined is
said in `prefill.py`, which prints them.
"""

import argparse
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from prefill_prompts import cache_override, configure, prepare

from enrichment import models
from enrichment.engine import Sampling
from enrichment.vllm_engine import engine_arguments
from jobs import flow, refresh
from jobs.progress import Progress

BATCH_ROWS = 32  # what ray.data.llm sends to an engine at once by default; its input is cut into blocks of as many rows
SHUFFLE_SEED = 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one variant, or `prepare`, in this process."""
    runs: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "prepare": prepare,
        "a": run_ours,
        "b": lambda given: run_ray_llm(given, shuffled=False),
        "c": lambda given: run_ray_llm(given, shuffled=True),
        "d": run_bare,
    }
    return runs[options.run_variant](options)


def run_ours(options: argparse.Namespace) -> dict[str, Any]:
    """`jobs.refresh.refresh` on a corpus that is new."""
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="situate-prefill-") as scratch:
        settings = configure(options, f"{scratch}/corpus")
        if options.replicas > 1:
            start_ray(options.replicas)
        result = refresh.refresh(settings, clock).as_dict()
    tokens = result["tokens"]
    return {
        "object_store_bytes": sum(result["object_store_bytes"].values()),
        "prompts": result["chunks"]["generated"],
        "prompt_tokens": tokens["prompt"],
        "computed": tokens["computed"] - tokens["retries"],
        "retries": tokens["retries"],
        "ideal_reported": tokens["ideal"],
        "block_rounding_reported": tokens["block_rounding"],
        "output_tokens": tokens["output"],
        "wall_s": max(replica["seconds"] for replica in result["replicas"]),
        "ended": clock.last,
        "enrich_s": result["seconds"]["enrich"],
    }


class Clock(Progress):
    """Notes when the last context was reported."""

    def __init__(self) -> None:
        super().__init__(show=False)
        self._generated, self.last = 0, 0.0

    def counts(self, counts: Mapping[str, int]) -> None:
        if counts.get("generated", 0) != self._generated:
            self._generated, self.last = counts["generated"], time.time()
        super().counts(counts)


def start_ray(replicas: int) -> None:
    """A Ray of this process alone; CPUs are counted so that engines and the other operators never wait for each other."""
    import logging

    import ray

    cores = max(2, os.cpu_count() or 1)
    ray.init(
        address="local",
        num_cpus=cores if replicas == 1 else cores + replicas,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}},
    )


def run_ray_llm(options: argparse.Namespace, shuffled: bool) -> dict[str, Any]:
    """`ray.data.llm`, a row per chunk, with its own batch size and concurrency."""
    start_ray(options.replicas)
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    rows = pq.read_table(options.prompts)
    if shuffled:
        rows = rows.take(np.random.default_rng(SHUFFLE_SEED).permutation(rows.num_rows))
    model, arguments = engine(options)
    sampling = sampling_arguments(options.max_tokens)
    ray.data.DataContext.get_current().enable_progress_bars = False
    processor = build_processor(
        vLLMEngineProcessorConfig(
            model_source=model,
            engine_kwargs=arguments,
            concurrency=(options.replicas, options.replicas),
            placement_group_config={"bundles": [{"CPU": 1}]},
            log_engine_metrics=False,  # needs Ray Serve
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
        ),
        preprocess=lambda row: {"sampling_params": sampling},
        postprocess=lambda row: {name: row[name] for name in ("document", "chunk", "generated_text")},
    )
    with tempfile.TemporaryDirectory(prefix="situate-prefill-") as log:
        # Not by plain assignment, which validates the stage again, forgets the placement group and asks for a GPU.
        vars(processor.get_stage_by_name("vLLMEngineStage"))["fn"] = counting_stage(log)
        blocks = [rows.slice(start, BATCH_ROWS).combine_chunks() for start in range(0, rows.num_rows, BATCH_ROWS)]
        given = ray.data.from_arrow(blocks)
        dataset = processor(given)
        answered = sum(batch.num_rows for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"))
        requests = [json.loads(line) for path in Path(log).iterdir() for line in path.read_text().splitlines()]
        replicas = len(list(Path(log).iterdir()))
        store = flow.object_store_bytes(dataset)
    assert answered == len(requests) == rows.num_rows
    found = figures([(r["prompt"], r["cached"], r["output"]) for r in requests])
    started, ended = min(r["started"] for r in requests), max(r["ended"] for r in requests)
    ray.shutdown()
    found |= {"object_store_bytes": sum(store.values()), "operators": store}
    return found | {"wall_s": ended - started, "ended": ended, "engines": replicas}


def counting_stage(log: str) -> type:
    """The library's own engine stage; each answer also leaves a line of its counts and times, outside the dataset."""
    from ray.llm._internal.batch.stages.vllm_engine_stage import vLLMEngineStageUDF

    class CountingStage(vLLMEngineStageUDF):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            generate = self.llm._generate_async
            file = (Path(log) / uuid.uuid4().hex).open("a", buffering=1)  # one per engine

            async def counted(request: Any) -> Any:
                started = time.time()
                output = await generate(request)
                counts = {"prompt": len(output.prompt_token_ids), "cached": output.num_cached_tokens or 0}
                counts |= {"output": len(output.outputs[0].token_ids), "started": started, "ended": time.time()}
                file.write(json.dumps(counts) + "\n")
                return output

            self.llm._generate_async = counted

    return CountingStage


def run_bare(options: argparse.Namespace) -> dict[str, Any]:
    """`vllm.LLM.generate` with all prompts at once, in document order."""
    if options.replicas > 1:
        return {"skipped": "vllm.LLM is one engine"}
    from vllm import LLM, SamplingParams, TokensPrompt

    model, arguments = engine(options)
    rows = pq.read_table(options.prompts)["tokenized_prompt"].to_pylist()
    llm = LLM(model=model, **arguments)
    started = time.time()
    answers = llm.generate(
        [TokensPrompt(prompt_token_ids=ids) for ids in rows],
        SamplingParams(**sampling_arguments(options.max_tokens)),
        use_tqdm=False,
    )
    ended = time.time()
    counts = [(len(a.prompt_token_ids), a.num_cached_tokens or 0, len(a.outputs[0].token_ids)) for a in answers]
    return figures(counts) | {"wall_s": ended - started, "ended": ended, "object_store_bytes": None}


def engine(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The model's directory and our arguments for vLLM besides it."""
    model = configure(argparse.Namespace(**vars(options) | {"cache": "ample"}), "none").model
    assert model is not None
    directory = models.resolve(model.name, model.revision)
    arguments = engine_arguments(directory, model) | cache_override(options, model.block_tokens)
    return arguments.pop("model"), arguments


def sampling_arguments(max_tokens: int) -> dict[str, Any]:
    """What `VllmEngine` asks for a first attempt; of its early stops, the one that vLLM can be told beforehand."""
    sampling = Sampling(max_tokens=max_tokens)
    return {
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": ["\n"],
    }


def figures(requests: list[tuple[int, int, int]]) -> dict[str, Any]:
    """The sums over requests of (prompt tokens, cached tokens, output tokens)."""
    prompt, cached, output = (sum(column) for column in zip(*requests, strict=True))
    return {
        "prompts": len(requests),
        "prompt_tokens": prompt,
        "computed": prompt - cached,
        "retries": 0,
        "output_tokens": output,
    }
