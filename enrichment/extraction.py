"""Metadata that a document states and nobody wrote down beside it: its date, its parties. Asked once for each document.

A value is kept if it stands in the document word for word: what a filter compares must not be invented. Values that the source
gives itself are never replaced.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from enrichment.guards import Judgement, thinks_aloud
from enrichment.prompts import ChatTemplate
from enrichment.recipe import Given, Verdict
from enrichment.tokens import Tokenizer
from enrichment.whole_document import WholeDocument

_INSTRUCTIONS = (
    "Here is a document. Copy out of it what it says about the fields below, one line for each, as the field, a colon and the"
    " words of the document. Write none where it does not say.\n\nFields: "
)
_REQUEST = "\n\n---\nCopy out the fields."
_LONGEST_VALUE = 200  # code points: a filter's value, not a paragraph
_SPACES = re.compile(r"\s+")


def fingerprint(fields: Sequence[str]) -> str:
    """Changes with every word that the model reads besides the document."""
    return hashlib.sha256("\0".join((_INSTRUCTIONS, _REQUEST, *fields)).encode()).hexdigest()[:16]


class FieldJudge:
    """Reads lines of fields and keeps the values that stand in the text."""

    def __init__(self, text: str, fields: Sequence[str]) -> None:
        self._text, self._fields = _SPACES.sub(" ", text).casefold(), tuple(fields)

    def __call__(self, output: str) -> Judgement:
        if thinks_aloud(output):
            return Judgement(None, "reasoning")
        kept = {}
        for field, value in read(f"{self._fields[0]}:{output}").items():
            spelt = _SPACES.sub(" ", value).casefold()
            if field in self._fields and len(value) <= _LONGEST_VALUE and spelt in self._text:
                kept[field] = value
        # Nothing is an answer too: most documents lack a field, and asking again would not find it.
        return Judgement("\n".join(f"{field}: {value}" for field, value in kept.items()), None)

    def enough(self, output: str) -> bool:
        """Whether there is a line for each field."""
        return output.count("\n") >= len(self._fields) or "\n\n" in output


def read(text: str) -> Mapping[str, str]:
    """Fields and values of lines, the first of each field; those that say nothing are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        field, colon, value = line.partition(":")
        value = value.strip(" \t\"'*.-")
        if colon and value and value.casefold() not in ("none", "unknown", "n/a"):
            found.setdefault(field.strip(" \t*-").casefold(), value)
    return found


class Extraction:
    """Asks for `fields`, in the chat format of a model."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, fields: Sequence[str]) -> None:
        self._fields = fields
        listed = f"{_INSTRUCTIONS}{', '.join(fields)}\n\n"
        self._about = WholeDocument(tokenizer, chat, listed, _REQUEST, f"{fields[0]}:")

    def question(self, given: Given) -> tuple[np.ndarray, Verdict]:
        """The prompt, `(n,) int64`, and who judges the answer."""
        return self._about.prompt(given), FieldJudge(given.document.text, self._fields)
