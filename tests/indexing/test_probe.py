"""A store is tried before it is relied on: conditions, bodies, listings. P17."""

from collections.abc import Callable
from pathlib import Path

import pytest
from s3_proxy import S3Proxy

from enrichment.errors import ConfigError
from indexing import probe
from indexing.storage import DirectoryStorage, Entry, Storage, open_storage


def test_a_sound_store_passes_and_nothing_is_left(storage: Storage) -> None:
    storage.put("runs/r/kept", b"1")
    assert probe.check(storage, "runs/r/")
    assert [entry.name for entry in storage.list()] == ["runs/r/kept"]


def test_a_store_that_ignores_conditions_is_refused_unless_there_is_one_writer(
    s3_bucket: Callable[[], str], s3_faults: S3Proxy
) -> None:
    storage = open_storage(s3_bucket())
    s3_faults.ignore_conditions = True
    with pytest.raises(ConfigError, match="ignores conditional writes.*--single-writer"):
        probe.check(storage, "runs/r/")
    assert not probe.check(storage, "runs/r/", single_writer=True)
    assert list(storage.list()) == []


def test_a_store_that_changes_bodies_is_refused_whoever_writes(
    s3_bucket: Callable[[], str], s3_faults: S3Proxy
) -> None:
    storage = open_storage(s3_bucket())
    s3_faults.mangle = True
    for single_writer in (False, True):
        with pytest.raises((ConfigError, Exception), match="other bytes than it was given|changes what it is given"):
            probe.check(storage, "runs/r/", single_writer)
    s3_faults.mangle = False
    assert list(storage.list()) == []


class LateListing(DirectoryStorage):
    def list(self, prefix: str = ""):  # type: ignore[no-untyped-def]
        found: list[Entry] = [*super().list(prefix)]
        yield from found[1:]


def test_a_store_that_lists_late_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not list what was just written"):
        probe.check(LateListing(tmp_path), "runs/r/")
