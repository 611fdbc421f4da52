"""`situate search`: its arguments, and the record that `--json` prints."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from enrichment.errors import ConfigError


def add_arguments(added: argparse.ArgumentParser) -> None:
    """What may be asked."""
    added.add_argument("corpus")
    added.add_argument("query")
    added.add_argument("-k", type=int, default=5, help="hits, before neighbours merge (default 5)")
    added.add_argument("--mode", choices=["hybrid", "dense", "lexical"], default="hybrid", help="default hybrid")
    _add_expansion(added)
    added.add_argument("--budget", type=int, help="most code points of text in all; no passage is cut")
    added.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="metadata; all given must hold"
    )
    added.add_argument("--title", metavar="PART", help="a part of the title, in any case of letters")
    added.add_argument("--id-prefix", metavar="PREFIX", help="how the document's id begins")
    added.add_argument("--fusion", choices=["rrf", "scores"], help="of hybrid searches (default: the configured one)")
    added.add_argument("--weights", nargs=2, type=float, metavar=("DENSE", "LEXICAL"), help="of fusion, 0 to 1,000,000")
    added.add_argument(
        "--document-weight", type=float, metavar="W", help="of the mean of a document's best hits, in hybrid searches"
    )
    added.add_argument(
        "--rerank", metavar="MODEL", help="a cross-encoder, a directory or owner/name, orders the best hits"
    )
    added.add_argument("--rerank-depth", type=int, default=50, metavar="N", help="hits that it reads (default 50)")


def _add_expansion(added: argparse.ArgumentParser) -> None:
    """What comes back around a hit; the defaults of runs are those of `indexing.expansion`, which is not loaded for them."""
    kinds = "what a hit becomes: its window, the smallest section around it, a run of relevant chunks (default window)"
    added.add_argument("--expand", choices=["window", "parent", "run"], default="window", help=kinds)
    add_window(added, "a hit")
    added.add_argument("--run-penalty", type=float, metavar="P", help="what a chunk costs a run, 0 to 1 (default 0.8)")
    added.add_argument("--run-length", type=int, metavar="N", help="most chunks of a run (default 3)")


def add_window(added: argparse.ArgumentParser, core: str) -> None:
    """How much comes back on each side of `core`."""
    added.add_argument("--window", type=int, default=0, metavar="N", help=f"added on each side of {core} (default 0)")
    added.add_argument(
        "--window-by",
        choices=["chunks", "characters", "tokens"],
        default="chunks",
        help="what --window counts; tokens are the embedder's (default chunks)",
    )
    added.add_argument("--within", choices=["section"], help="stop windows at headings")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search. Raises ConfigError for what cannot be asked."""
    from enrichment.rerank import RerankOptions
    from indexing import serving
    from indexing.filters import Filter, parse_pairs

    for name, value, least in (("-k", options.k, 1), ("--window", options.window, 0), ("--budget", options.budget, 1)):
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}; it must be at least {least}")
    if not options.query.strip():
        raise ConfigError("the query is empty; write a question or some words")
    filters = Filter(parse_pairs(options.where), options.title, options.id_prefix)
    rerank = RerankOptions(options.rerank, options.rerank_depth) if options.rerank else None
    corpus = serving.open(options.corpus)
    fusion = _fusion(options, corpus.manifest.config)
    passages = corpus.search(
        options.query,
        options.k,
        options.mode,
        window=options.window,
        within_section=options.within == "section",
        budget=options.budget,
        window_by=options.window_by,
        expand=options.expand,
        **_of_runs(options),
        filters=filters,
        fusion=fusion,
        rerank=rerank,
    )
    return {
        "snapshot": corpus.manifest.sequence,
        "fusion": asdict(fusion) if fusion else None,
        "passages": [passage.as_dict() for passage in passages],
    }


def _fusion(options: argparse.Namespace, config: Mapping[str, Any]) -> Any:
    """As the corpus is configured, but for what is asked for; null for a search that fuses nothing."""
    from indexing.fusion import options_of

    dense, lexical = options.weights or (None, None)
    configured = options_of(config).fused_by
    return configured.asked(options.mode, options.fusion, dense, lexical, options.document_weight)


def _of_runs(options: argparse.Namespace) -> dict[str, Any]:
    """What is asked of runs; the rest is as usual."""
    given = {"run_penalty": options.run_penalty, "run_length": options.run_length}
    return {name: value for name, value in given.items() if value is not None}
