"""`neighborhood` and `semantic`: a chunk said again so that it can be read alone, from the chunks beside it or most like it.

A rewrite is made from originals alone, never from another rewrite. Prompts: instructions, title, date and summary, which a
document's chunks share; then the other chunks in document order, the chunk, the request and the beginning of the answer. What
does not fit is left out from the least wanted chunk on. What makes a rewrite is in `rewrite_judge.py`.
"""

import asyncio
import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from enrichment import relations, summary
from enrichment.grounding import Grounding
from enrichment.guards import grounding
from enrichment.materials import Materials
from enrichment.prompts import end_token, first_token, name_lines, under_heading
from enrichment.recipe import AskOnce, Given, Penalties, Verdict
from enrichment.records import Chunk, Span
from enrichment.rewrite_judge import RewriteJudge
from enrichment.scopes import Scope
from enrichment.strategies import NEIGHBORHOOD, SEMANTIC, ContextOptions
from enrichment.summary import Summary

VERSION = 3
_INSTRUCTIONS = (
    "You are given passages of one document. One of them is to be said again so that a reader understands it without the"
    " others. Write in the third person. Put the name in the place of every pronoun and of every common noun such as"
    ' "the company" or "this section", taking the names from the other passages. Keep every fact, name and number of the'
    " passage, and add no fact from the others.\n\n"
)
_OTHERS = "Other passages of the document, in its order:\n"
_PASSAGE = "\n\n---\nThe passage to say again"
_REQUEST = "\n\n---\nSay this passage again so that it can be understood alone. Write nothing else."
_ANSWER = "Here is the passage, said again so that it can be understood alone:\n\n"  # without it, small models chat
_OWN_WORDS = (_INSTRUCTIONS, _OTHERS, _PASSAGE, _REQUEST, _ANSWER)
_GAP = "\n\n"


def fingerprint(options: ContextOptions) -> str:
    """Changes with every word that the model reads besides the document and its own chat format."""
    words = (str(VERSION), *_OWN_WORDS, *((summary.FINGERPRINT,) if options.summary else ()))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


class Rewriting:
    """The recipe; by `semantic` it asks for the chunks' similarity."""

    least_chunks = 2  # one chunk has no others to be understood from

    def __init__(self, given: Materials) -> None:
        self.options, self._similarity = given.options, given.similarity
        self.tokenizer = given.tokenizer
        self._summary = Summary(given.tokenizer, given.chat) if given.options.summary else None
        self.fingerprint = fingerprint(given.options)
        own = (given.chat.before + _INSTRUCTIONS, _OTHERS, _PASSAGE, _GAP, _REQUEST + given.chat.after + _ANSWER)
        encoded = [np.array(given.tokenizer.encode_template(text), np.int64) for text in own]
        self.before, self.others, self.passage, self.gap, self.after = encoded

    async def questions(self, given: Given, ask: AskOnce) -> "DocumentRewrites":
        """The prompts of a document's chunks; behind the summary and the vectors, if they need any."""
        told = await ask(*self._summary.question(given)) if self._summary else None
        wanted = await self._wanted(given)
        return DocumentRewrites(self, given, wanted, told)

    async def _wanted(self, given: Given) -> list[list[int]]:
        """For each chunk the others to read it with, the most wanted first."""
        options, numbers = self.options, range(len(given.chunks))
        orders: list[list[list[int]]] = []
        if NEIGHBORHOOD in options.names:
            ahead, back = options.forward_chunks, options.backward_chunks
            orders.append([relations.neighbours(n, len(numbers), back, ahead) for n in numbers])
        if SEMANTIC in options.names:
            assert self._similarity is not None
            cosines = await asyncio.to_thread(self._similarity, given.document, given.chunks)
            most, threshold = options.semantic_neighbors, options.semantic_similarity_threshold
            orders.append([relations.similar(cosines, n, most, threshold) for n in numbers])
        return [relations.ranked(*of_chunk) for of_chunk in zip(*orders, strict=True)]


class DocumentRewrites:
    """One document's prompts: all of its chunks share what stands before the other passages."""

    is_one = False
    # None at first: a penalty is also one on the passage's own words, which are wanted again. It had a small model write
    # "we" for "they" and half the names; the second attempt needs some, since most that are refused are loops.
    penalties = Penalties(1.0, 1.1)

    def __init__(self, recipe: Rewriting, given: Given, wanted: Sequence[Sequence[int]], told: str | None) -> None:
        self.document = given.document
        self._recipe, self._given = recipe, given
        lines = [*name_lines(given.document), *([f"Summary: {told}"] if told else []), "", ""]
        named = recipe.tokenizer.encode("\n".join(lines)).ids
        self._prefix = np.concatenate([recipe.before, named, recipe.others])
        text, encoding = given.document.text, given.encoding
        self._pieces = [
            encoding.ids[first_token(encoding, c.start) : end_token(text, encoding, Span(c.start, c.end))]
            for c in given.chunks
        ]
        self._ends = [self._end(chunk, piece) for chunk, piece in zip(given.chunks, self._pieces, strict=True)]
        self._others = [self._fitting(number, others) for number, others in enumerate(wanted)]
        self.longest_suffix = max(
            len(end) + self._num_tokens(others) for end, others in zip(self._ends, self._others, strict=True)
        )

    def scopes(self, max_tokens: int) -> list[Scope]:
        """One: what the chunks share does not depend on where they stand."""
        return [Scope(Span(0, len(self.document.text)), tuple(self._given.chunks))]

    def shared_tokens(self, scope: Scope) -> int:
        """Tokens of what stands before the other passages."""
        return len(self._prefix)

    def prompt(self, scope: Scope, chunk: Chunk) -> np.ndarray:
        """The prompt of one chunk: `(n,) int64`."""
        others = (piece for n in self._others[chunk.index] for piece in (self._pieces[n], self._recipe.gap))
        return np.concatenate([self._prefix, *others, self._ends[chunk.index]])

    def read(self, scope: Scope, chunk: Chunk) -> Span:
        """From the first to the last of the passages that the model read."""
        read = [chunk, *(self._given.chunks[other] for other in self._others[chunk.index])]
        return Span(min(c.start for c in read), max(c.end for c in read))

    def judge(self, chunk: Chunk) -> Verdict:
        """The judge of one chunk's rewrite."""
        text = self.document.text
        others = [text[c.start : c.end] for c in (self._given.chunks[n] for n in self._others[chunk.index])]
        return RewriteJudge(text[chunk.start : chunk.end], others, _OWN_WORDS, self._grounding)

    def _end(self, chunk: Chunk, piece: np.ndarray) -> np.ndarray:
        """What stands behind the other passages: the chunk, and the request."""
        recipe = self._recipe
        under = recipe.tokenizer.encode(under_heading(chunk.heading_path)).ids
        return np.concatenate([recipe.passage, under, recipe.gap, piece, recipe.after])

    def _num_tokens(self, others: Sequence[int]) -> int:
        """Of passages that stand before a chunk."""
        return sum(len(self._pieces[other]) + len(self._recipe.gap) for other in others)

    def _fitting(self, number: int, wanted: Sequence[int]) -> list[int]:
        """Of the wanted chunks as many as fit beside the chunk, in document order."""
        room = self._given.max_tokens - len(self._prefix) - len(self._ends[number])
        most = len(wanted)
        while most and self._num_tokens(wanted[:most]) > room:
            most -= 1
        return sorted(wanted[:most])

    @functools.cached_property
    def _grounding(self) -> Grounding:
        return grounding(self.document, _OWN_WORDS)


def recipe(given: Materials) -> Rewriting:
    """One recipe for both strategies: they differ in the passages that stand beside the chunk."""
    return Rewriting(given)
