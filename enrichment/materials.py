"""What a recipe is made from: the model's tokenizer and chat format, the settings, and vectors of chunks for those that
need them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from enrichment.prompts import ChatTemplate
from enrichment.records import Chunk, Document
from enrichment.strategies import ContextOptions
from enrichment.tokens import Tokenizer

Similarity = Callable[[Document, Sequence[Chunk]], np.ndarray]
"""The cosines of a document's chunks with each other, `(n, n) float32`."""


@dataclass(frozen=True, slots=True)
class Materials:
    """`similarity` is there for the strategies that look for chunks that are alike."""

    tokenizer: Tokenizer
    chat: ChatTemplate
    options: ContextOptions
    similarity: Similarity | None = None
