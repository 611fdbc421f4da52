"""What everything around the models costs: `python benchmarks/pipeline.py [--documents 10000 100000] [--large]`.

Generated documents (3 to 4 chunks of about 200 tokens; words as frequent as in `examples/handbook`) go through the whole
job with the fake engine and the fake embedder, each number of documents in a process tree of its own. Printed: chunks per
second, CPU seconds and peak memory by kind of process, and bytes through Ray's object store per byte of corpus. Memory is PSS:
a page that processes share, as Ray's object store is, counts once in their sum.

`--profile` calls both steps in this process, without Ray, and prints where the time goes. `--tokenizers real` does what
splitting and prompts do with the tokenizers of all-minilm-l6-v2 and smollm2-135m-instruct, in one process per core and
without Ray: from documents to staged rows, with the fake engine and the fake embedder, whose share is printed apart.
"""

import argparse
import asyncio
import cProfile
import functools
import json
import multiprocessing
import os
import pstats
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from enrichment.models import resolve
from enrichment.tokens import FileTokenizer
from jobs import config, flow, refresh, sources, steps, vectors
from jobs.progress import Progress
from jobs.run import Run

DOCUMENTS_PER_FILE = 1000
CHUNK_TOKENS = 200  # the default size, in tokens of the fake embedder
ROWS_PER_SEGMENT = 20_000  # the same at every scale, and small enough that all cores build one also at the smallest
SAMPLE_S, MEMORY_S = 0.5, 2.0  # reading a process's memory takes milliseconds
WORDS = re.compile(r"[A-Za-z]+")
KINDS = (  # by what the command line holds; Ray renames its workers to what they run
    ("RelayedEnrich", "enrich"),
    ("RelayedStage", "embed"),
    ("_build_segment", "segments"),
    ("anserini", "Java"),
    ("lucene", "Java"),
    ("_scan_files", "read"),
    ("raylet/raylet", "raylet"),
    ("gcs/gcs_server", "gcs"),
    ("ray::IDLE", "idle workers"),
    ("default_worker.py", "idle workers"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--large", action="store_true", help="also a million documents (4 GB of text)")
    parser.add_argument("--profile", action="store_true", help="both steps in one process, under a profiler")
    parser.add_argument("--tokenizers", choices=["fake", "real"], default="fake")
    options = parser.parse_args()
    wanted = options.documents + [1_000_000] * options.large
    if options.profile:
        profile(wanted[0], options.tokenizers == "real")
    elif options.tokenizers == "real":
        print_steps(wanted[0])
    else:
        print_jobs(wanted)


# Documents


def write_documents(folder: Path, number: int) -> int:
    """JSON lines of `number` documents, the same for the same number; their bytes of text."""
    folder.mkdir(parents=True)
    handbook = "".join(path.read_text() for path in sorted(Path("examples/handbook").rglob("*.md")))
    counts = Counter(word.lower() for word in WORDS.findall(handbook))
    words = np.array(sorted(counts), dtype=object)
    frequencies = np.array([counts[word] for word in words], dtype=float) / counts.total()
    num_bytes = 0
    for first in range(0, number, DOCUMENTS_PER_FILE):
        rng = np.random.default_rng(first)
        with (folder / f"{first:08}.jsonl").open("w") as file:
            for place in range(first, min(first + DOCUMENTS_PER_FILE, number)):
                text = _text(rng, rng.choice(words, size=int(rng.integers(500, 900)), p=frequencies), place)
                file.write(json.dumps({"id": f"{place:08}.md", "text": text}) + "\n")
                num_bytes += len(text)
    return num_bytes


def _text(rng: np.random.Generator, words: np.ndarray, place: int) -> str:
    """Paragraphs of nearly a chunk's tokens in sentences of 6 to 20 words, a heading before some of them."""
    paragraphs, first = [f"# Document {place} about {words[0]}"], 0
    while first < len(words):
        if rng.random() < 0.05:
            paragraphs.append(f"## {' '.join(words[first : first + 3]).capitalize()}")
        sentences, tokens = [], 0
        while tokens < CHUNK_TOKENS - 22 and first < len(words):
            length = int(rng.integers(6, 20))
            sentences.append(" ".join(words[first : first + length]).capitalize() + ".")
            first += length
            tokens += length + 1
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs) + "\n"


def settings(folder: Path, embedding: str = "fake") -> config.Config:
    """The defaults with models that cost nothing."""
    return config.parse(
        {
            "corpus": str(folder / "corpus"),
            "documents": {"uri": str(folder / "documents")},
            "model": {"name": "fake", "replicas": os.cpu_count() or 1},
            "embedding": {"name": embedding},
            "index": {"rows_per_segment": ROWS_PER_SEGMENT},
        }
    )


# The whole job


@dataclass
class Usage:
    """What a tree of processes used, by kind: CPU seconds, and the most memory at one time in bytes."""

    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    peak_total: int = 0

    def watch(self, process: Any) -> None:
        """Sample until the process ends. What a process does between its last sample and its end is not seen."""
        root, seen, measured = psutil.Process(process.pid), dict[int, float](), 0.0
        while process.is_alive():
            now: dict[str, int] = defaultdict(int)
            due = time.monotonic() - measured >= MEMORY_S
            measured = time.monotonic() if due else measured
            for each in [root, *root.children(recursive=True)]:
                try:
                    kind = "driver" if each == root else kind_of(" ".join(each.cmdline()))
                    times = each.cpu_times()
                    now[kind] += each.memory_full_info().pss if due else 0
                except psutil.Error:  # it has just ended
                    continue
                used = times.user + times.system
                self.cpu_s[kind] += used - seen.get(each.pid, 0.0)
                seen[each.pid] = used
            for kind, size in now.items():
                self.peak[kind] = max(self.peak[kind], size)
            self.peak_total = max(self.peak_total, sum(now.values()))
            process.join(SAMPLE_S)


def kind_of(command: str) -> str:
    return next((kind for word, kind in KINDS if word in command), "Ray's services")


def print_jobs(wanted: list[int]) -> None:
    kinds = ["driver", "read", "enrich", "embed", "segments", "Java", "raylet", "gcs", "idle workers", "Ray's services"]
    rows: list[list[str]] = []
    for number in wanted:
        with tempfile.TemporaryDirectory(prefix="situate-pipeline-") as work:
            num_bytes = write_documents(Path(work) / "documents", number)
            context = multiprocessing.get_context("spawn")
            results = context.SimpleQueue()
            process = context.Process(target=_job, args=(Path(work), results))
            process.start()
            usage = Usage()
            usage.watch(process)
            if process.exitcode:
                raise SystemExit(f"the job on {number} documents failed")
            result = results.get()
            moved = result["object_store_bytes"]
        chunks, seconds = result["chunks"]["total"], result["seconds"]
        rows.append(
            [
                f"{number:,}",
                f"{num_bytes / 1e6:,.0f} MB",
                f"{chunks:,}",
                f"{chunks / seconds['enrich']:,.0f}",
                f"{chunks / sum(seconds.values()):,.0f}",
                *(f"{seconds[stage]:.1f}" for stage in ("read", "enrich", "index", "publish")),
                *(f"{usage.cpu_s[kind]:.1f}" for kind in kinds),
                f"{usage.peak_total / 1e6:,.0f} MB",
                *(f"{usage.peak[kind] / 1e6:,.0f} MB" for kind in kinds),
                *(f"{size / num_bytes:.2f}" for size in (*moved.values(), sum(moved.values()))),
            ]
        )
    names = ["documents", "text", "chunks", "chunks/s of enriching", "chunks/s of the whole job"]
    names += [f"seconds: {stage}" for stage in ("reading", "enriching", "indexing", "publishing")]
    names += [f"CPU s: {kind}" for kind in kinds]
    names += ["peak memory", *(f"peak memory: {kind}" for kind in kinds)]
    names += [f"object store bytes per byte: {name}" for name in (*moved, "all")]
    for place, (name, *values) in enumerate(zip(names, *rows, strict=True)):
        print(f"| {name} | {' | '.join(values)} |")
        if place == 0:
            print("|---" * (len(values) + 1) + "|")


def _job(work: Path, results: Any) -> None:
    """In a process of its own: the job."""
    results.put(refresh.refresh(settings(work), Progress(show=False)).as_dict())


# The steps alone


def references(used: config.Config) -> list[pa.Table]:
    """All references, in the blocks that a replica would take."""
    listing = sources.list_files(used.documents)
    scanned = [sources.scan_file(listing.root, file, used.documents.max_bytes) for file in listing.files]
    return flow.plan_blocks(sources.resolve(pa.concat_tables(scanned)), 1)


def open_steps(work: Path, real: bool) -> tuple[steps.EnrichDocuments, vectors.StageVectors]:
    """Both steps; if `real`, with the tokenizers of two real models but still without the models."""
    run = Run("benchmark", settings(work), str(work / "documents"))
    enrich, stage = steps.EnrichDocuments(run, lambda counts: None), vectors.StageVectors(run, lambda counts: None)
    if real:
        model = FileTokenizer(resolve("smollm2-135m-instruct", None))
        preparing, recipe = enrich._preparing, enrich._supervised._strategy_on.keywords["recipe"]  # type: ignore[union-attr]
        preparing.embedder_tokenizer = FileTokenizer(resolve("all-minilm-l6-v2", None))
        preparing.model_tokenizer = recipe._tokenizer = model
    return enrich, stage


async def run_steps(
    blocks: list[pa.Table], enrich: steps.EnrichDocuments, stage: vectors.StageVectors
) -> tuple[int, float, float]:
    """Both steps over all blocks, one after the other: chunks, CPU seconds of enriching and of staging."""
    chunks, enrich_s, stage_s = 0, 0.0, 0.0
    for refs in blocks:
        started = time.process_time()
        units = await enrich(refs)
        enriched = time.process_time()
        chunks += sum(stage(units)["num_rows"].to_pylist())
        enrich_s += enriched - started
        stage_s += time.process_time() - enriched
    return chunks, enrich_s, stage_s


def profile(number: int, real: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="situate-pipeline-") as name:
        work = Path(name)
        write_documents(work / "documents", number)
        first, *blocks = references(settings(work))
        opened = open_steps(work, real)
        asyncio.run(run_steps([first], *opened))  # imports and first calls
        in_thread, profiler = asyncio.to_thread, cProfile.Profile()
        asyncio.to_thread = _at_once  # type: ignore[assignment]  # the profiler sees one thread
        chunks, enrich_s, stage_s = profiler.runcall(asyncio.run, run_steps(blocks, *opened))
        asyncio.to_thread = in_thread
        print(f"{chunks:,} chunks; under the profiler {enrich_s:.1f} s of enriching, {stage_s:.1f} s of staging")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
        pstats.Stats(profiler).sort_stats("cumulative").print_stats("situate|enrichment/|indexing/|jobs/", 40)


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def print_steps(number: int) -> None:
    """One process per core, each with its share of the blocks: chunks per second from references to staged rows."""
    with tempfile.TemporaryDirectory(prefix="situate-pipeline-") as name:
        work, cores = Path(name), os.cpu_count() or 1
        write_documents(work / "documents", number)
        blocks = references(settings(work))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores, context) as pool:
            list(pool.map(_share, [work] * cores, [blocks[:1]] * cores))  # imports, models, first calls
            started = time.perf_counter()
            found = list(pool.map(_share, [work] * cores, [blocks[place::cores] for place in range(cores)]))
            wall = time.perf_counter() - started
        chunks, enrich_s, stage_s = (sum(column) for column in zip(*found, strict=True))
        print(
            f"{number:,} documents, {chunks:,} chunks, {cores} processes: {chunks / wall:,.0f} chunks/s of wall time;"
        )
        print(
            f"CPU per chunk: {1e6 * enrich_s / chunks:.0f} us of enriching, {1e6 * stage_s / chunks:.0f} us of staging"
        )


@functools.cache
def _opened(work: Path) -> tuple[steps.EnrichDocuments, vectors.StageVectors]:
    return open_steps(work, real=True)


def _share(work: Path, blocks: list[pa.Table]) -> tuple[int, float, float]:
    return asyncio.run(run_steps(blocks, *_opened(work)))


if __name__ == "__main__":
    main()
