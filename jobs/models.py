"""Where a configured model lies on this machine: built-in, local, hub, or below s3://."""

import hashlib
from pathlib import Path

from enrichment import models
from enrichment.embed import EmbeddingOptions
from enrichment.engine import ModelOptions
from enrichment.errors import ConfigError
from indexing.storage import is_remote, open_storage


def resolve_model(options: ModelOptions | EmbeddingOptions) -> Path:
    """The local directory of a model. Raises ConfigError, one sentence, if it cannot be had. `fake` has none: `.`."""
    if options.name == models.FAKE:
        return Path(".")
    if is_remote(options.name):
        return _download(options.name)
    return models.resolve(options.name, options.revision)


def _download(uri: str) -> Path:
    """Fetch the files below a prefix once; a file is taken as present when its size agrees."""
    storage = open_storage(uri)
    target = models.cache_directory() / "models" / hashlib.sha256(uri.encode()).hexdigest()[:24]
    entries = list(storage.list())
    if not any(entry.name == "config.json" for entry in entries):
        raise ConfigError(f"the model {uri} has no config.json; give the prefix that holds the model's files")
    for entry in entries:
        path = target / entry.name
        if not path.is_file() or path.stat().st_size != entry.size_bytes:
            storage.fetch(entry.name, path)
    return target


def model_fingerprint(options: ModelOptions) -> str:
    """What the configured language model is, to tell apart what two of them wrote."""
    if options.name == models.FAKE:
        return models.FAKE
    found = models.fingerprint(resolve_model(options), options.name, options.revision)
    if options.outputs_depend_on:
        found = hashlib.sha256(f"{found}\0{options.outputs_depend_on!r}".encode()).hexdigest()[:32]
    return found
