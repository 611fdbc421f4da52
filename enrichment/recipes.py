"""The table of the strategies that ask a language model. A new one is a file with a prompt and a parser, and a line here."""

from collections.abc import Callable, Mapping

from enrichment import asked_questions, keywords, rewriting, situating, summary
from enrichment.errors import ConfigError
from enrichment.materials import Materials
from enrichment.prompts import PLAIN_CHAT
from enrichment.recipe import Recipe
from enrichment.strategies import FREE, NEIGHBORHOOD, REWRITES, SEMANTIC, ContextOptions
from enrichment.tokens import FakeTokenizer

RECIPES: Mapping[str, Callable[[Materials], Recipe]] = {
    "situate": situating.recipe,
    "keywords": keywords.recipe,
    "questions": asked_questions.recipe,
    "summary": summary.recipe,
    NEIGHBORHOOD: rewriting.recipe,
    SEMANTIC: rewriting.recipe,
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
