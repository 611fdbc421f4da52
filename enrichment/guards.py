"""Model output -> a context of at most two complete sentences, or the reason why it is refused.

Trim first: complete sentences of the first paragraph, at most two. What then is empty, looping, refusing, an echo, or carries
control characters, a URL or markup is refused; the reason is a stable short code. That the document has the same URL or
mark excuses nothing: a document that says "write: buy at https://..." has it too. The price is a context that names
`Vec<u8>` as code. An output that thinks aloud, in tags, is refused for it wherever the tag stands: what is before a lost
`</think>` may read like an answer. (Of a stream that is cut at `sentences.enough`, a tag behind the cut is never seen.)

A context that passes comes with its ungrounded names and numbers; what they are worth is the caller's policy. Limits of
these guards: they see form, not truth; a fluent wrong sentence passes. An echo is found where spaces part words.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from enrichment.grounding import Grounding, known
from enrichment.hashes import Hashes, HashSet, hashes_of, runs_of
from enrichment.records import Document
from enrichment.sentences import enough, sentences

MAX_SENTENCES = 2
_SENTENCE_END = re.compile(r"[.!?。!?।]['\"”’)\]」』]*\s*$")
_REFUSAL = re.compile(
    r"\b(I(['’]m| am) (sorry|unable|not able)|I (cannot|can['’]t|can not) (help|assist|provide|answer|do)"
    r"|(I am|I['’]m|as) an? (AI|(large )?language model)\b|I (do not|don['’]t) have access)",
    re.IGNORECASE,
)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://|\bwww\.\w|\b(?:mailto|javascript):\S", re.IGNORECASE)
# Tags, fences, bold (but not `**kwargs`), control tokens, links, headings.
_MARKUP = re.compile(r"</?[A-Za-z!][^<>]*>|```|\*\*[^\s*](?:[^*]*[^\s*])?\*\*|<\|[^|]*\|>|\]\(|^\s*#{1,6}\s")
# Tags of models that think before they answer; in brackets only as Mistral's write it, since "[think]" may be a note.
_REASONING = re.compile(
    r"<\|?/?(?:\w+:)?(?:(?:begin|end)_of_)?(?:think\w*|thoughts?|reasoning\w*|reflection|scratchpad)\b[^<>]*>"
    r"|◁/?think(?:ing)?▷|(?-i:\[/?THINK\])",
    re.IGNORECASE,
)
# `!!!!` is what NaN logits decode to. The last: a short piece five times on end, also where no spaces part words.
_RUN = re.compile(r"([^\s\w])\1{3,}|(\w)\2{7,}|(\D{2,30}?)\3{4,}")
_CONTROL = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_JOINERS = "\u200c\u200d"  # format characters that spelling needs: Persian, Indic scripts, emoji
_BROKEN = "\ufffd"  # what half a character decodes to
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")
_LOOP_WORDS, _LOOP_TIMES = 4, 3  # the same four words three times in two sentences is a loop
_ECHO_WORDS = 8  # shorter verbatim runs are names and set phrases


class Judgement(NamedTuple):
    """Exactly one of the first two is given. `ungrounded`: names and numbers of `text` that the model was not shown."""

    text: str | None
    reason: str | None
    ungrounded: tuple[str, ...] = ()


class Judge:
    """Trims and checks the outputs of one document; what this needs of its text is read once, when first needed."""

    def __init__(self, document: Document, own_words: Sequence[str], lead: str) -> None:
        """`own_words` are the prompt's own; `lead` is the beginning written for the model, which stands before its output."""
        self._document = document
        self._own_words = tuple(own_words)
        self._lead = lead

    def __call__(self, output: str) -> Judgement:
        if thinks_aloud(output):
            return Judgement(None, "reasoning")
        kept = complete_sentences((self._lead + output).strip().split("\n", 1)[0], MAX_SENTENCES)
        if not kept:
            return Judgement(None, "no_sentence" if output.strip() else "empty")
        reason = bad_form(kept, self._lead)
        if reason is None and self._echoes([kept[0].removeprefix(self._lead), *kept[1:]]):
            reason = "echo"
        if reason is not None:
            return Judgement(None, reason)
        return Judgement(" ".join(kept), None, self._grounding.ungrounded(kept))

    def enough(self, output: str) -> bool:
        """Whether a growing output holds all that will be kept of it."""
        return enough(self._lead + output, MAX_SENTENCES)

    def _echoes(self, kept: Sequence[str]) -> bool:
        """Whether they repeat the prompt's words, or each long sentence stands in the document: then it adds nothing.

        A sentence counts as standing there if all its runs of eight words do. Of our own words one run is too many: a
        document's may be a long name or a rule worth quoting, ours never are.
        """
        if repeats(kept, self._own_words):
            return True
        long = [words for words in map(words_of, kept) if len(words) >= _ECHO_WORDS]
        if not long or not all(map(self._document_words.issuperset, long)):
            return False
        return all(self._document_runs.has(runs(words)).all() for words in long)

    @cached_property
    def _document_words(self) -> frozenset[str]:
        return frozenset(words_of(self._document.text))

    @cached_property
    def _document_runs(self) -> HashSet:
        return HashSet(runs(words_of(self._document.text)))

    @cached_property
    def _grounding(self) -> Grounding:
        return grounding(self._document, (self._lead, *self._own_words))


def grounding(document: Document, own_words: Sequence[str]) -> Grounding:
    """What a model was shown that answers about a document in prompts with these words of ours."""
    # The metadata are in no prompt.
    return Grounding((document.text, document.title or "", document.date or ""), _own_known(*own_words))


def thinks_aloud(output: str) -> bool:
    """Whether an output has the tags of a model that thinks before it answers."""
    return _REASONING.search(output) is not None


def repeats(sentences: Sequence[str], own_words: Sequence[str]) -> bool:
    """Whether eight words on end are the prompt's own."""
    long = [words for words in map(words_of, sentences) if len(words) >= _ECHO_WORDS]
    return any(_own_runs(tuple(own_words)).has(runs(words)).any() for words in long)


@functools.cache
def _own_runs(words: tuple[str, ...]) -> HashSet:
    return HashSet(np.concatenate([runs([]), *(runs(words_of(text)) for text in words)]))


@functools.cache
def _own_known(*words: str) -> frozenset[str]:
    """Our words are no inventions; a number in them, such as how many sentences are wanted, would be no fact of a document."""
    return known(_DIGITS.sub(" ", text) for text in words)


def bad_form(kept: Sequence[str], lead: str = "", source: str = "") -> str | None:
    """What is wrong with the sentences whatever the document says. With a `source`, its URLs and marks are no fault, and
    whether they loop is for others to say.
    """
    text = " ".join(kept)
    for reason, found in (
        ("control_character", _BROKEN in text or (not text.isprintable() and any(map(_is_control, text)))),
        ("refusal", _REFUSAL.search(text) is not None),
        ("loop", not source and (len(set(kept)) < len(kept) or _loops(text))),
        ("empty", not _WORD.search(text.removeprefix(lead))),
        ("url", any(_address(text, match.start()) not in source for match in _URL.finditer(text))),
        ("markup", any(match[0] not in source for match in _MARKUP.finditer(text))),
    ):
        if found:
            return reason
    return None


def _address(text: str, start: int) -> str:
    """A URL from its beginning to the next space, without the marks of the sentence around it."""
    return text[start:].split(maxsplit=1)[0].rstrip(".,;:!?)]}>'\"")


def complete_sentences(paragraph: str, most: int | None = None) -> list[str]:
    """The sentences of a line up to the first one that is cut off, `most` of them at most."""
    kept = []
    for span in sentences(paragraph)[:most]:
        piece = paragraph[span.start : span.end].strip()
        if not _SENTENCE_END.search(piece):
            break
        kept.append(piece)
    return kept


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in _CONTROL and char not in _JOINERS


def _loops(text: str) -> bool:
    if _RUN.search(text):
        return True
    words = words_of(text)
    grams = list(zip(*(words[start:] for start in range(_LOOP_WORDS)), strict=False))
    if len(set(grams)) > len(grams) - (_LOOP_TIMES - 1):  # none can occur that often
        return False
    return any(times >= _LOOP_TIMES for times in Counter(grams).values())


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, in order."""
    return _WORD.findall(text.lower())


def runs(words: Sequence[str]) -> Hashes:
    """The runs of eight words; none if there are fewer."""
    return runs_of(hashes_of(words), _ECHO_WORDS)
