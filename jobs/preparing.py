"""A reference -> its document, read and split: what a strategy starts from."""

import functools
from typing import Any, NamedTuple

from enrichment.documents import Loaded
from enrichment.embed import open_tokenizer
from enrichment.errors import DocumentError
from enrichment.records import Chunk, Span
from enrichment.split import split
from enrichment.tokens import Encoding, Tokenizer
from indexing import manifest
from indexing.snapshot import Snapshot
from indexing.storage import open_storage
from jobs.models import resolve_model
from jobs.run import Run
from jobs.sources import SourceReader
from jobs.stored import FORMAT, StoredReader


class Prepared(NamedTuple):
    """A document with its chunks; `encoding` is its text in the model's tokens, if there is a model."""

    loaded: Loaded
    sha256: str
    chunks: tuple[Chunk, ...]
    encoding: Encoding | None


class Preparing:
    """Reads and splits a run's documents, from their sources or from the snapshot before."""

    def __init__(self, run: Run, model_tokenizer: Tokenizer | None = None) -> None:
        self._run = run
        self._reader = SourceReader(run.root)
        embedding = run.config.embedding
        self.embedder_tokenizer = open_tokenizer(embedding, resolve_model(embedding))
        self.model_tokenizer = model_tokenizer

    def __call__(self, ref: dict[str, Any]) -> Prepared | DocumentError:
        """The document of a reference, or why there is none."""
        try:
            return self._prepare(ref)
        except DocumentError as error:
            return error

    @functools.cached_property
    def _stored(self) -> StoredReader:
        run = self._run
        assert run.reuse.snapshot is not None
        storage = open_storage(run.config.corpus)
        before = Snapshot(storage, manifest.load(storage, run.reuse.snapshot))
        return StoredReader(before, run.config.documents.format)

    def _prepare(self, ref: dict[str, Any]) -> Prepared:
        loaded, sha256 = (self._stored if ref["format"] == FORMAT else self._reader).load(ref)
        document, options = loaded.document, self._run.config.split
        embedder_tokens = self.embedder_tokenizer.encode(document.text).offsets if options.by == "tokens" else None
        model_tokens = self.model_tokenizer.encode(document.text) if self.model_tokenizer else None
        given = None
        if self._run.spans is not None:
            if document.id not in self._run.spans:
                raise DocumentError("no_spans", f"split.spans gives none for {document.id}; add them")
            given = [Span(start, end) for start, end in self._run.spans[document.id]]
        offsets = model_tokens.offsets if model_tokens else None
        chunks = split(document, loaded.headings, options, embedder_tokens, offsets, given)
        return Prepared(loaded, sha256, tuple(chunks), model_tokens)
