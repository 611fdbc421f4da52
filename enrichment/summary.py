"""A document summed up in two sentences: asked once for each document, from as much of its beginning as fits."""

import hashlib

import numpy as np

from enrichment.guards import Judge
from enrichment.prompts import ChatTemplate, name_lines
from enrichment.recipe import Given, Verdict
from enrichment.tokens import Tokenizer

_INSTRUCTIONS = (
    "Here is a document. Sum it up in at most two sentences: what kind of document it is, whose and from when, and what it"
    " is about. Name people, organisations and products.\n\n"
)
_REQUEST = "\n\n---\nSum up the document in two sentences."
_ANSWER = "This document"
FINGERPRINT = hashlib.sha256("\0".join((_INSTRUCTIONS, _REQUEST, _ANSWER)).encode()).hexdigest()[:16]


def question(given: Given, tokenizer: Tokenizer, chat: ChatTemplate) -> tuple[np.ndarray, Verdict]:
    """The prompt, `(n,) int64`, and who judges the answer."""
    named = "\n".join([*name_lines(given.document), "", ""])
    before = [*tokenizer.encode_template(chat.before + _INSTRUCTIONS), *tokenizer.encode(named).ids.tolist()]
    after = [*tokenizer.encode_template(_REQUEST), *tokenizer.encode_template(chat.after + _ANSWER)]
    room = max(0, given.max_tokens - len(before) - len(after))
    prompt = np.array([*before, *given.encoding.ids[:room].tolist(), *after], np.int64)
    return prompt, Judge(given.document, (_INSTRUCTIONS, _REQUEST), _ANSWER)
