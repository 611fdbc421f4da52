"""The job on files that nobody here wrote: `python benchmarks/packages.py [--situate 20]`.

Copies all Markdown, RST and text files longer than 2 kB below the installed packages into `corpora/packages-source`, runs the
job over them with `strategy: header`, then over the first few (by hash of their path) with `strategy: situate`, and
prints documents, chunks, a histogram of chunk tokens (the embedder's), seconds by stage, and what failed and why.
"""

import argparse
import hashlib
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from enrichment.tokens import FileTokenizer
from indexing.snapshot import open_snapshot
from indexing.storage import open_storage
from jobs import config, refresh
from jobs.models import resolve_model
from jobs.progress import Progress

SUFFIXES = {".md", ".rst", ".txt"}
LEAST_BYTES = 2048
BIN_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--situate", type=int, default=20, help="how many documents get contexts (default 20)")
    parser.add_argument("--only", choices=["header", "situate"], help="one of the two runs")
    options = parser.parse_args()
    files = collect()
    everything = copy(files, Path("corpora/packages-source"))
    few = sorted(files, key=lambda path: hashlib.sha256(str(path).encode()).hexdigest())[: options.situate]
    for name, folder, strategy in (
        ("header", everything, "header"),
        ("situate", copy(few, Path("corpora/packages-few")), "situate"),
    ):
        if options.only in (None, name):
            print(f"\n{name}: {folder}")
            report(run(name, folder, strategy), config.parse(settings(name, folder, strategy)))


def collect() -> dict[Path, Path]:
    """Files by their path below the packages."""
    below = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    found = sorted(path for path in below.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return {path.relative_to(below): path for path in found if path.stat().st_size > LEAST_BYTES}


def copy(files: Any, target: Path) -> Path:
    """A fresh folder with the given files."""
    shutil.rmtree(target, ignore_errors=True)
    packages = collect()
    for relative in files:
        place = target / relative
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packages[relative], place)
    return target


def settings(name: str, folder: Path, strategy: str) -> dict[str, Any]:
    """The defaults, but for the strategy and the demo's shorter answers."""
    return {
        "corpus": f"corpora/packages-{name}-corpus",
        "documents": {"uri": str(folder)},
        "context": {"strategy": strategy, "max_output_tokens": 64},
        "model": {"name": "smollm2-135m-instruct"},
        "embedding": {"name": "all-minilm-l6-v2"},
        "limits": {"fallback": 1.0, "quarantined": 1.0},
    }


def run(name: str, folder: Path, strategy: str) -> refresh.Result:
    shutil.rmtree(f"corpora/packages-{name}-corpus", ignore_errors=True)
    return refresh.refresh(config.parse(settings(name, folder, strategy)), Progress())


def report(result: refresh.Result, used: config.Config) -> None:
    print("documents", dict(result.documents))
    print("chunks", dict(result.chunks), "reasons", dict(result.reasons))
    print("tokens", dict(result.tokens))
    print("seconds", dict(result.seconds))
    snapshot = open_snapshot(open_storage(used.corpus))
    for entry in snapshot.manifest.rejected:
        print("quarantined", entry["id"], entry["reason"])
    tokenizer = FileTokenizer(resolve_model(used.embedding))
    counts = Counter(len(tokenizer.encode(text).ids) // BIN_TOKENS for text in snapshot.texts())
    total = sum(counts.values())
    for place in sorted(counts):
        share = counts[place] / total
        print(
            f"{place * BIN_TOKENS:5}-{(place + 1) * BIN_TOKENS - 1:<5} {counts[place]:7} {share:6.1%} {'#' * round(60 * share)}"
        )
    print(f"under 64 tokens: {counts[0] + counts[1]} of {total} ({(counts[0] + counts[1]) / total:.1%})")


if __name__ == "__main__":
    main()
