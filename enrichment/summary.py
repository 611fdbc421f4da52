"""A document summed up in two sentences: asked once for each document, from as much of its beginning as fits."""

import hashlib

import numpy as np

from enrichment.guards import Judge
from enrichment.prompts import ChatTemplate
from enrichment.recipe import Given, Verdict
from enrichment.tokens import Tokenizer
from enrichment.whole_document import WholeDocument

_INSTRUCTIONS = (
    "Here is a document. Sum it up in at most two sentences: what kind of document it is, whose and from when, and what it"
    " is about. Name people, organisations and products.\n\n"
)
_REQUEST = "\n\n---\nSum up the document in two sentences."
_ANSWER = "This document"
FINGERPRINT = hashlib.sha256("\0".join((_INSTRUCTIONS, _REQUEST, _ANSWER)).encode()).hexdigest()[:16]


class Summary:
    """Asks for a summary, in the chat format of a model."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate) -> None:
        self._about = WholeDocument(tokenizer, chat, _INSTRUCTIONS, _REQUEST, _ANSWER)

    def question(self, given: Given) -> tuple[np.ndarray, Verdict]:
        """The prompt, `(n,) int64`, and who judges the answer."""
        return self._about.prompt(given), Judge(given.document, (_INSTRUCTIONS, _REQUEST), _ANSWER)
