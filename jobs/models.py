"""Where a configured model lies on this machine: built-in, local, hub, or below s3://."""

import fnmatch
import hashlib
from collections.abc import Sequence
from pathlib import Path

from enrichment import endpoint, models
from enrichment.embed import EmbeddingOptions
from enrichment.engine import ModelOptions
from enrichment.errors import ConfigError
from enrichment.prompts import PLAIN_CHAT, ChatTemplate, chat_template
from enrichment.tokens import FakeTokenizer, FileTokenizer, Tokenizer
from indexing.storage import is_remote, open_storage


def resolve_model(options: ModelOptions | EmbeddingOptions) -> Path:
    """The local directory of a model. Raises ConfigError, one sentence, if it cannot be had. `fake` has none: `.`.

    Of a model that a server runs, the files of the tokenizer are enough.
    """
    if options.name == models.FAKE:
        return Path(".")
    tokenizer_only = isinstance(options, ModelOptions) and options.endpoint is not None
    if is_remote(options.name):
        return _download(options.name, models.TOKENIZER_FILES if tokenizer_only else ("*",))
    return models.resolve(options.name, options.revision, tokenizer_only)


def open_tokenizer(options: ModelOptions) -> tuple[Tokenizer, ChatTemplate]:
    """The language model's tokenizer and its chat format, without its weights."""
    if options.name == models.FAKE:
        return FakeTokenizer(), PLAIN_CHAT
    directory = resolve_model(options)
    return FileTokenizer(directory), chat_template(str(directory))


def _download(uri: str, patterns: Sequence[str]) -> Path:
    """Fetch the files below a prefix that fit a pattern once; a file is taken as present when its size agrees."""
    storage = open_storage(uri)
    target = models.cache_directory() / "models" / hashlib.sha256(uri.encode()).hexdigest()[:24]
    entries = [e for e in storage.list() if any(fnmatch.fnmatch(e.name, pattern) for pattern in patterns)]
    if not any(entry.name == "config.json" for entry in entries):
        raise ConfigError(f"the model {uri} has no config.json; give the prefix that holds the model's files")
    for entry in entries:
        path = target / entry.name
        if not path.is_file() or path.stat().st_size != entry.size_bytes:
            storage.fetch(entry.name, path)
    return target


def checked_model(options: ModelOptions) -> str:
    """Have the configured language model at hand, or answering; its fingerprint, to tell apart what two of them wrote.

    Raises ConfigError, one sentence, before anything is spent.
    """
    if options.name == models.FAKE:
        return models.FAKE
    directory = resolve_model(options)
    served = endpoint.check(options) if options.endpoint else None
    if served is None or served.max_model_len is None:
        models.check_length(directory, options.name, options.max_model_len)
    if served is not None:
        return endpoint.fingerprint(served, options.revision)
    found = models.fingerprint(directory, options.name, options.revision)
    if options.outputs_depend_on:
        found = hashlib.sha256(f"{found}\0{options.outputs_depend_on!r}".encode()).hexdigest()[:32]
    return found
