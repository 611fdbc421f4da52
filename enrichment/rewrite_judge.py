"""Model output -> a chunk's rewrite, or the reason why it is refused.

Kept are the complete sentences of the output, on one line, up to one that is said again or asks for the passage in our words:
a small model has said what it can and goes round. They must say what the chunk says: most of its words and numbers, at no
more than three times its length, nothing that stands word for word in another passage alone, and no one speaking who does
not speak in the chunk. The form is judged as a context's is, but for URLs and marks that the chunk itself has.

Limits: words are compared by their first letters, not by sense; a fluent rewrite with a wrong name from the document passes.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from enrichment.grounding import Grounding
from enrichment.guards import Judgement, bad_form, complete_sentences, repeats, runs, thinks_aloud, words_of
from enrichment.hashes import HashSet

_MOST_TIMES_LONGER = 3  # names in the place of pronouns double a text at most; the third time is for what is short
_MORE = 200  # characters that any rewrite may have besides
_SAID_AGAIN = 60  # characters word for word: ten words or more, longer than what names and set phrases repeat
_LEAST_KEPT = 0.6  # of the chunk's different words and numbers; synonyms and inflections take the rest
_MOST_TIMES = 2  # that eight words on end may be there: a name that is put for every pronoun is shorter
# Numbers, words of four letters or more, and single characters of scripts that do not part words.
_CONTENT = re.compile(r"\d+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]{4,}")
_STEM = 5  # letters by which words are compared: "required" and "requires" are one
_SPEAKER = re.compile(r"\b(?:I|we|my|our|ours|mine|myself|ourselves)\b", re.IGNORECASE)


class RewriteJudge:
    """Judges the rewrites of one chunk; `others` are the passages that stood beside it in the prompt."""

    def __init__(self, chunk: str, others: Sequence[str], own_words: Sequence[str], grounding: Grounding) -> None:
        self._chunk, self._others = chunk, others
        self._own_words, self._grounding = own_words, grounding

    def __call__(self, output: str) -> Judgement:
        if thinks_aloud(output):
            return Judgement(None, "reasoning")
        kept = self._up_to_a_turn(complete_sentences(" ".join(output.split())))
        if not kept:
            return Judgement(None, "no_sentence" if output.strip() else "empty")
        text = " ".join(kept)
        reason = bad_form(kept, source=self._chunk) or self._fault(kept, text)
        if reason is not None:
            return Judgement(None, reason)
        return Judgement(text, None, self._grounding.ungrounded(kept))

    def enough(self, output: str) -> bool:
        """Whether it is too long already, or says its last words for the second time where the chunk does not."""
        last = output[-_SAID_AGAIN:]
        goes_round = len(last) == _SAID_AGAIN and output.find(last) < len(output) - _SAID_AGAIN
        return len(output) > self._most_characters or (goes_round and not _stands_twice(last, self._chunk))

    @property
    def _most_characters(self) -> int:
        return _MOST_TIMES_LONGER * len(self._chunk) + _MORE

    def _up_to_a_turn(self, said: Sequence[str]) -> Sequence[str]:
        """The sentences before the first that has our own words or was there already, unless the chunk too says it twice; one
        at least, to be judged.
        """
        chunk = " ".join(self._chunk.split())
        for number, sentence in enumerate(said):
            again = sentence in said[:number] and not _stands_twice(sentence, chunk)
            if number and (again or repeats([sentence], self._own_words)):
                return said[:number]
        return said

    def _fault(self, kept: Sequence[str], text: str) -> str | None:
        """How the rewrite fails the chunk."""
        found = runs(words_of(text)).tolist()
        if repeats(kept, self._own_words):
            return "echo"
        if max(Counter(found).values(), default=0) > _MOST_TIMES:
            return "loop"
        if len(text) > self._most_characters:
            return "too_long"
        if _SPEAKER.search(text) and not _SPEAKER.search(self._chunk):
            return "first_person"
        wanted, said = _content(self._chunk), _content(text)
        if not wanted:  # "# Ash": short words are all it has
            wanted, said = set(words_of(self._chunk)), set(words_of(text))
        if len(wanted & said) < _LEAST_KEPT * len(wanted):
            return "lost_content"
        if (self._only_others.has(runs(words_of(text)))).any():
            return "foreign_content"
        return None

    @cached_property
    def _only_others(self) -> HashSet:
        """The runs of eight words that stand in other passages and not in the chunk."""
        theirs = np.concatenate([runs([]), *(runs(words_of(other)) for other in self._others)])
        return HashSet(theirs[~HashSet(runs(words_of(self._chunk))).has(theirs)])


def _stands_twice(piece: str, text: str) -> bool:
    return text.find(piece) != text.rfind(piece)


def _content(text: str) -> set[str]:
    return {word[:_STEM] for word in _CONTENT.findall(text.lower())}
