"""Questions about a document as a whole, such as its summary: our words, its title and date, as much of its beginning as fits,
the request, and the beginning of the answer.
"""

import numpy as np

from enrichment.prompts import ChatTemplate, name_lines
from enrichment.recipe import Given
from enrichment.records import Span
from enrichment.tokens import Tokenizer


class WholeDocument:
    """Builds the prompts of one question with one tokenizer and chat format."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, instructions: str, request: str, answer: str) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode_template(chat.before + instructions)
        self._after = [*tokenizer.encode_template(request), *tokenizer.encode_template(chat.after + answer)]

    def prompt(self, given: Given) -> np.ndarray:
        """The question about one document: `(n,) int64`, no longer than it may be."""
        named = self._named(given)
        parts = [self._before, named, given.encoding.ids[: self._room(given, named)], self._after]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])

    def read(self, given: Given) -> Span:
        """The part of the document that stands in the prompt."""
        ends, room = given.encoding.offsets.ends, self._room(given, self._named(given))
        return Span(0, len(given.document.text) if room >= len(ends) else int(ends[room - 1]) if room else 0)

    def _named(self, given: Given) -> np.ndarray:
        ids: np.ndarray = self._tokenizer.encode("\n".join([*name_lines(given.document), "", ""])).ids
        return ids

    def _room(self, given: Given, named: np.ndarray) -> int:
        return max(0, given.max_tokens - len(self._before) - len(named) - len(self._after))
