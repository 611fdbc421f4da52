"""The table of the strategies that ask a language model. A new one is a file with a prompt and a parser, and a line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from enrichment import asked, keywords, situating
from enrichment.errors import ConfigError
from enrichment.prompts import PLAIN_CHAT, ChatTemplate, Prompts
from enrichment.recipe import Recipe
from enrichment.rewriting import Rewriting, Similarity
from enrichment.strategies import FREE, REWRITES, ContextOptions
from enrichment.tokens import FakeTokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Materials:
    """What recipes are made from; `similarity` is of the chunks' vectors, for those that look for chunks that are alike."""

    tokenizer: Tokenizer
    chat: ChatTemplate
    options: ContextOptions
    similarity: Similarity | None = None


def _situate(given: Materials) -> Recipe:
    return Prompts(given.tokenizer, given.chat, given.options.prompt, situating.WORDING)


def _keywords(given: Materials) -> Recipe:
    return Prompts(given.tokenizer, given.chat, given.options.prompt, keywords.WORDING, keywords.KeywordJudge, 1)


def _questions(given: Materials) -> Recipe:
    return Prompts(given.tokenizer, given.chat, given.options.prompt, asked.WORDING, asked.QuestionJudge, 1)


def _rewriting(given: Materials) -> Recipe:
    return Rewriting(given.tokenizer, given.chat, given.options, given.similarity)


RECIPES: Mapping[str, Callable[[Materials], Recipe]] = {
    "situate": _situate,
    "keywords": _keywords,
    "questions": _questions,
    **dict.fromkeys(REWRITES, _rewriting),
}


def recipe(given: Materials) -> Recipe:
    """The recipe of the configured strategy."""
    return RECIPES[given.options.names[0]](given)


def fingerprint(options: ContextOptions) -> str:
    """The recipe's, without a model."""
    return recipe(Materials(FakeTokenizer(), PLAIN_CHAT, options)).fingerprint


def check(options: ContextOptions) -> None:
    """Raise ConfigError for a strategy that there is not, or for several that cannot be joined."""
    names = options.names
    if len(names) == 1 and names[0] in (*FREE, *RECIPES):
        return
    if len(set(names)) < len(names) or not set(names) <= set(REWRITES):
        known = ", ".join((*FREE, *RECIPES))
        raise ConfigError(
            f'context.strategy is "{options.strategy}"; use one of {known}, or a list of {" and ".join(REWRITES)}'
        )
