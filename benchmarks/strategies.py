"""One table over the strategies: `python benchmarks/strategies.py examples/handbook.yaml examples/handbook-questions.jsonl`.

Each strategy of `--strategies` refreshes a corpus of its own in `--into` (a folder; default a temporary one) and pays for
itself; `semantic=0.5` sets the threshold. All indexes see context, header and body; a rewrite is the body. Printed for
each: the share of asked chunks that are ok, prompt tokens computed, output tokens, seconds of the stage that asks and
embeds, the model's load included, bytes of the segments, and recall@5/10/20 of golden spans in per cent: dense, lexical,
hybrid. Conditions: the configuration's models and split, window 0, hybrid by ranks.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recall import CUTS, MODES, recalls

from indexing.snapshot import open_snapshot
from indexing.storage import open_storage
from jobs import config, refresh, stored_bytes
from jobs.progress import Progress

STRATEGIES = ("none", "header", "summary", "situate", "keywords", "questions", "semantic=0.5", "neighborhood")
SEEN = ("context", "header", "body")
SHOWN = ("dense", "lexical", "hybrid")
HEAD = ("strategy", "ok", "computed", "written", "s", "MB", *(f"{mode} {'/'.join(map(str, CUTS))}" for mode in SHOWN))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("questions", type=Path, help="JSON lines with spans; of documents that are there")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, metavar="NAME[=THRESHOLD]")
    parser.add_argument("--into", type=Path, help="where the corpora lie; those that are there are not paid for again")
    options = parser.parse_args(arguments)
    base = config.load(options.config)
    questions = [json.loads(line) for line in options.questions.read_text().splitlines() if line.strip()]
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    with tempfile.TemporaryDirectory(prefix="situate-strategies-") as folder:
        for name in options.strategies:
            variant = with_strategy(base, name, f"{options.into or folder}/{name}")
            print("| " + " | ".join([name, *line(variant, questions)]) + " |", flush=True)


def with_strategy(base: config.Config, name: str, corpus: str) -> config.Config:
    """The configuration with a strategy, all of whose indexes see what it makes."""
    strategy, _, threshold = name.partition("=")
    changed: dict[str, Any] = {"strategy": strategy}
    if threshold:
        changed["semantic_similarity_threshold"] = float(threshold)
    context = dataclasses.replace(base.context, **changed)
    if context.rewrites:
        context = dataclasses.replace(context, max_output_tokens=None)  # their own default: a chunk is said whole
    fields = SEEN if strategy not in ("none", "header") else SEEN[1:] if strategy == "header" else SEEN[2:]
    index = dataclasses.replace(base.index, dense_text=fields, lexical_text=fields)
    return dataclasses.replace(base, context=context, index=index, corpus=corpus)


def line(variant: config.Config, questions: Sequence[dict[str, Any]]) -> list[str]:
    """What it took and what it found."""
    result = refresh.refresh(variant, Progress(show=sys.stderr.isatty())).as_dict()
    snapshot = open_snapshot(open_storage(variant.corpus))
    ids = set(snapshot.live_rows(["document_id"])["document_id"].unique().to_pylist())
    questions = [q for q in questions if ids.issuperset(span["document_id"] for span in q["spans"])]
    chunks, tokens = result["chunks"], result["tokens"]
    asked = chunks["ok"] + chunks["fallback"] + chunks["failed"]
    cells = [f"{100 * chunks['ok'] / asked:.0f} %" if asked else "-"]
    cells += [f"{tokens['computed']:,}", f"{tokens['output']:,}", f"{result['seconds'].get('enrich', 0):.0f}"]
    cells.append(f"{sum(stored_bytes.by_kind(snapshot.manifest).values()) / 1e6:.2f}")
    for mode in SHOWN:
        cells.append(" / ".join(f"{100 * mean:.1f}" for mean in recalls(snapshot, questions, *MODES[mode])))
    return cells


if __name__ == "__main__":
    main()
