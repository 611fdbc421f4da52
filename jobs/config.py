"""One YAML file -> frozen dataclasses. Unknown keys are refused, every message names the file and the key.

The sections are declared where they are used; this file composes them, and derives the fingerprints that say which parts
of a snapshot depend on which settings.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from enrichment import recipes
from enrichment.documents import FormatName
from enrichment.embed import EmbeddingOptions
from enrichment.engine import ModelOptions
from enrichment.errors import ConfigError
from enrichment.formats.aliases import first_alias
from enrichment.split import SplitOptions
from enrichment.strategies import ContextOptions
from indexing.compaction import CompactionOptions
from indexing.fusion import SearchOptions
from indexing.segments import IndexOptions
from jobs.check import GateOptions


@dataclass(frozen=True, slots=True)
class DocumentsOptions:
    """The `documents` section: where the sources are. `max_bytes` bounds one document."""

    uri: str
    format: FormatName = "auto"
    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not self.uri.strip() or "\0" in self.uri:
            raise ConfigError(
                "documents.uri is empty or holds a NUL; name a file, a directory, a glob or s3://bucket/prefix"
            )
        if self.max_bytes < 1:
            raise ConfigError(f"documents.max_bytes is {self.max_bytes}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """The `limits` section: shares above which a published refresh exits with status 3; how long nothing may move.

    `order` says what goes first in a night that `refresh --max-tokens` or `--max-minutes` caps.
    A listing that lost more than the share `deleted` of the documents deletes nothing until it is told to.
    `stall_timeout_s` must be longer than the slowest single answer: no count moves before it is there.
    """

    fallback: float = 0.15
    quarantined: float = 0.01
    deleted: float = 0.2
    order: tuple[Literal["changed", "new"], Literal["small", "large"]] = ("changed", "small")
    stall_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        for name in ("fallback", "quarantined", "deleted"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"limits.{name} is {getattr(self, name)}; it must be a share from 0 to 1")
        if not 0 < self.stall_timeout_s < math.inf:
            raise ConfigError(
                f"limits.stall_timeout_s is {self.stall_timeout_s}; it must be a number of seconds above 0"
            )


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration, saved as it is in every manifest."""

    corpus: str
    documents: DocumentsOptions
    embedding: EmbeddingOptions
    model: ModelOptions | None = None
    split: SplitOptions = field(default_factory=SplitOptions)
    context: ContextOptions = field(default_factory=ContextOptions)
    index: IndexOptions = field(default_factory=IndexOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    gate: GateOptions = field(default_factory=GateOptions)

    def __post_init__(self) -> None:
        if not self.corpus.strip():
            raise ConfigError("corpus is empty; name a directory or s3://bucket/prefix")
        if self.model is not None and self.context.max_output_tokens * 2 > self.model.max_model_len:
            raise ConfigError("context.max_output_tokens is over half of model.max_model_len; lower it")
        recipes.check(self.context)
        if self.context.extract and not self.context.asks_model:
            raise ConfigError(
                f"context.extract asks a model, and context.strategy {self.context.strategy} has none; leave one of them out"
            )
        if self.context.asks_model and self.model is None:
            raise ConfigError(
                f"context.strategy is {self.context.strategy}, which needs a model; add the section model with a name"
            )

    def as_dict(self) -> dict[str, Any]:
        """The configuration as JSON values."""
        loaded: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return loaded

    def content_fingerprint(self) -> str:
        """Changes with every setting that can change a row, a vector or a lexical index: not with replicas or limits."""
        settings = self.as_dict()
        for section in ("corpus", "limits", "compaction", "search", "gate"):
            settings.pop(section)
        for key in ("dense", "memory_gb", "recall_floor"):  # how the same vectors are indexed: `indexes.py` sees to it
            settings["index"].pop(key)
        settings["documents"].pop("uri")  # where the sources lie; what they hold is compared by itself
        # What a server offers is in the model's fingerprint; where it is, and how it is used, changes no answer.
        for key in ("replicas", "gpus_per_replica", "endpoint", "served_name", "concurrency"):
            (settings["model"] or {}).pop(key, None)
        if self.model is not None:
            settings["model"]["engine"] = self.model.outputs_depend_on
        if not self.context.asks_model:
            settings.pop("model")
        settings["context"] = self.context.content()
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


def load(path: Path) -> Config:
    """Read a configuration file. Raises ConfigError, one sentence that names file and key."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        _refuse_repetition(path, text)
        settings = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise ConfigError(f"the configuration {path} does not exist; `situate init DIR` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"the configuration {path} cannot be parsed ({type(error).__name__})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where} is not YAML: {getattr(error, 'problem', None) or 'it cannot be parsed'}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} holds no settings; it needs at least corpus, documents and embedding")
    try:
        return parse(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _refuse_repetition(path: Path, text: str) -> None:
    """Raise ConfigError for an alias and for a key that comes twice."""
    import yaml

    if alias := first_alias(text):
        where = f"{path}:{alias.start_mark.line + 1}"
        raise ConfigError(f"{where} refers to *{alias.value}, but aliases are not read; write the value out")
    waiting = [yaml.compose(text, Loader=yaml.SafeLoader)]
    while waiting:
        node, seen = waiting.pop(), set[str]()
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise ConfigError(
                        f"{path}:{key.start_mark.line + 1} gives the key {key.value} again; keep one of them"
                    )
                seen.add(str(key.value))
                waiting.append(value)


def parse(settings: dict[str, Any]) -> Config:
    """Check settings and build the configuration. Raises ConfigError."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    for section in _SECTIONS:
        section.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[attr-defined]
    context: Any = settings.get("context")
    names = context.get("strategy") if isinstance(context, dict) else None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        settings = {**settings, "context": {**context, "strategy": "+".join(sorted(names))}}
    try:
        text = json.dumps(settings, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"the settings refer to themselves or have keys that are no words ({error})") from error
    try:
        return TypeAdapter(Config).validate_json(text)
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0])) from error


_SECTIONS: tuple[type, ...] = (
    Config,
    DocumentsOptions,
    LimitOptions,
    SplitOptions,
    ContextOptions,
    ModelOptions,
    EmbeddingOptions,
    IndexOptions,
    CompactionOptions,
    SearchOptions,
    GateOptions,
)


def _sentence(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "the file"
    match problem["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden" | "no_such_attribute":
            return f"{key} is not a known key; {_known(problem['loc'])}"
        case "missing" | "missing_argument":
            return f"{key} is missing; add it"
    message = problem["msg"].removeprefix("Input should be ")
    return f"{key} is {json.dumps(problem['input'], default=str)}; it should be {message}"


def _known(location: tuple[Any, ...]) -> str:
    section: Any = Config
    for part in location[:-1]:
        hint = next((f.type for f in section.__dataclass_fields__.values() if f.name == part), None)
        section = next((s for s in _SECTIONS if hint is s or s in getattr(hint, "__args__", ())), section)
    return f"the keys here are {', '.join(section.__dataclass_fields__)}"
