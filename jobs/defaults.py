"""What a configuration leaves open, and what a snapshot says instead: so that building and asking agree."""

from dataclasses import replace

import pyarrow as pa

from indexing.analyzers import AUTO, language_of
from indexing.fusion import options_of
from indexing.manifest import Manifest
from jobs.config import Config


def with_language(config: Config, previous: Manifest | None, ids: pa.ChunkedArray) -> Config:
    """`index.language: auto` is what the corpus has; of a new one, what its documents' ids look like.

    So a corpus in which source code becomes more or less than half is not built anew one night; another language in the
    configuration does that.
    """
    if config.index.language != AUTO:
        return config
    language = previous.config["index"]["language"] if previous else language_of(ids)
    return replace(config, index=replace(config.index, language=language))


def restated(config: Config, previous: Manifest) -> bool:
    """Whether searches are to have other defaults than the snapshot says: a new one says so, with the same segments."""
    return config.search != options_of(previous.config)
