"""What a store does with conditional writes and with bodies, found by trying: small objects under a name of their own.

Correctness rests on both: the commit is a write that must fail if its name exists, and every file is what its sha256 says.
Some stores take the condition and ignore it, some keep checksum trailers inside the body. Nothing is left behind.
"""

import secrets

from enrichment.errors import ConfigError
from indexing import disk
from indexing.storage import Storage

_BODY_BYTES = 4096


def check(storage: Storage, prefix: str, single_writer: bool = False) -> bool:
    """Whether the store honours conditional writes, tried with objects below `prefix`.

    Raises ConfigError if it changes bodies or, unless `single_writer` is given, ignores conditions.
    """
    folder = f"{prefix}probe-{secrets.token_hex(4)}/"
    try:
        _check_bodies(storage, folder)
        conditional = _honours_conditions(storage, f"{folder}condition")
    finally:
        for entry in list(storage.list(folder)):
            storage.delete(entry.name)
    if not conditional and not single_writer:
        raise ConfigError(
            f"{storage.uri} ignores conditional writes: of two refreshes at once one would be lost without a word; "
            "use another store or, if only one refresh ever runs at a time, --single-writer"
        )
    return conditional


def _check_bodies(storage: Storage, folder: str) -> None:
    """Write by each way that is used, read whole and in part, list."""
    data = secrets.token_bytes(_BODY_BYTES)
    with disk.temporary("situate-probe-") as work:
        source = work / "body"
        with disk.writing(source):
            source.write_bytes(data)
        storage.put(f"{folder}body", data)
        storage.put_file(f"{folder}file", source)
        storage.create(f"{folder}created", data)
    for name in ("body", "file", "created"):
        if storage.get(folder + name) != data or storage.get_range(folder + name, 100, 50) != data[100:150]:
            raise ConfigError(f"{storage.uri} gives back other bytes than it was given; use another store")
    listed = {entry.name: entry.size_bytes for entry in storage.list(folder)}
    if listed != dict.fromkeys((f"{folder}body", f"{folder}created", f"{folder}file"), _BODY_BYTES):
        raise ConfigError(f"{storage.uri} does not list what was just written to it; use another store")


def _honours_conditions(storage: Storage, name: str) -> bool:
    return storage.create(name, b"first") and not storage.create(name, b"second") and storage.get(name) == b"first"
