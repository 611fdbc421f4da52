"""Texts -> vectors, each text embedded once: those that the ledger has are taken from it, the others go into it.

Also the cosines of a document's chunks, for the strategies that look for chunks that are alike.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Container, Sequence

import numpy as np
import pyarrow as pa

from enrichment.embed import Embedder, EmbeddingOptions, open_embedder, parts, vector_key
from enrichment.records import Chunk, Document, DocumentId
from enrichment.relations import cosines_of
from indexing import ledger
from indexing.storage import Storage
from jobs.models import resolve_model

EMBED_TEXTS = 256  # texts per call of the embedder: bounds memory, enough to sort by length
_COMPARED = 1024  # documents in work at once are fewer


def unpaid(texts: Sequence[str], embedder: Embedder, paid: Container[bytes]) -> tuple[list[bytes], list[int]]:
    """The key of each text, and the places of those to embed: of equal ones the first."""
    keys = [vector_key(embedder.passage_fingerprint, text) for text in texts]
    missing = {key: place for place, key in reversed(list(enumerate(keys))) if key not in paid}
    return keys, sorted(missing.values())


class EmbedOnce:
    """An embedder that is asked once for a text, by one thread at a time. Without `record` nothing is written."""

    def __init__(
        self, storage: Storage, run_id: str, options: EmbeddingOptions, ids: pa.Array | None, record: bool = True
    ) -> None:
        """`ids` are the documents under which the ledger is read, None for all of it."""
        self._storage, self._run_id, self._record = storage, run_id, record
        self.embedder: Embedder = open_embedder(options, resolve_model(options))
        self._turn = threading.Lock()
        # By document: its texts and their vectors.
        self._compared: OrderedDict[str, tuple[list[str], bytes]] = OrderedDict()
        self.paid = ledger.read_vectors(storage, self.embedder.dimension, ids)

    def embed(self, texts: Sequence[str], ids: Sequence[str], part: str) -> list[bytes]:
        """A vector per text, as float16 bytes; `ids` are the texts' documents, `part` names the ledger's part."""
        keys, rows = unpaid(texts, self.embedder, self.paid)
        found = [
            self.embedder.embed_passages([texts[row] for row in batch]).astype(np.float16)
            for batch in (rows[start : start + EMBED_TEXTS] for start in range(0, len(rows), EMBED_TEXTS))
        ]
        vectors = b"".join(batch.tobytes() for batch in found)
        size = 2 * self.embedder.dimension
        new = {keys[row]: vectors[place * size : (place + 1) * size] for place, row in enumerate(rows)}
        if self._record:
            self._append(new, keys, rows, ids, part)
        return [new[key] if key in new else self.paid[key] for key in keys]

    def cosines(self, document: Document, chunks: Sequence[Chunk]) -> np.ndarray:
        """How alike a document's chunks are, by their texts alone: `(n, n) float32`."""
        of_chunks = [parts("", document.text[chunk.start : chunk.end], self.embedder) for chunk in chunks]
        texts = [text for pieces in of_chunks for text in pieces]
        owners = [number for number, pieces in enumerate(of_chunks) for _ in pieces]
        with self._turn:
            before = self._compared.pop(
                document.id, None
            )  # asked before there was an engine, and again now that there is
            if before is not None and before[0] == texts:
                data = before[1]
            else:
                data = b"".join(self.embed(texts, [document.id] * len(texts), secrets.token_hex(8)))
                self._compared[document.id] = texts, data
                if len(self._compared) > _COMPARED:
                    self._compared.popitem(last=False)
        vectors = np.frombuffer(data, np.float16).reshape(-1, self.embedder.dimension)
        return cosines_of(vectors, owners, len(chunks))

    def _append(
        self, new: dict[bytes, bytes], keys: Sequence[bytes], rows: Sequence[int], ids: Sequence[str], part: str
    ) -> None:
        """Into the ledger; what was paid for under another id is kept under this one too: later nights look nowhere else."""
        entries = dict.fromkeys((keys[row], ids[row]) for row in rows)
        entries |= {pair: None for pair in zip(keys, ids, strict=True) if not self.paid.is_of(*pair)}
        known = [new[key] if key in new else self.paid[key] for key, _ in entries]
        matrix = np.frombuffer(b"".join(known), np.float16).reshape(-1, self.embedder.dimension)
        owners = [DocumentId(name) for _, name in entries]
        ledger.append_vectors(self._storage, self._run_id, part, [key for key, _ in entries], owners, matrix)
