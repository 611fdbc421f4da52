"""Texts -> unit vectors, for building and for queries alike. Nothing is cut silently.

A text longer than the model's window is embedded in overlapping parts, each behind the chunk's header; a row scores as its
best part. `Embedder` is the Protocol that the sentence-transformers embedder and the fake one honour.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from enrichment import models
from enrichment.errors import ConfigError
from enrichment.tokens import FakeTokenizer, FileTokenizer, Tokenizer

_LEAST_WINDOW = 16  # tokens
_OVERLAP = 8  # parts share an eighth of the window, so that a phrase at a cut is whole in one of them


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """The `embedding` section of the configuration."""

    name: str
    revision: str | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Literal["auto", "mean", "cls", "lasttoken", "max"] = "auto"
    part_tokens: int | None = None
    """Embed what is longer than this in overlapping parts, though the model's window would take it: a small model says more of
    a short text than of a long one."""

    def __post_init__(self) -> None:
        if self.part_tokens is not None and self.part_tokens < _LEAST_WINDOW:
            raise ConfigError(f"embedding.part_tokens is {self.part_tokens}; it must be at least {_LEAST_WINDOW}")

    def room(self, window: int) -> int:
        """The longest text that is embedded whole, of a model with this window."""
        return min(window, self.part_tokens or window)


class Embedder(Protocol):
    """Embeds passages and queries; `window` is the longest text that is embedded whole, in tokens without prefix and special
    ones.
    """

    dimension: int
    window: int
    fingerprint: str
    passage_fingerprint: str
    """What a passage's vector depends on: all of the fingerprint but the query prefix."""
    tokenizer: Tokenizer

    def embed_passages(self, texts: Sequence[str]) -> np.ndarray:
        """`(n, dimension) float32`, unit length."""

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """`(n, dimension) float32`, unit length."""


class SentenceEmbedder:
    """A sentence-transformers model on this process's device."""

    def __init__(self, directory: Path, options: EmbeddingOptions) -> None:
        self._options = options
        self._model: Any = _load(directory, options.pooling)
        self.tokenizer: Tokenizer = FileTokenizer(directory)
        self.dimension = int(self._model.get_embedding_dimension())
        prefix = len(self.tokenizer.encode(options.passage_prefix).ids)
        # 2: the tokens that BERT-like models put around
        self.window = options.room(int(self._model.max_seq_length) - 2 - prefix)
        if self.window < _LEAST_WINDOW:
            raise ConfigError(f"embedding.passage_prefix leaves {self.window} tokens of the window of {options.name}")
        self.fingerprint = embedder_fingerprint(options, directory)
        self.passage_fingerprint = embedder_fingerprint(replace(options, query_prefix=""), directory)

    def embed_passages(self, texts: Sequence[str]) -> np.ndarray:
        return self._embed(texts, self._options.passage_prefix)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._embed(texts, self._options.query_prefix)

    def _embed(self, texts: Sequence[str], prefix: str) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        vectors = self._model.encode(
            [prefix + text for text in texts], batch_size=32, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)


class FakeEmbedder:
    """Hashed words, deterministic: texts that share words are near each other. For tests and dry runs."""

    dimension = 64

    def __init__(self, options: EmbeddingOptions) -> None:
        self.window = options.room(254)
        self.tokenizer: Tokenizer = FakeTokenizer()
        self.fingerprint = embedder_fingerprint(options, Path())
        self.passage_fingerprint = embedder_fingerprint(replace(options, query_prefix=""), Path())
        self.calls = 0

    def embed_passages(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            self.calls += 1
            tokens = self.tokenizer.encode(text.lower()).ids
            signs = (tokens // self.dimension) % 2 * 2.0 - 1.0
            vectors[row] = np.bincount(tokens % self.dimension, signs, self.dimension)
            if not vectors[row].any():
                vectors[row, 0] = 1.0
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.embed_passages(texts)


def open_embedder(options: EmbeddingOptions, directory: Path | None = None) -> Embedder:
    """The embedder that the options name, from `directory` if it was resolved already."""
    if options.name == models.FAKE:
        return FakeEmbedder(options)
    return SentenceEmbedder(directory or models.resolve(options.name, options.revision), options)


def open_tokenizer(options: EmbeddingOptions, directory: Path | None = None) -> Tokenizer:
    """The embedder's tokenizer alone, without its weights."""
    if options.name == models.FAKE:
        return FakeTokenizer()
    return FileTokenizer(directory or models.resolve(options.name, options.revision))


def parts(lead: str, body: str, embedder: Embedder) -> list[str]:
    """The texts to embed for one chunk: `lead` and `body` in one where they fit, else overlapping parts of `body`.

    A lead longer than half the window keeps its end, the nearest heading, so that every part has room for text.
    """
    encode = embedder.tokenizer.encode
    lead, lead_tokens = _fitted_lead(lead, embedder.tokenizer, embedder.window // 2)  # type: ignore[arg-type]
    size = embedder.window - lead_tokens
    offsets = encode(body).offsets
    starts, ends, count = offsets.starts, offsets.ends, len(offsets.starts)
    if count <= size:
        return [lead + body]

    def part(first: int, last: int) -> str:
        return lead + body[int(starts[first]) if first else 0 : int(ends[last - 1]) if last < count else len(body)]

    found, first, last = [], 0, 0
    while last < count:
        last = min(first + size, count)
        # A word cut in two can be more tokens than before.
        while last > first + 1 and (excess := len(encode(part(first, last)).ids) - embedder.window) > 0:
            last = max(first + 1, last - excess)
        found.append(part(first, last))
        first = max(first + 1, last - size // _OVERLAP)
    return found


@functools.lru_cache(maxsize=1024)  # neighbours often have the same lead
def _fitted_lead(lead: str, tokenizer: Tokenizer, room: int) -> tuple[str, int]:
    """The line to put before a body, with the end of `lead` that fits into `room`; its tokens."""
    starts = tokenizer.encode(lead).offsets.starts
    if len(starts) > room:
        lead = lead[int(starts[-room]) :]
    lead = f"{lead}\n" if lead else ""
    return lead, len(tokenizer.encode(lead).ids)


def vector_key(fingerprint: str, text: str) -> bytes:
    """What a vector depends on: the exact text and the embedder."""
    return hashlib.sha256(f"{fingerprint}\0{text}".encode()).digest()


def embedder_fingerprint(options: EmbeddingOptions, directory: Path) -> str:
    """What an embedder's vectors depend on; known without loading its weights."""
    fake = options.name == models.FAKE
    model = models.FAKE if fake else models.fingerprint(directory, options.name, options.revision)
    # Where a text is cut is no matter of the vector of a piece.
    settings = sorted((name, value) for name, value in asdict(options).items() if name != "part_tokens")
    return hashlib.sha256(f"{model}\0{settings!r}".encode()).hexdigest()[:32]


def _load(directory: Path, pooling: str) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if pooling == "auto":
        return SentenceTransformer(str(directory), trust_remote_code=False)
    transformer = Transformer(str(directory), model_args={"trust_remote_code": False})
    head = Pooling(transformer.get_word_embedding_dimension(), pooling_mode=pooling)
    return SentenceTransformer(modules=[transformer, head])
