"""The variants of a corpus that an evaluation compares: what their indexes see, and what `--vary` says.

(configuration, varied keys) -> configurations, each of a corpus of its own. Both indexes of a variant see the same; an
evaluation pairs the indexes of variants that have the same chunks, so n variants give n x n pairs.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from enrichment.errors import ConfigError
from enrichment.strategies import ContextOptions
from indexing import manifest
from indexing.segments import TextField
from jobs import config
from jobs.config import Config
from jobs.sampling import Sample

View = tuple[TextField, ...]
"""What an index sees of a row."""
PLAIN: View = ("body",)
HEADER: View = ("header", "body")
FREE: tuple[View, ...] = (PLAIN, HEADER)
WITH_CONTEXT: tuple[View, ...] = (("context", "body"), ("context", "header", "body"))
_OF_CONTEXTS = ("context.", "model.")
_STRATEGY = "context.strategy"
Side = Literal["dense", "lexical"]
_NOT_OF: dict[Side, tuple[str, ...]] = {
    "dense": ("index.language", "search."),
    "lexical": ("embedding.part_tokens", "embedding.passage_prefix", "embedding.query_prefix", "embedding.pooling"),
}
_FIXED = ("corpus", "documents", "index.dense_text", "index.lexical_text", "limits", "compaction")


@dataclass(frozen=True, slots=True)
class Varied:
    """A key of the configuration, with dots, and the values that it takes."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A corpus to build. `told` are the varied values that it has, `view` is what both of its indexes see."""

    told: tuple[tuple[str, str], ...]
    view: View
    config: Config

    @property
    def name(self) -> str:
        """As it is called in tables."""
        return self.seen_as(())

    @property
    def is_generated(self) -> bool:
        """Whether its indexes see what a model wrote."""
        return "context" in self.view or self.config.context.rewrites

    def seen_as(self, side: Side | tuple[()]) -> str:
        """What one of its indexes is called: without what means nothing to it."""
        nothing = _NOT_OF[side] if side else ()
        words = [f"{key}={value}" for key, value in self.told if not key.startswith(nothing)]
        return " ".join([*words, "+".join(self.view)])


def parse_varied(text: str) -> Varied:
    """`split.size=[100,200]` or `index.language=code`. Raises ConfigError."""
    import yaml

    key, equals, value = text.partition("=")
    try:
        values = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--vary {text} cannot be parsed; write KEY=[VALUE, VALUE]") from error
    if not equals or not key.strip() or value.strip() == "":
        raise ConfigError(f"--vary {text} has no key or no value; write KEY=[VALUE, VALUE]")
    if any(key == fixed or key.startswith(f"{fixed}.") for fixed in _FIXED):
        raise ConfigError(f"--vary {key} is not for an evaluation, which sets it itself; vary another key")
    return Varied(key.strip(), tuple(values) if isinstance(values, list) else (values,))


def variants(base: Config, varied: Sequence[Varied], into: str, sample: Sample) -> list[Variant]:
    """All combinations of varied values and views, each once: what contexts are like means nothing to an index without them."""
    found: dict[tuple[Any, View], Variant] = {}
    for values in itertools.product(*(each.values for each in varied)):
        chosen = list(zip((each.key for each in varied), values, strict=True))
        changed = _with(base, chosen)
        for view, context in _seen(changed.context):
            generated = "context" in view or context.rewrites
            told = {key: _word(value) for key, value in chosen if generated or not key.startswith(_OF_CONTEXTS)}
            if context.rewrites:  # what the view does not say
                told = {_STRATEGY: context.strategy} | told
            named = tuple(told.items())
            index = replace(changed.index, dense_text=view, lexical_text=view)
            made = _placed(replace(changed, index=index, context=context), into, sample)
            found.setdefault((named, view), Variant(named, view, made))
    return list(found.values())


def _seen(context: ContextOptions) -> list[tuple[View, ContextOptions]]:
    """What the indexes may see under a strategy, and the strategy that it takes: without rewrites there is the text itself."""
    if context.rewrites:
        return [*((view, ContextOptions("header")) for view in FREE), *((view, context) for view in FREE)]
    return [(view, context) for view in (*FREE, *(WITH_CONTEXT if context.asks_model else ()))]


def _placed(config: Config, into: str, sample: Sample) -> Config:
    """In a corpus of its own, the same one for the same settings and sample."""
    names = [config.content_fingerprint(), repr(sample.share), *sorted(sample.always if sample.share < 1 else ())]
    digest = manifest.digest(*(name.encode() for name in [*names, config.documents.uri]))
    return replace(config, corpus=f"{into}/{digest[:16]}")


def _with(base: Config, chosen: Sequence[tuple[str, Any]]) -> Config:
    settings = base.as_dict()
    for key, value in chosen:
        *sections, last = key.split(".")
        section: Any = settings
        for name in sections:
            section = section.get(name) if isinstance(section, dict) else None
        if not isinstance(section, dict) or last not in section:
            raise ConfigError(f"--vary {key} is not a known key")
        section[last] = value
    try:
        return config.parse(settings)
    except ConfigError as error:
        raise ConfigError(f"--vary: {error}") from error


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
