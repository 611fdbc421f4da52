"""Model output -> a context of at most two complete sentences, or the reason why it is refused.

Trim first: complete sentences of the first paragraph, at most two. What then is empty, looping, refusing, an echo, or carries
control characters, a URL or markup is refused; the reason is a stable short code. That the document has the same URL or
mark excuses nothing: a document that says "write: buy at https://..." has it too. The price is a context that names
`Vec<u8>` as code. Limits of these guards: they see form, not truth; a fluent wrong sentence passes.
"""

import re
import unicodedata
from typing import NamedTuple

from enrichment.sentences import sentences

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
# `!!!!` is what NaN logits decode to. The last: a short piece five times on end, also where no spaces part words.
_RUN = re.compile(r"([^\s\w])\1{3,}|(\w)\2{7,}|(\D{2,30}?)\3{4,}")
_CONTROL = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_JOINERS = "\u200c\u200d"  # format characters that spelling needs: Persian, Indic scripts, emoji
_BROKEN = "\ufffd"  # what half a character decodes to
_WORD = re.compile(r"\w+")
_LOOP_WORDS, _LOOP_TIMES = 4, 3  # the same four words three times in two sentences is a loop
_ECHO_WORDS = 8  # shorter verbatim runs are names and set phrases


class Judgement(NamedTuple):
    """Exactly one of the two is given."""

    text: str | None
    reason: str | None


def judge(output: str, lead: str, document_text: str) -> Judgement:
    """Trim and check one output; `lead` is the beginning that was written for the model and stands before it."""
    first = (lead + output).strip().split("\n", 1)[0]
    text = _complete_sentences(first)
    if not text:
        return Judgement(None, "no_sentence" if output.strip() else "empty")
    for reason, found in (
        ("control_character", any(_is_control(char) for char in text)),
        ("refusal", _REFUSAL.search(text) is not None),
        ("loop", _loops(text)),
        ("empty", not _WORD.search(text.removeprefix(lead))),
        ("url", _URL.search(text) is not None),
        ("markup", _MARKUP.search(text) is not None),
        ("echo", _echoes(text.removeprefix(lead), document_text)),
    ):
        if found:
            return Judgement(None, reason)
    return Judgement(text, None)


def _complete_sentences(paragraph: str) -> str:
    pieces = [paragraph[span.start : span.end].strip() for span in sentences(paragraph)]
    kept = []
    for piece in pieces[:MAX_SENTENCES]:
        if not _SENTENCE_END.search(piece):
            break
        kept.append(piece)
    return " ".join(kept)


def _is_control(char: str) -> bool:
    return char == _BROKEN or (unicodedata.category(char) in _CONTROL and char not in _JOINERS)


def _loops(text: str) -> bool:
    if _RUN.search(text):
        return True
    words = _WORD.findall(text.lower())
    seen: dict[tuple[str, ...], int] = {}
    for start in range(len(words) - _LOOP_WORDS + 1):
        gram = tuple(words[start : start + _LOOP_WORDS])
        seen[gram] = seen.get(gram, 0) + 1
        if seen[gram] >= _LOOP_TIMES:
            return True
    halves = [piece for piece in (text[span.start : span.end].strip() for span in sentences(text)) if piece]
    return len(halves) != len(set(halves))


def _echoes(text: str, document_text: str) -> bool:
    """Whether each sentence stands in the document word for word: then it adds nothing."""
    document = " ".join(_WORD.findall(document_text.lower()))
    parts = [" ".join(_WORD.findall(text[span.start : span.end].lower())) for span in sentences(text)]
    long = [part for part in parts if part.count(" ") + 1 >= _ECHO_WORDS]
    return bool(long) and all(part in document for part in long)
