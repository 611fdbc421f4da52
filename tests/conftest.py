"""Small corpora without Ray: the steps called directly, with the fake engine and the fake embedder."""

import asyncio
import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import night
import pyarrow as pa
import pytest
from s3_proxy import S3Proxy

from enrichment.embed import FakeEmbedder
from indexing import dead, heartbeat, layout, lexical_build, live, manifest, tables
from indexing.manifest import Manifest, SegmentEntry
from indexing.snapshot import Snapshot
from indexing.storage import DirectoryStorage, Storage, open_storage
from jobs import carrying, config, counts, defaults, difference, local_flow, refresh, retries, sources
from jobs.difference import Asked, Plan
from jobs.progress import Progress
from jobs.refresh import Result
from jobs.retries import Settled
from jobs.run import Run
from jobs.steps import EnrichDocuments
from jobs.vectors import StageVectors


@dataclass(frozen=True, slots=True)
class Staged:
    """A run as far as its staged parts."""

    storage: Storage
    run: Run
    refs: pa.Table
    summary: pa.Table

    def publish(self, rows_per_segment: int = 500_000) -> Manifest:
        """Build the segments of a first night, two at a time, and commit."""
        index = dataclasses.replace(self.run.config.index, rows_per_segment=rows_per_segment)
        settings = dataclasses.replace(self.run.config, index=index)
        fingerprints = refresh.check_models(settings)[1]
        plan, settled = self.settled()
        tasks = carrying.staged_tasks(self.run.id, settled, settings, 64)
        entries = tuple(local_flow.build_segments(self.run, tasks))
        census = live.documents(self.storage, entries, {}, counts.COLUMNS)
        counted = counts.count(census, plan, settled)
        counts.reconcile(plan, settled, counted, entries, entries, {})
        published = manifest.new_manifest(
            manifest.latest(self.storage),
            run_id=self.run.id,
            config=settings.as_dict(),
            fingerprints=fingerprints,
            dimension=64,
            counts=counted,
            segments=entries,
            dead={},
            rejected=counts.rejected(census),
        )
        manifest.publish(self.storage, published)
        return published

    def settled(self) -> tuple[Plan, Settled]:
        """What the night was to do and what became of it."""
        plan = difference.plan(self.storage, None, self.refs, {}, 0.2)
        return plan, retries.settle(plan, self.summary)


Stage = Callable[..., Staged]
OpenCorpus = Callable[..., Snapshot]


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """`stage(files, split=..., index=...)`: write the files as sources and stage them as two parts."""
    numbers = itertools.count(1)

    def stage_files(files: Mapping[str, str | bytes], **settings: Any) -> Staged:
        root = tmp_path_factory.mktemp("corpus")
        for name, content in files.items():
            path = root / "docs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        fake = {"name": "fake"}
        given = {"corpus": str(root / "corpus"), "documents": {"uri": str(root / "docs")}, "embedding": fake}
        parsed = config.parse({**given, "model": fake, "split": {"by": "sentences"}, **settings})
        listing = sources.list_files(parsed.documents)
        scanned = [sources.scan_file(listing.root, file, parsed.documents.max_bytes) for file in listing.files]
        refs = sources.resolve(pa.concat_tables(scanned))
        parsed = defaults.with_language(parsed, None, refs["id"])
        fingerprint = refresh.check_models(parsed)[1].get("model")
        run = Run(f"run-{next(numbers)}", parsed, listing.root, model_fingerprint=fingerprint)
        half = -(-refs.num_rows // 2)
        summaries = [_run_steps(run, refs.slice(start, half)) for start in range(0, refs.num_rows, half)]
        return Staged(DirectoryStorage(Path(parsed.corpus)), run, refs, pa.concat_tables(summaries))

    return stage_files


def _run_steps(run: Run, refs: pa.Table) -> pa.Table:
    units = asyncio.run(EnrichDocuments(run, lambda counted: None)(refs))
    return StageVectors(run, lambda counted: None)(units)


@pytest.fixture(scope="session")
def open_corpus(stage: Stage) -> OpenCorpus:
    """`open_corpus(files, ...)`: stage, build, publish, open."""

    def build_and_open(files: Mapping[str, str | bytes], **settings: Any) -> Snapshot:
        staged = stage(files, **settings)
        return Snapshot(staged.storage, staged.publish())

    return build_and_open


@dataclass(frozen=True, slots=True)
class Nights:
    """A folder of documents and the corpus that is refreshed from it, without Ray, with the fake models."""

    root: Path

    @property
    def docs(self) -> Path:
        return self.root / "docs"

    @property
    def storage(self) -> Storage:
        return DirectoryStorage(self.root / "corpus")

    def write(self, **files: str | bytes | None) -> None:
        """Write files, `name="text"` as name.md; None removes one."""
        self.docs.mkdir(exist_ok=True)
        for name, content in files.items():
            path = self.docs / (name if "." in name else f"{name}.md")
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def refresh(self, asked: Asked = difference.NOTHING_ASKED, **settings: Any) -> Result:
        """One night; `settings` are sections of the configuration."""
        fake = {"name": "fake"}
        given = {"corpus": str(self.root / "corpus"), "documents": {"uri": str(self.docs)}, "embedding": fake}
        parsed = config.parse({**given, "model": fake, "split": {"by": "sentences"}, **settings})
        checked, run_id = refresh.check(parsed), heartbeat.new_run_id()
        return refresh.night(
            run_id, manifest.latest(self.storage), parsed, checked, Progress(show=False), local_flow, asked
        )

    @property
    def manifest(self) -> Manifest:
        return manifest.require_latest(self.storage)

    def open(self) -> Snapshot:
        return Snapshot(self.storage, self.manifest)


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """A corpus to refresh night after night."""
    return Nights(tmp_path)


@pytest.fixture
def count_embedded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """`count_embedded()`: the texts that the fake embedder embeds from then on."""

    def begin() -> list[str]:
        found: list[str] = []
        embed = FakeEmbedder.embed_passages

        def counted(self: FakeEmbedder, texts: Any) -> Any:
            found.extend(texts)
            return embed(self, texts)

        monkeypatch.setattr(FakeEmbedder, "embed_passages", counted)
        return found

    return begin


@pytest.fixture(scope="session")
def nights_in() -> Callable[[Path], Nights]:
    """`nights_in(root)`: a corpus that several tests read."""
    return Nights


def text_of(name: str, word: str = "thing", rules: int = 6) -> str:
    """A document with a few sentences, all of them its own."""
    return f"# {name}\n\n" + "".join(f"Rule {n} of {name} holds for each {word} in it. " for n in range(rules))


@dataclass(frozen=True, slots=True)
class ThreeNights:
    """A corpus with three snapshots: 1 alder, birch, cedar, elm; 2 alder changed, juniper new; 3 birch deleted."""

    storage: DirectoryStorage

    def segment_of(self, snapshot: int, document_id: str) -> str:
        """The id of the segment that holds a document alive."""
        found = manifest.load(self.storage, snapshot)
        table = live.documents(self.storage, found.segments, found.dead, ["id"]).to_pylist()
        return next(found.segments[row["segment"]].id for row in table if row["id"] == document_id)


@pytest.fixture(scope="session")
def first_nights(stage: Stage) -> DirectoryStorage:
    """Made once; do not write to it."""
    staged = stage({f"{name}.md": text_of(name) for name in ("alder", "birch", "cedar", "elm")})
    storage, first = staged.storage, staged.publish(rows_per_segment=8)
    assert isinstance(storage, DirectoryStorage)
    later = stage({"alder.md": text_of("alder", "other thing"), "juniper.md": text_of("juniper")})
    added = later.publish()
    for entry in later.storage.list():
        if not entry.name.startswith("manifests/"):
            storage.put(entry.name, later.storage.get(entry.name))
    segments = (*first.segments, *added.segments)
    second = following(storage, first, segments, ["alder.md"], added.run_id)
    following(storage, second, segments, ["alder.md", "birch.md"], "run-of-night-3")
    return storage


def following(
    storage: Storage, before: Manifest, segments: tuple[SegmentEntry, ...], dead_ids: list[str], run_id: str
) -> Manifest:
    """Publish the next snapshot of these segments, with these documents dead in the first of them."""
    documents = tables.read(
        storage.get(layout.segment(segments[0].id, layout.DOCUMENTS)), tables.DOCUMENTS, ["id", "first_row", "num_rows"]
    )
    bits = dead.none_of(segments[0])
    for place, document in enumerate(documents.to_pylist()):
        if document["id"] in dead_ids:
            bits.documents[place] = True
            bits.rows[document["first_row"] : document["first_row"] + document["num_rows"]] = True
    listed = {segments[0].id: dead.write(storage, segments[0], bits)}
    counted = {name: dict(values) for name, values in before.counts.items()}
    total = live.documents(storage, segments, listed, ["id"]).num_rows
    rows = sum(segment.num_rows for segment in segments) - int(bits.rows.sum())
    counted["documents"] |= {"total": total, "indexed": total, "new": 1, "changed": 0, "unchanged": total - 1}
    counted["chunks"] |= {"total": rows, "ok": rows, "generated": 0, "reused": rows}
    content = {name: getattr(before, name) for name in ("config", "fingerprints", "dimension", "rejected")}
    published = manifest.new_manifest(before, **content, run_id=run_id, counts=counted, segments=segments, dead=listed)
    manifest.publish(storage, published)
    return published


@pytest.fixture
def three_nights(first_nights: DirectoryStorage, tmp_path: Path) -> ThreeNights:
    """A copy of the three nights, to be changed."""
    shutil.copytree(first_nights.root, tmp_path / "corpus")
    return ThreeNights(DirectoryStorage(tmp_path / "corpus"))


@pytest.fixture
def no_lexical(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments without Java, for tests that are not about searching."""
    monkeypatch.setattr(lexical_build, "build", lambda texts, segment_id, directory, language: sum(1 for _ in texts))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Proxy]:
    """An S3 server of this process behind a proxy that makes its conditional writes atomic; clients are made anew for it."""
    import threading

    from moto.server import ThreadedMotoServer

    from indexing import s3

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    proxy = S3Proxy(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "dummy")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setattr(s3, "_local", threading.local())  # clients are kept per thread, with the environment of then
        yield proxy
    proxy.close()
    server.stop()


@pytest.fixture(scope="session")
def s3_bucket(s3_server: S3Proxy) -> Callable[[], str]:
    """`s3_bucket()`: the URI of a new bucket on the server."""
    from indexing import s3

    numbers = itertools.count(1)

    def new_bucket() -> str:
        bucket = f"bucket-{next(numbers)}"
        s3._client().create_bucket(Bucket=bucket)
        return f"s3://{bucket}/some/prefix"

    return new_bucket


@pytest.fixture
def s3_faults(s3_server: S3Proxy) -> Iterator[S3Proxy]:
    """The proxy, to make it fail; it does not any more after the test."""
    s3_server.reset()
    yield s3_server
    s3_server.reset()


@pytest.fixture(params=["directory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty store, once in a directory and once on S3."""
    if request.param == "s3":
        return open_storage(request.getfixturevalue("s3_bucket")())
    return open_storage(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def nursery() -> Iterator[night.Nursery]:
    """Runs nights in processes of their own."""
    found = night.Nursery()
    yield found
    found.close()


@pytest.fixture(scope="module")
def yesterday(nursery: night.Nursery, tmp_path_factory: pytest.TempPathFactory) -> DirectoryStorage:
    """The corpus before the night that is killed or starved: read it, or work on a copy."""
    root = tmp_path_factory.mktemp("yesterday")
    night.configure(root, "corpus", night.YESTERDAY)
    assert nursery.run(root).status == 0
    return DirectoryStorage(root / "corpus")


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cross-encoder with one small layer and random weights."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    directory = tmp_path_factory.mktemp("cross-encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "roof", "leaks", "in", "winter", "tenant", "garden"]
    words += "abcdefghijklmnopqrstuvwxyz0123456789"
    (directory / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    settings = BertConfig(vocab_size=len(words), num_labels=1, initializer_range=0.3, **sizes)
    BertForSequenceClassification(settings).save_pretrained(directory)
    BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory)
    return directory
