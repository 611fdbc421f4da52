"""Questions about a document as a whole, such as its summary: our words, its title and date, as much of its beginning as fits,
the request, and the beginning of the answer.
"""

import numpy as np

from enrichment.prompts import ChatTemplate, name_lines
from enrichment.recipe import Given
from enrichment.tokens import Tokenizer


class WholeDocument:
    """Builds the prompts of one question with one tokenizer and chat format."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, instructions: str, request: str, answer: str) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode_template(chat.before + instructions)
        self._after = [*tokenizer.encode_template(request), *tokenizer.encode_template(chat.after + answer)]

    def prompt(self, given: Given) -> np.ndarray:
        """The question about one document: `(n,) int64`, no longer than it may be."""
        named = self._tokenizer.encode("\n".join([*name_lines(given.document), "", ""])).ids
        room = max(0, given.max_tokens - len(self._before) - len(named) - len(self._after))
        parts = [self._before, named, given.encoding.ids[:room], self._after]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])
