"""What a night costs: `python benchmarks/nights.py [--documents 100000 --changed 0.01 --nights 60]`.

Without `--documents`: nights on a copy of `examples/handbook`, one kind of change each, through all steps in this process
with the fake engine and the fake embedder, or with `--real` on Ray with the models of `examples/handbook.yaml`. With it: so
many generated documents of about 10 kB (`--bytes`), and nights on each of which the share `--changed` of them gets a changed
paragraph in the middle; on Ray, or in this process with `--local`.

Printed for each night: model calls and embeddings (what the ledger gained), bytes written (objects that are there afterwards
and were not before; of them compaction's), segments, dead rows, seconds in all and after the comparison, and the median search.
"""

import argparse
import contextlib
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from indexing import heartbeat, layout, manifest
from indexing.snapshot import open_snapshot
from indexing.storage import open_storage
from jobs import config, flow, local_flow, refresh
from jobs.progress import Progress

HANDBOOK = Path(__file__).resolve().parent.parent / "examples" / "handbook"
HEAD = (
    "night",
    "calls",
    "embedded",
    "MB written",
    "of full",
    "compaction",
    "segments",
    "dead rows",
    "s",
    "s after",
    "p50 ms",
)
WORDS = [
    "notice",
    "rent",
    "boiler",
    "garden",
    "tenant",
    "lease",
    "roof",
    "clause",
    "deposit",
    "repair",
    "winter",
    "letter",
    "agent",
    "owner",
    "gate",
    "key",
]
QUERIES = (
    "when must notice of the rent be given",
    "the boiler in winter",
    "who repairs the gate",
    "deposit of the tenant",
)
PER_FOLDER = 1000


@dataclass
class Corpus:
    """A folder of documents, the corpus made from it, and who does the work."""

    root: Path
    settings: dict[str, Any]
    workers: refresh.Workers
    full_bytes: int = 0

    @property
    def docs(self) -> Path:
        return self.root / "docs"

    def night(self, name: str, change: Callable[[Path], None], **sections: Any) -> None:
        """Make a change, refresh, print what it cost."""
        change(self.docs)
        before = self._files()
        started = time.monotonic()
        parsed = config.parse({**self.settings, **sections})
        progress = Progress(show=False)
        checked = refresh.check(parsed)
        previous, run_id = manifest.latest(checked.storage), heartbeat.new_run_id()
        result = refresh.night(run_id, previous, parsed, checked, progress, self.workers)
        took = time.monotonic() - started
        after = sum(s for stage, s in result.seconds.items() if stage not in ("read", "compare", "check"))
        new = {file: size for file, size in self._files().items() if file not in before}
        written = sum(new.values())
        self.full_bytes = self.full_bytes or written
        found = manifest.require_latest(open_storage(str(self.root / "corpus")))
        dead = sum(entry.num_rows for entry in found.dead.values())
        paid = [self._gained(kind, new) for kind in ("contexts", "vectors")]
        cells = [name, *(f"{number:,}" for number in paid), f"{written / 1e6:.2f}", f"{written / self.full_bytes:.2%}"]
        cells += [f"{self._compacted(found, new) / self.full_bytes:.2%}", f"{len(found.segments)}", f"{dead:,}"]
        cells += [f"{took:.1f}", f"{after:.1f}", f"{self._search_ms():.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)

    def _files(self) -> dict[str, int]:
        return {entry.name: entry.size_bytes for entry in open_storage(str(self.root / "corpus")).list()}

    def _gained(self, kind: str, new: Mapping[str, int]) -> int:
        """Entries of the ledger whose keys it did not have: what a rename lists under another id was paid for before."""
        parts = [entry.name for entry in open_storage(str(self.root / "corpus")).list(layout.LEDGER)]
        mine = [name for name in parts if f"/{kind}-" in name]
        keys = {name: pq.read_table(self.root / "corpus" / name, columns=["key"])["key"].to_pylist() for name in mine}
        before = {key for name in mine if name not in new for key in keys[name]}
        return len({key for name in mine if name in new for key in keys[name]} - before)

    def _compacted(self, found: manifest.Manifest, new: dict[str, int]) -> int:
        """Bytes of new segments whose documents an earlier run worked on: the rest of what the night wrote is its own."""
        own = {name.split("/")[1] for name in new if name.startswith(layout.SEGMENTS)}
        worked = self._worked(found.run_id)
        bytes_of = {s.id: sum(file.size_bytes for file in s.files) for s in found.segments if s.id in own}
        folder = self.root / "corpus" / layout.SEGMENTS
        firsts = {i: pq.read_table(folder / i / layout.DOCUMENTS, columns=["id"])["id"][0].as_py() for i in bytes_of}
        return sum(size for i, size in bytes_of.items() if firsts[i] not in worked)

    def _worked(self, run_id: str) -> set[str]:
        path = self.root / "corpus" / layout.run_file(run_id, "documents.parquet")
        return set(pq.read_table(path, columns=["id"])["id"].to_pylist())

    def _search_ms(self) -> float:
        snapshot = open_snapshot(open_storage(str(self.root / "corpus")))
        took = []
        for query in (*QUERIES, *QUERIES * 5):
            started = time.perf_counter()
            snapshot.search(query, 10)
            took.append(1e3 * (time.perf_counter() - started))
        return statistics.median(took[len(QUERIES) :])


def handbook(corpus: Corpus) -> None:
    """One kind of change a night."""
    shutil.copytree(HANDBOOK, corpus.docs)
    names = sorted(path.relative_to(corpus.docs).as_posix() for path in corpus.docs.rglob("*.md"))
    added = (
        "# {}\n\n" + "The gate is locked at nine. Whoever has no key rings twice and waits for the guard. " * 20 + "\n"
    )

    def add(docs: Path) -> None:
        for name in ("gates", "guards"):
            (docs / f"{name}.md").write_text(added.format(name.title()))

    def change_paragraph(docs: Path) -> None:
        paragraphs = (docs / names[0]).read_text().split("\n\n")
        paragraphs[len(paragraphs) // 2] += " It was changed tonight."
        (docs / names[0]).write_text("\n\n".join(paragraphs))

    def append(docs: Path) -> None:
        with (docs / names[1]).open("a") as file:
            file.write("\n\n## Added tonight\n\nWhat was forgotten is said here, at the very end. It is short.\n")

    def touch(docs: Path) -> None:
        for path in docs.rglob("*.md"):
            path.touch()

    def change_metadata(docs: Path) -> None:
        (docs / names[4]).write_text((docs / names[4]).read_text().replace("---\n", "---\nowner: nights\n", 1))

    corpus.night("full build", lambda docs: None)
    corpus.night("add 2", add)
    corpus.night("change a paragraph", change_paragraph)
    corpus.night("append a section", append)
    corpus.night("delete 1", lambda docs: (docs / names[2]).unlink())
    corpus.night("rename 1", lambda docs: _move(docs / names[3], docs / "renamed.md"))
    corpus.night("touch all", touch)
    corpus.night("metadata of 1", change_metadata)
    quote = {"context": {**corpus.settings.get("context", {"strategy": "situate"}), "prompt": "quote"}}
    corpus.night("another prompt", lambda docs: None, **quote)
    corpus.night(
        "another embedder",
        lambda docs: None,
        **quote,
        embedding={**corpus.settings["embedding"], "passage_prefix": "passage: "},
    )


def _move(path: Path, to: Path) -> None:
    path.rename(to)


def generated(corpus: Corpus, number: int, num_bytes: int, share: float, nights: int) -> None:
    """`number` documents; on each night `share` of them get a changed paragraph in the middle."""
    for document in range(number):
        folder = corpus.docs / f"{document // PER_FOLDER:04}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{document:07}.md").write_text(_text(document, num_bytes))
    corpus.night("full build", lambda docs: None)
    for night in range(1, nights + 1):

        def change(docs: Path, night: int = night) -> None:
            for document in random.Random(night).sample(range(number), max(1, int(share * number))):
                path = docs / f"{document // PER_FOLDER:04}" / f"{document:07}.md"
                paragraphs = path.read_text().split("\n\n")
                paragraphs[len(paragraphs) // 2] = _paragraph(random.Random(f"{night} {document}"))
                path.write_text("\n\n".join(paragraphs))

        corpus.night(str(night), change)


def _text(document: int, num_bytes: int) -> str:
    chance = random.Random(document)
    paragraphs = [f"# Document {document} about the {chance.choice(WORDS)}"]
    while sum(map(len, paragraphs)) < num_bytes:
        paragraphs.append(_paragraph(chance))
    return "\n\n".join(paragraphs) + "\n"


def _paragraph(chance: random.Random) -> str:
    sentences = [" ".join(chance.choices(WORDS, k=12)).capitalize() + f" {chance.randrange(10**6)}." for _ in range(6)]
    return " ".join(sentences)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, help="generated ones, in the place of the handbook")
    parser.add_argument("--bytes", type=int, default=10_000, help="of each")
    parser.add_argument("--changed", type=float, default=0.01, help="the share that changes a night")
    parser.add_argument("--nights", type=int, default=1)
    parser.add_argument("--local", action="store_true", help="generated ones in this process, without Ray")
    parser.add_argument("--real", action="store_true", help="the handbook with real models, on Ray")
    parser.add_argument("--no-compaction", action="store_true", help="let nothing fall due")
    options = parser.parse_args(arguments)
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    with tempfile.TemporaryDirectory(prefix="situate-nights-") as root, contextlib.ExitStack() as stack:
        fake = {"name": "fake"}
        models = yaml.safe_load(HANDBOOK.with_suffix(".yaml").read_text()) if options.real else {}
        settings = {"embedding": fake, "model": fake, **models}
        settings |= {"corpus": f"{root}/corpus", "documents": {"uri": f"{root}/docs"}}
        if options.no_compaction:
            settings["compaction"] = {"dead_share": 1.0, "pile": 1_000_000}
        on_ray = options.real or (options.documents and not options.local)
        if on_ray:
            stack.enter_context(flow.cluster(None))
        corpus = Corpus(Path(root), settings, flow if on_ray else local_flow)
        if options.documents:
            generated(corpus, options.documents, options.bytes, options.changed, options.nights)
        else:
            handbook(corpus)


if __name__ == "__main__":
    main()
