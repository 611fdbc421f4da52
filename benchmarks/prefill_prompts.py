"""The corpus and the prompts of `benchmarks/prefill.py`: documents -> a Parquet file with a row per prompt, in document order.

The prompts are built as `jobs/steps.py` and `enrichment/strategies.py` build them; a document of one chunk has none. The
chunks are those of the fake embedder's words, unless they are given.
"""

import argparse
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from enrichment import models
from enrichment.embed import open_tokenizer
from enrichment.engine import ModelOptions
from enrichment.errors import DocumentError
from enrichment.prompts import Prompts, chat_template
from enrichment.records import Span
from enrichment.situating import WORDING
from enrichment.split import split
from enrichment.tokens import FileTokenizer
from indexing.storage import open_storage
from jobs import config, sources
from jobs.spans import read_spans

SQUEEZED_TOKENS = 16384  # of KV cache: twice the longest prompt that the demo's configuration allows


def configure(options: argparse.Namespace, corpus: str) -> config.Config:
    """The base configuration with the benchmark's corpus, prompt, model replicas, spans and the fake embedder."""
    settings = config.load(options.config).as_dict()
    settings |= {"corpus": corpus, "embedding": {"name": models.FAKE}}
    settings["documents"]["uri"] = str(options.data)
    settings["context"] |= {"strategy": "situate", "prompt": options.prompt, "max_output_tokens": options.max_tokens}
    settings["model"]["replicas"] = options.replicas
    if options.spans:
        settings["split"] = {"by": "spans", "spans": str(options.spans)}
    if override := cache_override(options, ModelOptions(**settings["model"]).block_tokens):
        settings["model"]["engine"] = override
    return config.parse(settings)


def cache_override(options: argparse.Namespace, block_tokens: int) -> dict[str, int]:
    """The engine argument that makes the cache small; empty for an ample one."""
    return {"num_gpu_blocks_override": SQUEEZED_TOKENS // block_tokens} if options.cache == "squeezed" else {}


def copy_first(data: Path, limit: int, target: Path) -> None:
    """Copy the first documents, in order of their ids, so that every variant reads the same ones."""
    listing, refs = scan(config.DocumentsOptions(uri=str(data)))
    storage = open_storage(listing.root)
    for ref in refs.slice(0, limit).to_pylist():
        path = target / ref["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if ref["number"] is None:
                file.write(storage.get(ref["file"]))
            else:
                file.write(storage.get_range(ref["file"], ref["first"], ref["second"]).rstrip(b"\n") + b"\n")


def scan(options: config.DocumentsOptions) -> tuple[sources.Listing, pa.Table]:
    """The sources' listing and references, as a refresh finds them."""
    listing = sources.list_files(options)
    found = [sources.scan_file(listing.root, file, options.max_bytes) for file in listing.files]
    return listing, sources.resolve(pa.concat_tables(found))


def prepare(options: argparse.Namespace) -> dict[str, Any]:
    """Write the prompts, in document order, with the corpus's size."""
    settings = configure(options, "none")
    assert settings.model is not None
    directory = models.resolve(settings.model.name, settings.model.revision)
    tokenizer, words = FileTokenizer(directory), open_tokenizer(settings.embedding)
    prompts = Prompts(tokenizer, chat_template(str(directory)), settings.context.prompt, WORDING)
    listing, refs = scan(settings.documents)
    reader, spans = sources.SourceReader(listing.root), read_spans(settings.split)
    rows: list[tuple[str, int, np.ndarray]] = []
    for ref in refs.to_pylist():
        with contextlib.suppress(DocumentError):
            loaded, _ = reader.load(ref)
            document, headings = loaded.document, loaded.headings
            encoding = tokenizer.encode(document.text)
            by_words = words.encode(document.text).offsets if settings.split.by == "tokens" else None
            given = [Span(*span) for span in spans.get(document.id, ())] if spans is not None else None
            chunks = split(document, headings, settings.split, by_words, encoding.offsets, given)
            if len(chunks) < 2:
                continue  # nothing to situate
            work = prompts.of(document, headings, chunks, encoding)
            cuts = work.scopes(settings.model.max_model_len - settings.context.max_output_tokens)
            built = [work.prompt(scope, chunk) for scope in cuts for chunk in scope.chunks]
            rows += [(document.id, number, prompt) for number, prompt in enumerate(built)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    schema = pa.schema([("document", pa.string()), ("chunk", pa.int32()), ("tokenized_prompt", pa.list_(pa.int32()))])
    pq.write_table(
        pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema), options.prompts
    )
    return {"corpus_bytes": sum(refs["num_bytes"].to_pylist()), "block_tokens": settings.model.block_tokens}
