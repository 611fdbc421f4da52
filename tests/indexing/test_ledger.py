"""What has been paid for stays paid for."""

from pathlib import Path

import numpy as np
import pytest

from enrichment.errors import OperationError
from enrichment.records import Context, DocumentId, Status
from indexing import ledger
from indexing.storage import DirectoryStorage


def paid(number: int, status: Status = Status.OK) -> ledger.Paid:
    text = f"Context {number}." if status is Status.OK else None
    return ledger.Paid(DocumentId("d"), Context(text, status, key=bytes([number]) * 32, output=f"raw {number}"))


def test_contexts_come_back_by_key_and_the_first_of_a_key_stays(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    ledger.append_contexts(storage, "run-1", "a", [paid(1), paid(2, Status.FALLBACK)])
    ledger.append_contexts(storage, "run-2", "a", [paid(1, Status.FALLBACK), paid(3)])
    found = ledger.read_contexts(storage)
    assert {key[0]: context.text for key, context in found.items()} == {1: "Context 1.", 2: None, 3: "Context 3."}
    assert found[bytes([2]) * 32].output == "raw 2"


def test_failed_results_are_not_paid_work(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    ledger.append_contexts(storage, "run-1", "a", [paid(1, Status.FAILED), paid(2, Status.SKIPPED)])
    assert ledger.read_contexts(storage) == {}
    assert not list(storage.list())


def test_vectors_come_back_by_key(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    vectors = np.arange(8, dtype=np.float16).reshape(2, 4)
    ledger.append_vectors(storage, "run-1", "a", [b"x", b"y"], [DocumentId("d")] * 2, vectors)
    assert ledger.read_vectors(storage, 4) == {b"x": vectors[0].tobytes(), b"y": vectors[1].tobytes()}
    assert ledger.read_vectors(storage, 8) == {}, "another embedder's vectors are no obstacle"


def test_a_full_batch_is_due_and_durable_when_flushed(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    writer = ledger.ContextWriter(storage, "run-1")
    assert [writer.add(paid(n)) for n in range(256)] == [False] * 255 + [True]
    writer.flush()
    writer.flush()
    assert len(ledger.read_contexts(storage)) == 256
    assert len(list(storage.list())) == 1


def test_what_could_not_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DirectoryStorage(tmp_path)
    writer = ledger.ContextWriter(storage, "run-1")
    writer.add(paid(1))
    with monkeypatch.context() as broken:
        broken.setattr(storage, "put", lambda name, data: (_ for _ in ()).throw(OperationError("the disk is full")))
        with pytest.raises(OperationError, match="full"):
            writer.flush()
    writer.add(paid(2))
    writer.flush()
    assert {key[0] for key in ledger.read_contexts(storage)} == {1, 2}
