"""The two steps that workers carry out, as plain callables: Ray wires them in `jobs/flow.py`, tests call them directly.

`EnrichDocuments`: references -> units (one row per document: text, chunks, contexts); appends to the ledger only.
`StageVectors`: units -> staged documents, rows and vectors, and one summary row per document. Rows are conserved: one
reference in, one unit, one summary row out, whatever became of the document.
"""

import asyncio
import functools
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from enrichment import models
from enrichment.admission import Admission
from enrichment.embed import Embedder, open_embedder, open_tokenizer, parts, vector_key
from enrichment.endpoint import EndpointEngine
from enrichment.engine import Engine, ModelOptions
from enrichment.errors import DocumentError
from enrichment.fake_engine import FakeEngine
from enrichment.prompts import PLAIN_CHAT, Prompts, chat_template, fingerprint
from enrichment.records import Chunk, Context, Document, DocumentId, Enriched, Span
from enrichment.split import split
from enrichment.strategies import Free, Situate, Strategy
from enrichment.supervision import RestartableEngine, Supervised
from enrichment.tokens import FakeTokenizer, FileTokenizer, Tokenizer
from enrichment.vllm_engine import VllmEngine
from indexing import ledger, manifest, older, staging, tables
from indexing.layout import DOCUMENTS, ROWS, VECTORS, staged
from indexing.segments import text_fields
from indexing.serving import Snapshot
from indexing.storage import Storage, open_storage
from jobs.config import Config
from jobs.models import resolve_model
from jobs.sources import SourceReader, source_name
from jobs.stored import FORMAT, StoredReader
from jobs.summaries import summaries

Report = Callable[[Mapping[str, int]], None]
EMBED_TEXTS = 256  # texts per call of the embedder: bounds memory, enough to sort by length


@dataclass(frozen=True, slots=True)
class Reuse:
    """Where a run finds what was paid for before.

    The ledger, of the documents `ids` alone if they are given; and the rows that the documents `changed` have in `snapshot`.
    Without `fallbacks`, what a guard refused is asked for again.
    """

    ids: pa.Array | None = None
    snapshot: int | None = None
    changed: pa.Array | None = None
    fallbacks: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """What every worker of one run knows. `spans` is the table of given spans for `split.by: spans`, else None."""

    id: str
    config: Config
    root: str
    spans: Mapping[str, Sequence[tuple[int, int]]] | None = None
    model_fingerprint: str | None = None
    reuse: Reuse = field(default_factory=Reuse)
    directory: str = field(default_factory=os.getcwd)

    def enter(self) -> None:
        """Let relative paths mean on a worker of this machine what they mean to the user; elsewhere none are used."""
        if Path(self.directory).is_dir():
            os.chdir(self.directory)


class EnrichDocuments:
    """References -> units. Holds the language model; documents of one call go through it back to back."""

    def __init__(self, run: Run, report: Report) -> None:
        run.enter()
        config = run.config
        self._run, self._report = run, report
        self._storage = open_storage(config.corpus)
        self._ledger = ledger.ContextWriter(self._storage, run.id)
        self._reader = SourceReader(run.root)
        self._embedder_tokenizer = open_tokenizer(config.embedding, resolve_model(config.embedding))
        self._model_tokenizer: Tokenizer | None = None
        self._prompt_fingerprint: str | None = None
        self._engine: RestartableEngine | None = None
        self._admission: Admission | None = None
        self._documents = 0
        report({"loading": 1})
        self._strategy: Strategy = self._situate() if config.context.strategy == "situate" else Free()
        self._ready_at = self._last_at = time.time()
        report({"loading": -1, "workers": 1})

    def _situate(self) -> Strategy:
        config = self._run.config
        options = config.model
        assert options is not None
        self._prompt_fingerprint = fingerprint(config.context.prompt)
        if options.name == models.FAKE:
            self._model_tokenizer, chat = FakeTokenizer(), PLAIN_CHAT
        else:
            directory = resolve_model(options)
            self._model_tokenizer, chat = FileTokenizer(directory), chat_template(str(directory))
        self._engine = RestartableEngine(partial(start_engine, options))
        strategy = Situate(
            self._engine,
            Prompts(self._model_tokenizer, chat, config.context.prompt),
            config.context,
            options.max_model_len,
            options.block_tokens,
            self._run.model_fingerprint or options.name,
            *self._paid(),
            self._done,
        )
        self._admission = strategy.admission
        return Supervised(self._engine, strategy, lambda begins: self._report({"loading": 1 if begins else -1}))

    def _paid(self) -> tuple[ledger.PaidContexts, Callable[[Document, Chunk], Context | None]]:
        """Contexts by exact key; and those of the older version's chunks, none unless `context.reuse` is `chunk`."""
        reuse, by_chunk = self._run.reuse, self._run.config.context.reuse == "chunk"
        if reuse.snapshot is None or reuse.changed is None:
            return ledger.read_contexts(self._storage, reuse.ids, None, reuse.fallbacks), lambda document, chunk: None
        before = manifest.load(self._storage, reuse.snapshot)
        rows = older.rows(self._storage, before, reuse.changed, by_chunk)
        paid = ledger.read_contexts(self._storage, reuse.ids, older.contexts(rows), reuse.fallbacks)
        made_as_now = (self._run.config.context.strategy, self._prompt_fingerprint, self._run.model_fingerprint)
        return paid, partial(older.of_chunk, older.chunks(rows, *made_as_now) if by_chunk else {})

    def facts(self) -> dict[str, float]:
        """Of this replica: documents done, seconds with a request in work, times of the model's load and of the last answer."""
        return {
            "documents": self._documents,
            "busy_s": self._admission.busy_s if self._admission else 0.0,
            "ready_at": self._ready_at,
            "last_at": self._last_at,
            "preemptions": self._engine.preemptions if self._engine else 0,
        }

    def _done(self, document: Document, context: Context) -> None:
        """Called in the event loop for every context that the model writes."""
        self._report({"generated": 1})
        if self._ledger.add(ledger.Paid(document.id, context)):
            asyncio.get_running_loop().run_in_executor(None, self._ledger.flush)

    async def __call__(self, refs: pa.Table) -> pa.Table:
        enriched = await asyncio.gather(*(self._enrich(ref) for ref in refs.to_pylist()))
        await asyncio.to_thread(self._ledger.flush)  # what leaves here is paid for, durably
        self._documents += refs.num_rows
        self._last_at = time.time()
        return staging.units(enriched)

    def given_up(self, refs: pa.Table, reason: str, message: str) -> pa.Table:
        """The units of documents that are not to be tried again."""
        return staging.units([self._quarantined(ref, DocumentError(reason, message)) for ref in refs.to_pylist()])

    def _quarantined(self, ref: Mapping[str, Any], error: DocumentError) -> Enriched:
        self._report({"quarantined": 1})
        empty = Document(DocumentId(ref["id"]), "")
        source = source_name(ref["file"], ref["number"])
        return Enriched(empty, source, ref["sha256"], reason=f"{error.reason}: {error}", tries=ref["tries"])

    async def _enrich(self, ref: dict[str, Any]) -> Enriched:
        try:
            # Reading, splitting and tokenising run beside the event loop, which feeds the engine.
            loaded, sha256, chunks, encoding = await asyncio.to_thread(self._prepare, ref)
            self._report({"chunks": len(chunks), "bytes": ref["num_bytes"]})
            source = source_name(ref["file"], ref["number"])
            if not chunks:
                return Enriched(loaded.document, source, sha256, loaded.replaced, "empty", tries=ref["tries"])
            outcome = await self._strategy.contexts(loaded.document, loaded.headings, chunks, encoding)
        except DocumentError as error:
            return self._quarantined(ref, error)
        config = self._run.config
        return Enriched(
            document=loaded.document,
            source=source,
            source_sha256=sha256,
            replaced=loaded.replaced,
            chunks=chunks,
            contexts=outcome.contexts,
            tries=ref["tries"],
            strategy=config.context.strategy,
            prompt_fingerprint=self._prompt_fingerprint,
            model_fingerprint=self._run.model_fingerprint,
            generated=sum(outcome.generated),
            tokens={name: getattr(outcome.tokens, name) for name in staging.TOKEN_COUNTS},
        )

    @functools.cached_property
    def _stored(self) -> StoredReader:
        assert self._run.reuse.snapshot is not None
        before = Snapshot(self._storage, manifest.load(self._storage, self._run.reuse.snapshot))
        return StoredReader(before, self._run.config.documents.format)

    def _prepare(self, ref: dict[str, Any]) -> tuple[Any, str, Any, Any]:
        loaded, sha256 = (self._stored if ref["format"] == FORMAT else self._reader).load(ref)
        document = loaded.document
        by_tokens = self._run.config.split.by == "tokens"
        embedder_tokens = self._embedder_tokenizer.encode(document.text).offsets if by_tokens else None
        model_tokens = self._model_tokenizer.encode(document.text) if self._model_tokenizer else None
        given = None
        if self._run.spans is not None:
            if document.id not in self._run.spans:
                raise DocumentError("no_spans", f"split.spans gives none for {document.id}; add them")
            given = [Span(start, end) for start, end in self._run.spans[document.id]]
        chunks = split(
            document,
            loaded.headings,
            self._run.config.split,
            embedder_tokens,
            model_tokens.offsets if model_tokens else None,
            given,
        )
        return loaded, sha256, tuple(chunks), model_tokens


def start_engine(options: ModelOptions) -> Engine:
    """Load the configured model."""
    if options.name == models.FAKE:
        return FakeEngine(options.max_model_len, options.block_tokens)
    return EndpointEngine(options) if options.endpoint else VllmEngine(resolve_model(options), options)


class StageVectors:
    """Units -> staged Parquet, and a summary row per document. Holds the embedder."""

    def __init__(self, run: Run, report: Report) -> None:
        run.enter()
        self._run, self._report = run, report
        self._storage: Storage = open_storage(run.config.corpus)
        self._embedder: Embedder = open_embedder(run.config.embedding, resolve_model(run.config.embedding))
        self._paid = ledger.read_vectors(self._storage, self._embedder.dimension, run.reuse.ids)

    def __call__(self, units: pa.Table) -> pa.Table:
        part = secrets.token_hex(8)
        rows = staging.rows_of(units)
        vectors = self._vectors(rows, part)
        with tempfile.TemporaryDirectory(prefix="situate-part-") as work:
            for name, table in ((ROWS, rows), (VECTORS, vectors), (DOCUMENTS, staging.documents_of(units))):
                tables.write(table, Path(work) / name)
                self._storage.put_file(staged(self._run.id, part, name), Path(work) / name)
        self._report({"documents": units.num_rows, "embedded": rows.num_rows})
        return summaries(units, part)

    def _vectors(self, rows: pa.Table, part: str) -> pa.Table:
        fields = self._run.config.index.dense_text
        leads = text_fields(rows, [name for name in fields if name != "body"])
        bodies = text_fields(rows, ["body"] if "body" in fields else [])
        texts: list[str] = []
        owners: list[tuple[int, int]] = []
        for row, (lead, body) in enumerate(zip(leads, bodies, strict=True)):
            pieces = parts("\n".join(lead), "".join(body), self._embedder)
            texts += pieces
            owners += [(row, number) for number in range(len(pieces))]
        documents = rows["document_id"].to_pylist()
        vectors = self._embed(texts, [documents[row] for row, _ in owners], part)
        schema = tables.vectors(self._embedder.dimension)
        columns = [[row for row, _ in owners], [number for _, number in owners], vectors]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _embed(self, texts: Sequence[str], ids: Sequence[str], part: str) -> list[bytes]:
        """A vector per text, as float16 bytes; texts embedded before, here or in the ledger, are not embedded again."""
        keys = [vector_key(self._embedder.passage_fingerprint, text) for text in texts]
        missing = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self._paid}
        rows = sorted(missing.values())
        found = [
            self._embedder.embed_passages([texts[row] for row in batch]).astype(np.float16)
            for batch in (rows[start : start + EMBED_TEXTS] for start in range(0, len(rows), EMBED_TEXTS))
        ]
        new: dict[bytes, bytes] = {}
        if found:
            matrix = np.concatenate(found)
            new_keys = [keys[row] for row in rows]
            owners = [DocumentId(ids[row]) for row in rows]
            ledger.append_vectors(self._storage, self._run.id, part, new_keys, owners, matrix)
            new = dict(zip(new_keys, (vector.tobytes() for vector in matrix), strict=True))
        return [new[key] if key in new else self._paid[key] for key in keys]
