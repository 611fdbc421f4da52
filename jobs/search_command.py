"""`situate search`: its arguments, and the record that `--json` prints."""

import argparse
from collections.abc import Mapping
from typing import Any

from enrichment.errors import ConfigError


def add_arguments(added: argparse.ArgumentParser) -> None:
    """What may be asked."""
    added.add_argument("corpus")
    added.add_argument("query")
    added.add_argument("-k", type=int, default=5, help="hits, before neighbours merge (default 5)")
    added.add_argument("--mode", choices=["hybrid", "dense", "lexical"], default="hybrid", help="default hybrid")
    added.add_argument("--window", type=int, default=0, help="neighbouring chunks on each side of a hit (default 0)")
    added.add_argument("--within", choices=["section"], help="stop windows at headings")
    added.add_argument("--budget", type=int, help="most code points of text in all; no passage is cut")
    added.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="metadata; all given must hold"
    )
    added.add_argument("--title", metavar="PART", help="a part of the title, in any case of letters")
    added.add_argument("--id-prefix", metavar="PREFIX", help="how the document's id begins")
    added.add_argument("--fusion", choices=["rrf", "scores"], help="of hybrid searches (default: the configured one)")
    added.add_argument("--weights", nargs=2, type=float, metavar=("DENSE", "LEXICAL"), help="of fusion")
    added.add_argument(
        "--rerank", metavar="MODEL", help="a cross-encoder, a directory or owner/name, orders the best hits"
    )
    added.add_argument("--rerank-depth", type=int, default=50, metavar="N", help="hits that it reads (default 50)")


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
    passages = corpus.search(
        options.query,
        options.k,
        options.mode,
        window=options.window,
        within_section=options.within == "section",
        budget=options.budget,
        filters=filters,
        fusion=_fusion(options, corpus.manifest.config),
        rerank=rerank,
    )
    return {"snapshot": corpus.manifest.sequence, "passages": [passage.as_dict() for passage in passages]}


def _fusion(options: argparse.Namespace, config: Mapping[str, Any]) -> Any:
    """As the corpus is configured, but for what is asked for."""
    from indexing.fusion import options_of

    return options_of(config).fused_by.overridden(options.fusion, *(options.weights or (None, None)))
