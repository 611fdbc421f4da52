"""Grounding: which names and numbers of a text stand in nothing that the model was shown.

It sees form, not truth: a wrong sentence made of known names passes, and "30 days" is ungrounded where the document says
"thirty". What follows from a find is up to the caller.

Both sides are NFKC. A *number* is a run of digits, with single `. , : / -` inside. It is taken apart at `: / -`, and each
piece must be known: as a number of its own, without leading zeros and thousands' marks and with a point for a decimal
comma (1,000 = 1.000 = 1000, 3.5 = 3,5, but not 35), or as a digit group of any number (2024 of 2024-05-01, 18 of 18th).
A piece with two or more points (01.05.2024, section 2.1.3) is also known if all its groups are.

A *name* is a run of cased letters, digits and `_`, at least two long, with an upper-case letter. The first word of a sentence
is one only if upper case stands behind its first letter (NATO, LibAFL): "Chillers" may be ordinary there. A name is known if
the model was shown the word or all its parts, also as part of an identifier: `LibAFL` and `parse_file` have two parts each.
Case, a possessive's 's and a plural's s do not count. An English month is known from its number, since a date like 2024-05-01
is to be written out. Scripts without case have numbers only.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import regex

MAX_FOUND = 8
"""More are not reported: a text with eight unknown names is as wrong as one with eighty."""

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_PIECES = re.compile(r"[:/-]")
_GROUPS = re.compile(r"\d+")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:(?:(,)\d{3})+(?:\.\d+)?|(?:(\.)\d{3})+(?:,\d+)?)")
# An apostrophe parts words, and so a possessive's 's is never part of a name. Other letters (CJK) have no case.
_WORD = regex.compile(r"[\p{Lu}\p{Ll}\p{Lt}\p{Lm}\p{N}_]+")
_ASCII_WORD = re.compile(r"[A-Za-z0-9_]+")  # the same in a text of ASCII, four times as fast
_PARTS = regex.compile(r"\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|\p{N}+")
_STEM = 3  # letters that a plural's s must have before it
_QUOTED_SENTENCE = re.compile(r"[:,]\s?[\"“„«]$")  # `It asks: "How long ...`
_MONTHS = (  # as `_key` gives them
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)


class Grounding:
    """The words and numbers that the model was shown; read once, when the first name or number is asked for."""

    def __init__(self, shown: Sequence[str], besides: frozenset[str]) -> None:
        """`besides` is what else is `known`, such as the words of the instructions."""
        self._shown, self._besides = shown, besides

    @cached_property
    def _known(self) -> frozenset[str]:
        return known(self._shown)

    def ungrounded(self, sentences: Sequence[str]) -> tuple[str, ...]:
        """The names and numbers of a text's sentences that were not shown: sorted, unique, at most `MAX_FOUND`."""
        found: set[str] = set()
        for sentence in map(_normal, sentences):
            found.update(name for name in _names(sentence) if not self._knows_name(name))
            found.update(number for number in _NUMBER.findall(sentence) if not self._knows_number(number))
        return tuple(sorted(found)[:MAX_FOUND])

    def _knows_name(self, name: str) -> bool:
        key = _key(name)
        if self._knows([key]) or (key in _MONTHS and self._knows([str(_MONTHS.index(key) + 1)])):
            return True
        parts = _PARTS.findall(name)
        return len(parts) > 1 and self._knows(map(_key, parts))

    def _knows_number(self, number: str) -> bool:
        for piece in map(_decimal, _PIECES.split(number)):
            if not self._knows([piece]) and not (piece.count(".") > 1 and self._knows(_groups(piece))):
                return False
        return True

    def _knows(self, entries: Iterable[str]) -> bool:
        return all(_has(self._besides, entry) or _has(self._known, entry) for entry in entries)


def known(texts: Iterable[str]) -> frozenset[str]:
    """All that the texts make known: words with their plural's s, the rest as `_key` gives it."""
    found: set[str] = set()
    for text in map(_normal, texts):
        find = _ASCII_WORD.findall if text.isascii() else _WORD.findall
        words = set(find(text))  # a text has few different words: each is looked at once
        found.update(map(str.casefold, words))
        for word in words:
            if not (word.islower() or word.istitle()) or not word.isalpha():
                found.add(_key(word))
                found.update(map(_key, _PARTS.findall(word)))
        for number in set(_NUMBER.findall(text)):
            found.update(map(_decimal, _PIECES.split(number)))
            found.update(_groups(number))
    return frozenset(found)


def _has(words: frozenset[str], entry: str) -> bool:
    return entry in words or (len(entry) >= _STEM and f"{entry}s" in words)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _names(sentence: str) -> Iterator[str]:
    for place, match in enumerate(_WORD.finditer(sentence)):
        word, start = match[0], match.start()
        if len(word) < 2 or word.islower():
            continue
        begins = place == 0 or _QUOTED_SENTENCE.search(sentence[max(0, start - 3) : start])
        if any(char.isupper() for char in (word[1:] if begins else word)):
            yield word


def _key(word: str) -> str:
    """What a word is compared by. The plural's s comes off on both sides, so it need not really be one."""
    word = word.casefold()
    if word.isdecimal():
        return _decimal(word)
    return word[:-1] if len(word) > _STEM and word.endswith("s") else word


def _groups(number: str) -> list[str]:
    return [_decimal(group) for group in _GROUPS.findall(number)]


def _decimal(piece: str) -> str:
    """Digits with points, in ASCII, without thousands' marks and leading zeros."""
    if not piece.isascii():
        piece = "".join(str(unicodedata.decimal(char, char)) for char in piece)
    if match := _THOUSANDS.fullmatch(piece):
        piece = piece.replace(match[1] or match[2], "")
    return piece.replace(",", ".").lstrip("0") or "0"
