"""`questions`: what a chunk answers, as its context: words that a search may have in common with it."""

import re

from enrichment.guards import Judgement, bad_form, grounding, repeats, thinks_aloud
from enrichment.materials import Materials
from enrichment.prompts import Prompts, Wording
from enrichment.records import Document

WORDING = Wording(
    instructions=(
        "Here is a document. It is followed by a request to write questions that one passage of it answers, as someone would"
        " ask them who has not read the document: with names instead of pronouns.\n\n"
    ),
    causal="\n\n---\nWrite questions that the passage answers which you have just read last",
    quoted="\n\n---\nWrite questions that one passage of the document answers",
    question="Give up to three, one on each line.",
    answer="1.",
)
_MOST = 3
_QUESTION = re.compile(r"[^?？\n]*[?？]")
_NUMBER = re.compile(r"^[\s\d.)*\"-]+")


class QuestionJudge:
    """Reads up to three questions, each once."""

    def __init__(self, document: Document) -> None:
        self._grounding = grounding(document, (WORDING.answer, *WORDING.own_words))

    def __call__(self, output: str) -> Judgement:
        if thinks_aloud(output):
            return Judgement(None, "reasoning")
        found = [_NUMBER.sub("", question).strip() for question in _QUESTION.findall(output)]
        kept = list(dict.fromkeys(question for question in found if " " in question or len(question) > 8))[:_MOST]
        if not kept:
            return Judgement(None, "no_question" if output.strip() else "empty")
        reason = bad_form(kept) or ("echo" if repeats(kept, WORDING.own_words) else None)
        if reason is not None:
            return Judgement(None, reason)
        return Judgement(" ".join(kept), None, self._grounding.ungrounded(kept))

    def enough(self, output: str) -> bool:
        """Whether all that is kept is there."""
        return len(_QUESTION.findall(output)) >= _MOST


def recipe(given: Materials) -> Prompts:
    """Also for a document with one chunk, which can be found by other words than its own."""
    return Prompts(given.tokenizer, given.chat, given.options.prompt, WORDING, QuestionJudge, least_chunks=1)
