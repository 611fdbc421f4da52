"""Recall@k of golden spans, by mode, with contexts and without: `python benchmarks/recall.py examples/handbook.yaml QUESTIONS`.

For each question the recall is the share of its golden characters that the first k hits cover, so it works with any
splitter; the table gives means over all questions in per cent. Variants are built beside the configured corpus and reuse what
they share. Conditions: the configuration's models, window 0, no reranker.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from enrichment.prompts import PromptKind
from indexing.fusion import Fusion
from indexing.search import Mode
from indexing.snapshot import Snapshot, open_snapshot
from indexing.storage import Storage, open_storage
from jobs import config, refresh
from jobs.golden import GoldenSpan
from jobs.judging import covered
from jobs.progress import Progress

CUTS = (5, 10, 20)
MODES: dict[str, tuple[Mode, Fusion]] = {
    "dense": ("dense", Fusion()),
    "lexical": ("lexical", Fusion()),
    "hybrid": ("hybrid", Fusion()),
    "scores": ("hybrid", Fusion("scores", 1.0, 0.5)),
}
"""`scores` is hybrid by weighted scores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--limit", type=int, help="use the first N questions")
    parser.add_argument(
        "--ledger", type=Path, help="a folder of ledger parts, such as benchmarks/contexts: paid already"
    )
    parser.add_argument("--prompts", nargs="+", choices=("causal", "quote"), help="default: the configured one")
    options = parser.parse_args()
    base = config.load(options.config)
    questions = [json.loads(line) for line in options.questions.read_text().splitlines() if line.strip()]
    print(
        f"{len(questions[: options.limit])} questions, {base.embedding.name}, {base.model.name if base.model else 'no model'}"
    )
    print(f"{'variant':52} {'mode':8} " + " ".join(f"recall@{cut:<3}" for cut in CUTS))
    for name, variant in variants(base, options.prompts or [base.context.prompt]):
        if options.ledger and variant.context.strategy == "situate":
            lay_in(options.ledger, open_storage(variant.corpus))
        refresh.refresh(variant, Progress(show=sys.stderr.isatty()))
        snapshot = open_snapshot(open_storage(variant.corpus))
        for mode, how in MODES.items():
            means = recalls(snapshot, questions[: options.limit], *how)
            print(f"{name:52} {mode:8} " + " ".join(f"{100 * mean:10.1f}" for mean in means), flush=True)


def lay_in(folder: Path, storage: Storage) -> None:
    """Put kept contexts into a corpus's ledger, where a refresh finds them by their keys."""
    for part in sorted(folder.glob("contexts-*.parquet")):
        storage.put(f"ledger/kept/{part.name}", part.read_bytes())


def variants(base: config.Config, prompts: Sequence[PromptKind]) -> Iterable[tuple[str, config.Config]]:
    """The corpus with contexts of each kind of prompt, then the same without contexts, then without headers."""
    lexical = "+".join(base.index.lexical_text)
    for prompt in prompts:
        corpus = base.corpus if prompt == base.context.prompt else f"{base.corpus}-{prompt}"
        context = dataclasses.replace(base.context, prompt=prompt)
        name = f"{base.context.strategy} {prompt} (lexical {lexical})"
        yield name, dataclasses.replace(base, context=context, corpus=corpus)
    for strategy in ("header", "none"):
        context = dataclasses.replace(base.context, strategy=strategy)
        yield strategy, dataclasses.replace(base, context=context, corpus=f"{base.corpus}-{strategy}")


def recalls(snapshot: Snapshot, questions: Sequence[dict], mode: Mode, fusion: Fusion) -> list[float]:
    """Mean recall at each cut."""
    totals = [0.0] * len(CUTS)
    for question in questions:
        hits = snapshot.open_indexes(mode).search(question["query"], max(CUTS), mode, fusion=fusion)
        spans = [snapshot.span_of(hit) for hit in hits]
        for place, cut in enumerate(CUTS):
            totals[place] += covered([GoldenSpan(**span) for span in question["spans"]], spans[:cut])
    return [total / len(questions) for total in totals]


if __name__ == "__main__":
    main()
