"""The first of the two steps that workers carry out, a plain callable: Ray wires it in `jobs/flow.py`, tests call it directly.

`EnrichDocuments`: references -> units (one row per document: text, chunks, contexts); appends to the ledger only. Rows are
conserved: one reference in, one unit out, whatever became of the document. The other step is in `jobs/vectors.py`.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from enrichment import models
from enrichment.endpoint import EndpointEngine
from enrichment.engine import Engine, ModelOptions
from enrichment.errors import DocumentError
from enrichment.extraction import Extraction
from enrichment.fake_engine import FakeEngine
from enrichment.generation import Generation
from enrichment.materials import Materials
from enrichment.recipes import recipe
from enrichment.records import Chunk, Context, Document, DocumentId, Enriched
from enrichment.strategies import SEMANTIC, Free, Outcome, Strategy
from enrichment.supervision import Supervised
from enrichment.vllm_engine import VllmEngine
from indexing import ledger, manifest, older, staging
from indexing.storage import open_storage
from jobs.embedding import EmbedOnce
from jobs.models import open_tokenizer as open_model_tokenizer
from jobs.models import resolve_model
from jobs.preparing import Prepared, Preparing
from jobs.run import Report, Run
from jobs.sources import source_name


class EnrichDocuments:
    """References -> units. Holds the language model, once one is needed; a call's documents go through it back to back."""

    attempts = 2
    """At an answer that is not refused."""
    records = True
    """Whether vectors go into the ledger."""

    def __init__(self, run: Run, report: Report, start: Callable[[ModelOptions], Engine] | None = None) -> None:
        run.enter()
        config = run.config
        self._run, self._report = run, report
        self._start = start or start_engine
        self._storage = open_storage(config.corpus)
        self._ledger = ledger.ContextWriter(self._storage, run.id)
        self._beside = ThreadPoolExecutor(1, "prepare")
        self._preparing = Preparing(run)
        self._prompt_fingerprint: str | None = None
        self._contexts: ledger.PaidContexts | None = None
        self._documents = 0
        self._supervised: Supervised | None = None
        report({"loading": 1})
        if config.context.asks_model:
            self._supervised = self._generation()
        self._strategy: Strategy = self._supervised or Free()
        self._ready_at = self._last_at = time.time()
        report({"loading": -1, "workers": 1})

    def _generation(self) -> Supervised:
        config = self._run.config
        options = config.model
        assert options is not None
        tokenizer, chat = open_model_tokenizer(options)
        self._preparing.model_tokenizer = tokenizer
        similarity = self._vectors_of.cosines if SEMANTIC in config.context.names else None
        asked = recipe(Materials(tokenizer, chat, config.context, similarity))
        self._prompt_fingerprint = asked.fingerprint
        self._contexts, of_chunk = self._paid()
        strategy = partial(
            Generation,
            recipe=asked,
            options=config.context,
            max_model_len=options.max_model_len,
            block_tokens=options.block_tokens,
            model_fingerprint=self._run.model_fingerprint or options.name,
            paid=self._contexts,
            older=of_chunk,
            done=self._done,
            language=config.split.language,
            extracting=Extraction(tokenizer, chat, config.context.extract) if config.context.extract else None,
            attempts=self.attempts,
            boilerplate=self._run.boilerplate,
        )
        start = partial(self._start, options)
        return Supervised(start, strategy, lambda begins: self._report({"loading": 1 if begins else -1}))

    @functools.cached_property
    def _vectors_of(self) -> EmbedOnce:
        run = self._run
        return EmbedOnce(self._storage, run.id, run.config.embedding, run.reuse.ids, self.records)

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
        model = self._supervised
        return {
            "documents": self._documents,
            "busy_s": model.busy_s if model else 0.0,
            "ready_at": model.ready_at if model else self._ready_at,
            "last_at": self._last_at,
            "preemptions": model.preemptions if model else 0,
        }

    def _done(self, document: Document, context: Context) -> None:
        """Called in the event loop for every context that the model writes."""
        self._report({"generated": 1})
        if self._ledger.add(ledger.Paid(document.id, context)):
            asyncio.get_running_loop().run_in_executor(None, self._ledger.flush)

    async def __call__(self, refs: pa.Table) -> pa.Table:
        # Reading, splitting and tokenising run beside the event loop, which feeds the engine: in one thread, since more
        # would only take turns, and for all documents at once, since each change of threads costs as much as a chunk.
        loop, listed = asyncio.get_running_loop(), refs.to_pylist()
        prepared = await loop.run_in_executor(self._beside, lambda: [self._preparing(ref) for ref in listed])
        enriched = await asyncio.gather(*map(self._enrich, listed, prepared))
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

    async def _enrich(self, ref: dict[str, Any], prepared: Prepared | DocumentError) -> Enriched:
        if isinstance(prepared, DocumentError):
            return self._quarantined(ref, prepared)
        loaded, sha256, chunks, encoding = prepared
        self._report({"chunks": len(chunks), "bytes": ref["num_bytes"]})
        source = source_name(ref["file"], ref["number"])
        if not chunks:
            return Enriched(loaded.document, source, sha256, loaded.replaced, "empty", tries=ref["tries"])
        try:
            outcome = await self._strategy.contexts(loaded.document, loaded.headings, chunks, encoding)
        except DocumentError as error:
            return self._quarantined(ref, error)
        self._record_reused(loaded.document, outcome)
        config = self._run.config
        metadata = {**outcome.metadata, **loaded.document.metadata}  # what the source says itself is never replaced
        return Enriched(
            document=replace(loaded.document, metadata=metadata),
            source=source,
            source_sha256=sha256,
            replaced=loaded.replaced,
            chunks=chunks,
            contexts=outcome.contexts,
            tries=ref["tries"],
            strategy=config.context.strategy,
            rewrites=config.context.rewrites,
            prompt_fingerprint=self._prompt_fingerprint,
            model_fingerprint=self._run.model_fingerprint,
            generated=sum(outcome.generated),
            tokens={name: getattr(outcome.tokens, name) for name in staging.TOKEN_COUNTS},
        )

    def _record_reused(self, document: Document, outcome: Outcome) -> None:
        """Have what was paid for under another id in the ledger under this one too: later nights look nowhere else."""
        written = {c.key for c, generated in zip(outcome.contexts, outcome.generated, strict=True) if generated}
        reused = {c.key: c for c in (*outcome.contexts, *outcome.besides) if c.key not in written}
        for context in reused.values():
            if self._contexts is None or context.key is None or self._contexts.is_of(context.key, document.id):
                continue
            self._ledger.add(ledger.Paid(document.id, context))


def start_engine(options: ModelOptions) -> Engine:
    """Load the configured model."""
    if options.name == models.FAKE:
        return FakeEngine(options.max_model_len, options.block_tokens)
    return EndpointEngine(options) if options.endpoint else VllmEngine(resolve_model(options), options)
