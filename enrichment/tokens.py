"""Tokenizers that say where in the text each token stands. Document text never yields a control token.

text -> ids and code point offsets, once per document and tokenizer. Trusted text (the chat template) is encoded with
`encode_template`, the only way to a control token.
"""

import json
import re
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from enrichment.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TokenOffsets:
    """Where a tokenizer found its tokens: code points into the text, `(n,) int64` each, starts and ends non-decreasing.

    Tokens may share code points (bytes of one character).
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text's token ids, `(n,) int64`, and where they stand."""

    ids: np.ndarray
    offsets: TokenOffsets


class Tokenizer(Protocol):
    """What splitting, prompts and embedding ask of a tokenizer."""

    def encode(self, text: str) -> Encoding:
        """Encode untrusted text, without special tokens; what looks like one is split into ordinary ones."""

    def encode_template(self, text: str) -> list[int]:
        """Encode our own text, in which special tokens count."""


class FileTokenizer:
    """A Hugging Face `tokenizer.json`. Raises ConfigError where the model has none."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path} is missing: the model needs a fast tokenizer; export one with transformers")
        self._text = Backend.from_str(_all_added_special(path.read_text("utf-8")))
        self._text.encode_special_tokens = True
        self._template = Backend.from_file(str(path))
        for backend in (self._text, self._template):
            backend.no_truncation()
            backend.no_padding()

    def encode(self, text: str) -> Encoding:
        encoding = self._text.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int64)
        offsets = np.fromiter(chain.from_iterable(encoding.offsets), np.int64, 2 * len(ids))
        return Encoding(ids, TokenOffsets(offsets[::2], offsets[1::2]))

    def encode_template(self, text: str) -> list[int]:
        ids: list[int] = self._template.encode(text, add_special_tokens=False).ids
        return ids


def _all_added_special(source: str) -> str:
    """Some models keep control tokens, such as `<tool_call>`, as added tokens that are not special: mark them all."""
    tokenizer = json.loads(source)
    for token in tokenizer.get("added_tokens", ()):
        token["special"] = token["special"] or bool(token["content"].strip())
    return json.dumps(tokenizer)


class FakeTokenizer:
    """Words and punctuation marks, hashed: for the fake engine and the fake embedder."""

    _TOKEN = re.compile(r"(\w+|[^\w\s])")

    def encode(self, text: str) -> Encoding:
        pieces = self._TOKEN.split(text)  # what stands between, token, what stands between, ...
        tokens = pieces[1::2]
        ends = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
        ids = np.fromiter(map(zlib.crc32, map(str.encode, tokens)), np.int64, len(tokens))
        return Encoding(ids, TokenOffsets(ends[:-1:2], ends[1::2]))

    def encode_template(self, text: str) -> list[int]:
        ids: list[int] = self.encode(text).ids.tolist()
        return ids
