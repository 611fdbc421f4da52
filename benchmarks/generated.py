"""Snapshots of generated documents, for what is measured of serving: real segments and indexes, without sources and models.

Documents of ten chunks; a chunk is 120 words of a vocabulary of 4,900, used as unevenly as words are, and has a context of
40. The same numbers give the same documents.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from enrichment.embed import open_embedder
from indexing import manifest, segments, tables
from indexing.manifest import Manifest
from indexing.segments import Part
from indexing.staging import BUILT, STAGED_DOCUMENTS
from indexing.storage import Storage
from jobs import config

CHUNKS_PER_DOCUMENT, WORDS_PER_CHUNK, WORDS_PER_CONTEXT = 10, 120, 40
_SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
_VOCABULARY = np.array(
    [_SYLLABLES[n % 70] + _SYLLABLES[n // 70] + _SYLLABLES[n * 31 % 70] for n in range(4900)], dtype=object
)


def words(rng: np.random.Generator, texts: int, length: int) -> list[str]:
    """So many texts of `length` words, the first of the vocabulary much more often than the last."""
    ranks = (len(_VOCABULARY) ** rng.random((texts, length))).astype(int) - 1
    return [" ".join(row) for row in _VOCABULARY[ranks].tolist()]


def queries(count: int) -> list[str]:
    """Questions of four words."""
    rng = np.random.default_rng(7)
    return words(rng, count, 4)


def publish(storage: Storage, chunks: int, rows_per_segment: int, embed: bool = True) -> Manifest:
    """Add so many chunks in new segments to what the store's newest snapshot lists, and publish. Without `embed` all vectors
    are the same: for what does not search by them.
    """
    before = manifest.latest(storage)
    settings = config.parse(
        {
            "corpus": storage.uri,
            "documents": {"uri": "generated"},
            "model": {"name": "fake"},
            "embedding": {"name": "fake"},
            "index": {"language": "en"},
        }
    )
    embedder, sequence = open_embedder(settings.embedding), before.sequence + 1 if before else 1
    built, rng = list(before.segments if before else ()), np.random.default_rng(sequence)
    for first in range(0, chunks, rows_per_segment):
        size = min(rows_per_segment, chunks - first)
        ids = [f"night-{sequence:04d}/document-{first + n:09d}.md" for n in range(0, size, CHUNKS_PER_DOCUMENT)]
        part = _part(rng, ids, size, embedder if embed else None, embedder.dimension)
        built.append(segments.build_from(storage, [part], (ids[0], ids[-1]), embedder.dimension, settings.index))
    documents, rows = sum(s.num_documents for s in built), sum(s.num_rows for s in built)
    published = manifest.new_manifest(
        before,
        run_id=f"generated-{sequence}",
        config=settings.as_dict(),
        fingerprints={
            "content": "generated",
            "embedding": embedder.fingerprint,
            "model": "fake",
            "prompt": "generated",
        },
        dimension=embedder.dimension,
        counts={
            "documents": {"total": documents, "indexed": documents, "empty": 0, "quarantined": 0},
            "chunks": {"total": rows, "ok": rows, "fallback": 0, "failed": 0, "skipped": 0},
        },
        segments=tuple(built),
        dead=before.dead if before else {},
        rejected=(),
    )
    manifest.publish(storage, published)
    return published


def _part(rng: np.random.Generator, ids: Sequence[str], size: int, embedder: object, dimension: int) -> Part:
    texts = [text + ".\n" for text in words(rng, size, WORDS_PER_CHUNK)]
    contexts = [text + "." for text in words(rng, size, WORDS_PER_CONTEXT)]
    owners = np.arange(size) // CHUNKS_PER_DOCUMENT
    index = np.arange(size) % CHUNKS_PER_DOCUMENT
    bounds = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    bases = bounds[owners * CHUNKS_PER_DOCUMENT]
    start, end = bounds[:-1] - bases, bounds[1:] - bases
    whole = ["".join(texts[n : n + CHUNKS_PER_DOCUMENT]) for n in range(0, size, CHUNKS_PER_DOCUMENT)]
    sha = [hashlib.sha256(text.encode()).hexdigest() for text in whole]
    constant = {"metadata": "{}", "status": "indexed", "replaced": 0, "tries": 1}
    documents = {"id": ids, "title": ids, "source": ids, "source_sha256": sha, "text_sha256": sha, "text": whole}
    rows = {
        "document_id": [ids[n] for n in owners.tolist()],
        "chunk_index": index,
        **{"start": start, "end": end, "byte_start": start, "byte_end": end},
        "heading_path": [[ids[n], f"Section {i // 3}"] for n, i in zip(owners.tolist(), index.tolist(), strict=True)],
        "text": texts,
        "header": [f"{ids[n]} > Section {i // 3}" for n, i in zip(owners.tolist(), index.tolist(), strict=True)],
        "context": contexts,
        "context_key": [hashlib.sha256(text.encode()).digest() for text in texts],
        "scope_end": np.full(size, 10_000),
    }
    numbers = {"scope_start": 0, "prompt_tokens": 900, "cached_tokens": 700, "output_tokens": 50, "attempts": 1}
    names = {"status": "ok", "strategy": "situate", "prompt_fingerprint": "f" * 16, "model_fingerprint": "e" * 32}
    return Part(
        _table(STAGED_DOCUMENTS, documents, constant, len(ids)),
        _table(tables.ROWS, rows, {**numbers, **names}, size),
        _vectors(texts, embedder, dimension),
    )


def _table(schema: pa.Schema, columns: dict[str, object], constant: dict[str, object], size: int) -> pa.Table:
    assert not set(columns) & set(BUILT) - {"num_rows"}
    return pa.table(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.array([constant.get(field.name)] * size, field.type)
            for field in schema
        ],
        schema=schema,
    )


def _vectors(texts: Sequence[str], embedder: object, dimension: int) -> pa.Table:
    if embedder is None:
        matrix = np.tile(np.eye(1, dimension, dtype=np.float16), (len(texts), 1))
    else:
        matrix = embedder.embed_passages(texts).astype(np.float16)  # type: ignore[attr-defined]
    flat = pa.array([row.tobytes() for row in matrix], pa.binary(2 * dimension))
    columns = [pa.array(np.arange(len(texts))), pa.array(np.zeros(len(texts), np.int16)), flat]
    return pa.table(columns, schema=tables.vectors(dimension))
