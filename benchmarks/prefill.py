"""What each way of writing contexts makes the model read: `python benchmarks/prefill.py [--only a,d] [--limit N]`.

The same documents, prompts, model, greedy sampling, engine arguments and threads through

    a  ours: `jobs.refresh.refresh` on a new corpus, fake embedder
    b  ray.data.llm with a row per chunk, in document order, its own batch size (32) and concurrency
    c  the same, rows shuffled with a fixed seed
    d  vllm.LLM.generate with all prompts at once, in document order

each in a fresh process, the variants in turn within a round, medians over the rounds. The columns:

computed: prompt tokens not served from the prefix cache, first attempts only; from each answer's `num_cached_tokens` (ours: the
refresh's tokens). ideal: each prompt's tokens without those that begin the prompt before it in document order too, at least
one. rounding: what of that common beginning does not fill a block of the cache. Both come from the prompts alone.
output: tokens written; ours with second attempts. wall: from the first request to the loaded engines to the last answer; for
ours from the first model's load to the last document, so with splitting, second attempts and what follows an answer.
store: bytes that the dataset's operators, input included, put into Ray's object store, per byte of the documents' text.
memory: the largest sum, sampled every 0.5 s up to the last answer, of the proportional set sizes of the variant's process and
of all that descend from it: driver, Ray's daemons and workers, engines; shared pages count once.
"""

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {"a": "ours", "b": "ray.data.llm", "c": "ray.data.llm, shuffled", "d": "vllm.LLM"}
CELL = ("prompt", "replicas", "cache", "variant")
SAMPLE_S = 5.0  # reading a process tree's shared memory takes a core for some tenths of a second


def main() -> None:
    options = arguments().parse_args()
    if options.run_variant:
        import prefill_variants

        options.prompt, options.replicas, options.cache = options.prompt[0], options.replicas[0], options.cache[0]
        options.out.write_text(json.dumps(prefill_variants.run(options)))
        return
    with tempfile.TemporaryDirectory(prefix="situate-prefill-") as scratch:
        report = {"command": shlex.join(["python", *sys.argv]), "threads": threads(options.replicas)}
        report["results"] = measure(options, Path(scratch))
    print(f"    {report['command']}\n\n{table(report['results'])}\n")
    for line in (*report["threads"], *skipped(report["results"]), *paired(report["results"])):
        print(f"* {line}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("examples/handbook.yaml"), help="model, split, lengths")
    parser.add_argument("--data", type=Path, default=Path("examples/handbook"), help="documents: a folder or a file")
    parser.add_argument("--spans", type=Path, help="chunks: JSON lines of document_id, start, end")
    parser.add_argument("--limit", type=int, help="use the first N documents")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--prompt", nargs="+", choices=("causal", "quote", "both"), default=["causal"])
    parser.add_argument("--replicas", nargs="+", type=int, choices=(1, 2), default=[1])
    parser.add_argument("--cache", nargs="+", choices=("ample", "squeezed"), default=["ample"])
    parser.add_argument("--only", default="a,b,c,d", help="variants, such as a,d")
    parser.add_argument("--besides", nargs="+", default=[], help="more cells, such as quote:b")
    parser.add_argument("--repeat", type=int, default=1, help="rounds")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds here")
    for name in ("--run-variant", "--prompts", "--out"):  # for the processes that this one starts
        parser.add_argument(name, type=None if name == "--run-variant" else Path, help=argparse.SUPPRESS)
    return parser


def measure(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Run every variant in every round; a result per cell, with its rounds."""
    if options.limit:
        import prefill_prompts

        prefill_prompts.copy_first(options.data, options.limit, scratch / "documents")
        options.data = scratch / "documents"
    kinds = ("causal", "quote") if "both" in options.prompt else tuple(options.prompt)
    besides = [tuple(pair.split(":")) for pair in options.besides]
    facts = {kind: prepared(options, kind, scratch) for kind in {*kinds, *(kind for kind, _ in besides)}}
    cells = list(itertools.product(kinds, options.replicas, options.cache, options.only.split(",")))
    cells += [(kind, options.replicas[0], options.cache[0], variant) for kind, variant in besides]
    rounds: dict[tuple[Any, ...], list[dict[str, Any]]] = {cell: [] for cell in cells}
    for number, cell in itertools.product(range(options.repeat), cells):
        found = run_child(options, dict(zip(CELL, cell, strict=True)), scratch)
        rounds[cell].append(found)
        print(f"round {number + 1}: {cell}: {found}", file=sys.stderr, flush=True)
    return [
        dict(zip(CELL, cell, strict=True)) | summary(rounds[cell], facts[cell[0]]) | {"rounds": rounds[cell]}
        for cell in cells
    ]


def prepared(options: argparse.Namespace, kind: str, scratch: Path) -> dict[str, Any]:
    """Have the prompts of one kind written; what follows from them alone."""
    import pyarrow.parquet as pq

    cell = {"prompt": kind, "replicas": 1, "cache": "ample", "variant": "prepare"}
    facts = run_child(options, cell, scratch)
    column = pq.read_table(scratch / f"{kind}.parquet")["tokenized_prompt"]
    prompts = [value.values.to_numpy() for value in column]
    ideal, rounding = ideal_and_rounding(prompts, facts["block_tokens"])
    total = sum(len(prompt) for prompt in prompts)
    return facts | {"num_prompts": len(prompts), "total_tokens": total, "ideal": ideal, "block_rounding": rounding}


def ideal_and_rounding(prompts: Iterable[np.ndarray], block_tokens: int) -> tuple[int, int]:
    """The tokens to compute if each prompt follows the one before, and what whole blocks add to them."""
    last = np.zeros(0, dtype=np.int64)
    ideal = rounding = 0
    for prompt in prompts:
        length = min(len(last), len(prompt) - 1)  # the last token is always computed: the answer begins there
        differ = np.flatnonzero(last[:length] != prompt[:length])
        common = int(differ[0]) if len(differ) else length
        ideal += len(prompt) - common
        rounding += common % block_tokens
        last = prompt
    return ideal, rounding


def summary(rounds: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The medians of a cell's rounds and the ratios between them."""
    if "skipped" in rounds[0]:
        return {"skipped": rounds[0]["skipped"]}
    names = [name for name, value in rounds[0].items() if isinstance(value, int | float)]
    found: dict[str, Any] = {name: statistics.median(entry[name] for entry in rounds) for name in names}
    if found["prompts"] != facts["num_prompts"]:
        raise SystemExit(f"{found['prompts']} prompts were answered, but {facts['num_prompts']} were prepared")
    found |= {"prompt_tokens": facts["total_tokens"], "ideal": facts["ideal"], "rounding": facts["block_rounding"]}
    found["over_ideal"] = found["computed"] / facts["ideal"]
    found["over_floor"] = found["computed"] / (facts["ideal"] + facts["block_rounding"])
    store = found.get("object_store_bytes")
    return found | {"store_ratio": None if store is None else store / facts["corpus_bytes"]}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as a Markdown table, a row per cell that was run."""
    columns = {
        "prompts": ("prompts", "{:,.0f}"),
        "prompt tokens": ("prompt_tokens", "{:,.0f}"),
        "computed": ("computed", "{:,.0f}"),
        "ideal": ("ideal", "{:,.0f}"),
        "rounding": ("rounding", "{:,.0f}"),
        "computed / ideal": ("over_ideal", "{:.3f}"),
        "computed / (ideal + rounding)": ("over_floor", "{:.3f}"),
        "output": ("output_tokens", "{:,.0f}"),
        "wall s": ("wall_s", "{:.1f}"),
        "store / text": ("store_ratio", "{:.2f}"),
        "memory GB": ("peak_memory_bytes", "{:.2f}"),
    }
    lines = [
        "| prompt | replicas | cache | variant | " + " | ".join(columns) + " |",
        "|---|---|---|---|" + "---:|" * len(columns),
    ]
    for result in results:
        if "skipped" in result:
            continue
        cells = [result["prompt"], str(result["replicas"]), result["cache"], NAMES[result["variant"]]]
        for key, form in columns.values():
            value = result.get(key)
            value = value / 1e9 if key == "peak_memory_bytes" and value is not None else value
            cells.append("-" if value is None else form.format(value))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def skipped(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was not run, and why."""
    return [
        f"not run: {NAMES[r['variant']]}, {r['replicas']} replicas, {r['cache']} cache: {r['skipped']}"
        for r in results
        if "skipped" in r
    ]


def paired(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ours against each other cell, round by round: the median of the ratios of wall times, and all of them."""
    timed = [result for result in results if "wall_s" in result]
    lines = []
    for ours, other in itertools.product([r for r in timed if r["variant"] == "a"], timed):
        if other["variant"] != "a":
            ratios = [a["wall_s"] / b["wall_s"] for a, b in zip(ours["rounds"], other["rounds"], strict=True)]
            names = [" ".join(str(cell[key]) for key in CELL[:-1]) for cell in (ours, other)]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(
                f"wall, ours ({names[0]}) / {NAMES[other['variant']]} ({names[1]}):"
                f" median {statistics.median(ratios):.2f} of {each}"
            )
    return lines


def threads(replicas: Sequence[int]) -> list[str]:
    """How the engines' threads are placed, in words."""
    cores = os.cpu_count() or 1
    words = {
        1: f"1 replica: threads bound to cores 0-{cores - 1} in every variant",
        2: "2 replicas: one thread per engine, not bound, because neither Ray variant can be told a core per replica; work"
        " starts when both engines are loaded; Ray is told of 2 CPUs more than there are, so no operator waits for another",
    }
    return [words[number] for number in replicas]


def environment(replicas: int) -> dict[str, str]:
    """What all variants find in their environment."""
    given = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB per engine
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # else Ray sets it to 1, and ray.data.llm suffers
    }
    if replicas > 1:
        given |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        given["RAY_DATA_DEFAULT_WAIT_FOR_MIN_ACTORS_S"] = "600"
    return dict(os.environ) | given


def run_child(options: argparse.Namespace, cell: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Run one variant in a process of its own; its figures with its peak memory and its duration."""
    out, log = scratch / "result.json", scratch / "log"
    command = [sys.executable, __file__, "--run-variant", cell["variant"], "--out", out]
    command += ["--prompts", scratch / f"{cell['prompt']}.parquet", "--config", options.config, "--data", options.data]
    command += ["--max-tokens", options.max_tokens, *(("--spans", options.spans) if options.spans else ())]
    for name in ("prompt", "replicas", "cache"):
        command += [f"--{name}", cell[name]]
    out.unlink(missing_ok=True)
    started = time.time()
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [str(part) for part in command], stdout=errors, stderr=errors, env=environment(cell["replicas"])
        )
        samples = watch_memory(child)
    if child.returncode or not out.exists():
        raise SystemExit(f"{cell} failed with {child.returncode}:\n{log.read_text(errors='replace')[-4000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    if "ended" in found:
        found["peak_memory_bytes"] = max(size for at, size in samples if at <= found["ended"] + SAMPLE_S)
        found["process_s"] = time.time() - started
    return found


def watch_memory(child: subprocess.Popen[bytes]) -> list[tuple[float, int]]:
    """(time, bytes) until the child ends; what it leaves running is ended."""
    import psutil

    samples, seen = [], {}
    while child.poll() is None:
        total, began = 0, time.time()
        try:
            root = psutil.Process(child.pid)
            seen |= {process.pid: process for process in (root, *root.children(recursive=True))}
        except psutil.NoSuchProcess:
            break
        for process in seen.values():
            try:
                if process.is_running():  # False if the number belongs to another process by now
                    total += process.memory_full_info().pss
            except psutil.Error:
                continue
        samples.append((began, total))
        time.sleep(max(0.0, SAMPLE_S - (time.time() - began)))
    child.wait()
    left = [process for pid, process in seen.items() if pid != child.pid and process.is_running()]
    for process in psutil.wait_procs(left, timeout=5)[1]:
        process.kill()
    return samples


if __name__ == "__main__":
    main()
