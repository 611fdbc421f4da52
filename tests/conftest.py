"""Small corpora without Ray: the steps called directly, with the fake engine and the fake embedder."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from s3_proxy import S3Proxy

from indexing import lexical, manifest, segments
from indexing.manifest import Manifest
from indexing.serving import Snapshot
from indexing.storage import DirectoryStorage, Storage
from jobs import config, counts, difference, refresh, sources
from jobs.steps import EnrichDocuments, Run, StageVectors


@dataclass(frozen=True, slots=True)
class Staged:
    """A run as far as its staged parts."""

    storage: Storage
    run: Run
    refs: pa.Table
    summary: pa.Table

    def publish(self, rows_per_segment: int = 500_000) -> Manifest:
        """Build the segments, two at a time, and commit."""
        settings = self.run.config
        groups = refresh.cut_segments(self.summary, rows_per_segment)
        with ThreadPoolExecutor(2) as pool:
            built = pool.map(
                lambda group: segments.build(self.storage, self.run.id, group[2], *group[:2], 64, settings.index),
                groups,
            )
            entries = tuple(built)
        fingerprints = refresh.check_models(settings)[1]
        previous = manifest.latest(self.storage)
        counted = counts.count(self.summary, difference.compare(self.storage, previous, self.refs, fingerprints))
        counts.reconcile(self.refs, counted, entries)
        published = manifest.new_manifest(
            previous,
            run_id=self.run.id,
            config=settings.as_dict(),
            fingerprints=fingerprints,
            dimension=64,
            counts=counted,
            segments=entries,
            dead={},
            rejected=counts.rejected(self.summary),
        )
        manifest.publish(self.storage, published)
        return published


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


@pytest.fixture
def no_lexical(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments without Java, for tests that are not about searching."""
    monkeypatch.setattr(lexical, "build", lambda texts, segment_id, directory, language: sum(1 for _ in texts))


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
