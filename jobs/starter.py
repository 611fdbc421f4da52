"""`situate init`: a starter configuration for a folder of documents."""

from pathlib import Path
from typing import Any

from enrichment.errors import ConfigError
from jobs.config import DocumentsOptions
from jobs.sources import list_files

_TEMPLATE = """\
# Written by `situate init`. Relative paths are relative to the directory that the command is run in.
corpus: {corpus}
documents: {{uri: {documents}, format: auto}}
split: {{by: tokens, size: 200, overlap: 0, min_size: 64}}
context: {{strategy: situate, prompt: causal, max_output_tokens: 64}}   # strategy: header costs no model time
model: {{name: smollm2-135m-instruct, max_model_len: 8192}}            # any Hugging Face id or local directory
embedding: {{name: all-minilm-l6-v2}}
index: {{dense_text: [header, body], lexical_text: [context, header, body], language: auto}}
limits: {{fallback: 0.15, quarantined: 0.01}}
"""


def write(directory: Path) -> dict[str, Any]:
    """Write `NAME.yaml` beside the working directory for the folder `NAME`. Raises ConfigError if it exists already."""
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory; name the folder that holds the documents")
    name = directory.resolve().name
    target = Path(f"{name}.yaml")
    if target.exists():
        raise ConfigError(f"{target} exists already; edit it, or remove it first")
    found = list_files(DocumentsOptions(uri=str(directory)))
    target.write_text(_TEMPLATE.format(corpus=_quoted(f"corpora/{name}"), documents=_quoted(str(directory))))
    return {"config": str(target), "files": len(found.files)}


def _quoted(value: str) -> str:
    """A YAML double-quoted scalar."""
    import json

    return json.dumps(value, ensure_ascii=False)
