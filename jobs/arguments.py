"""The arguments of the commands that look after a corpus, and of those that measure one."""

import argparse
from collections.abc import Callable
from pathlib import Path

Run = Callable[[argparse.Namespace], int]
Command = Callable[[str, Run, str], argparse.ArgumentParser]
"""Declares a command: its name, who carries it out, and what it does."""


def add_upkeep(command: Command, run: Run) -> None:
    """The commands of `jobs/upkeep.py`."""
    added = command("verify", run, "check every file of every kept snapshot against its manifest")
    added.add_argument("corpus")
    added.add_argument("--sample", type=float, default=1.0, metavar="SHARE", help="read this share (default 1: all)")
    added = command("snapshots", run, "list the kept snapshots")
    added.add_argument("corpus")
    added = command("diff", run, "what changed between two snapshots")
    added.add_argument("corpus")
    added.add_argument("before", type=int)
    added.add_argument("after", type=int)
    added = command("rollback", run, "publish an older snapshot again, and hold it against refreshes")
    added.add_argument("corpus")
    added.add_argument("sequence", type=int, nargs="?")
    added.add_argument("--release", action="store_true", help="let refreshes publish again")
    added = command("gc", run, "say what no kept snapshot needs; with --delete, remove it")
    added.add_argument("corpus")
    added.add_argument("--keep", type=int, default=14, metavar="N", help="newest snapshots to keep (default 14)")
    added.add_argument(
        "--older-than", type=float, default=24.0, metavar="HOURS", help="spare what is younger (default 24)"
    )
    added.add_argument("--delete", action="store_true", help="remove it")
    added = command("purge", run, "erase a document from every kept snapshot, the ledger and the runs, with a proof")
    added.add_argument("corpus")
    added.add_argument("document")


def add_measuring(command: Command, run: Run) -> None:
    """The commands of `jobs/measuring.py`."""
    added = command("evaluate", run, "what headers and contexts are worth on a corpus: variants built, asked, compared")
    added.add_argument("config", type=Path)
    added.add_argument(
        "--queries", type=Path, required=True, metavar="FILE", help="JSON lines with spans, or TREC topics"
    )
    added.add_argument("--qrels", type=Path, metavar="FILE", help="judged documents, or chunks as DOCUMENT#INDEX")
    added.add_argument("--vary", action="append", default=[], metavar="KEY=[A,B]", help="also compare these settings")
    added.add_argument("--window", type=int, nargs="+", default=[], metavar="N", help="recall of the best with windows")
    added.add_argument("--window-by", choices=["chunks", "characters"], default="chunks", help="what --window counts")
    added.add_argument(
        "--fusion", nargs="+", default=[], metavar="rrf|scores[:D:L[:DOCUMENT]]", help="ways to fuse (default: four)"
    )
    added.add_argument("--measure", default="recall@10", help="what decides (default recall@10)")
    added.add_argument("--sample", type=float, default=1.0, metavar="SHARE", help="of the documents without answers")
    added.add_argument("--rerank", metavar="MODEL", help="a cross-encoder over the best combinations")
    added.add_argument("--into", metavar="URI", help="where the variants lie (default: CORPUS-variants)")
    added.add_argument("--out", type=Path, metavar="FOLDER", help="write topics, qrels and runs as TREC files")
    added.add_argument("--address", help="as of refresh")
    added = command("check", run, "ask a corpus golden questions and see that the passages hold their answers")
    added.add_argument("corpus")
    added.add_argument("--golden", metavar="FILE", help="JSON lines of query and contains (default: gate.golden)")
    added.add_argument("-k", type=int, help="hits, before neighbours merge (default: as the gate asks)")
    added.add_argument("--mode", choices=["hybrid", "dense", "lexical"], help="as of search")
    added.add_argument("--expand", choices=["window", "parent", "run"], help="as of search")
    added.add_argument("--window", type=int, metavar="N", help="as of search")
    added.add_argument("--window-by", choices=["chunks", "characters", "tokens"], help="as of search")
    added.add_argument("--within", choices=["section"], help="as of search")
    added.add_argument("--budget", type=int, metavar="N", help="as of search")
    added.add_argument(
        "--min-recall", type=float, metavar="SHARE", help="exit 1 below it (default: the gate's, else 1)"
    )
    added.add_argument("--snapshot", type=int, metavar="N", help="default: the newest")
    added = command("questions", run, "have the model write questions for a corpus, with the spans that answer them")
    added.add_argument("config", type=Path)
    added.add_argument("-n", type=int, default=200, metavar="N", help="at most so many (default 200)")
    added.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines for evaluate and check")
    added = command("report", run, "what the last run did and what the corpus is like, as one page to look at")
    added.add_argument("corpus")
    added.add_argument("--out", type=Path, required=True, metavar="FILE", help="a file of HTML that needs nothing else")
    added.add_argument("--evaluation", type=Path, metavar="FILE", help="what `evaluate --json` printed")
    added.add_argument("--snapshot", type=int, metavar="N", help="default: the newest")
