"""`keywords`: the words by which someone would look for a chunk, as its context."""

import re

from enrichment.guards import Judgement, bad_form, grounding, thinks_aloud
from enrichment.materials import Materials
from enrichment.prompts import Prompts, Wording
from enrichment.records import Document

WORDING = Wording(
    instructions=(
        "Here is a document. It is followed by a request to list keywords of one passage of it: the names, terms and topics"
        " by which someone would search for this passage, also those that it only refers to.\n\n"
    ),
    causal="\n\n---\nList keywords of the passage that you have just read last",
    quoted="\n\n---\nList keywords of one passage of the document",
    question="Give up to ten, separated by commas.",
    answer="Keywords:",
)
_MOST, _LEAST = 12, 2
_LONGEST_WORDS = 6  # of one keyword: more is a sentence
_PARTS = re.compile(r"[,;\n•]+|\s(?=\d{1,2}[.)]\s)")
_NUMBER = re.compile(r"^\s*\d{1,2}[.)]\s")


class KeywordJudge:
    """Reads a list of keywords, each once, up to the first that is no keyword."""

    def __init__(self, document: Document) -> None:
        self._grounding = grounding(document, (WORDING.answer, *WORDING.own_words))

    def __call__(self, output: str) -> Judgement:
        if thinks_aloud(output):
            return Judgement(None, "reasoning")
        found: dict[str, str] = {}
        for part in _PARTS.split(output):
            keyword = _NUMBER.sub("", part).strip(" \t.-*\"'")
            if len(keyword.split()) > _LONGEST_WORDS or len(found) == _MOST:
                break
            if keyword:
                found.setdefault(keyword.casefold(), keyword)
        kept = list(found.values())
        if len(kept) < _LEAST:
            return Judgement(None, "no_keywords" if output.strip() else "empty")
        if (reason := bad_form(kept)) is not None:
            return Judgement(None, reason)
        text = ", ".join(kept)
        return Judgement(text, None, self._grounding.ungrounded([text]))

    def enough(self, output: str) -> bool:
        """Whether all that is kept is there."""
        return len(_PARTS.split(output)) > _MOST or "\n\n" in output.strip()


def recipe(given: Materials) -> Prompts:
    """Also for a document with one chunk, which can be found by other words than its own."""
    return Prompts(given.tokenizer, given.chat, given.options.prompt, WORDING, KeywordJudge, least_chunks=1)
