"""What has been paid for stays paid for."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from enrichment.errors import OperationError
from enrichment.records import Context, DocumentId, Status
from indexing import ledger, ledger_parts, tables
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


def test_an_ok_context_stands_before_a_refused_one_of_its_key(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    ledger.append_contexts(storage, "run-1", "a", [paid(1, Status.FALLBACK), paid(2, Status.FALLBACK)])
    ledger.append_contexts(storage, "run-2", "a", [paid(1)])
    assert ledger.read_contexts(storage)[bytes([1]) * 32].text == "Context 1."
    assert set(ledger.read_contexts(storage, fallbacks=False)) == {bytes([1]) * 32}


def test_only_the_entries_of_the_documents_asked_for_are_read_and_older_ones_come_last(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    other = ledger.Paid(DocumentId("other"), paid(2).context)
    ledger.append_contexts(storage, "run-1", "a", [paid(1), other])
    found = ledger.read_contexts(storage, pa.array(["d"]))
    assert {key[0] for key in found} == {1}
    ledger.append_contexts(DirectoryStorage(tmp_path / "elsewhere"), "r", "a", [paid(1, Status.FALLBACK), paid(3)])
    ((entry, *_), *_) = [list(DirectoryStorage(tmp_path / "elsewhere").list())]
    older = tables.read(DirectoryStorage(tmp_path / "elsewhere").get(entry.name), tables.CONTEXTS)
    found = ledger.read_contexts(storage, pa.array(["d"]), older)
    assert {key[0]: context.text for key, context in found.items()} == {1: "Context 1.", 3: "Context 3."}


def test_failed_results_are_not_paid_work(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    ledger.append_contexts(storage, "run-1", "a", [paid(1, Status.FAILED), paid(2, Status.SKIPPED)])
    assert len(ledger.read_contexts(storage)) == 0
    assert not list(storage.list())


def test_vectors_come_back_by_key(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    vectors = np.arange(8, dtype=np.float16).reshape(2, 4)
    keys = [bytes([n]) * 31 + b"\0" for n in (1, 2)]  # also a key that ends in a zero byte
    ledger.append_vectors(storage, "run-1", "a", keys, [DocumentId("d"), DocumentId("e")], vectors)
    assert dict(ledger.read_vectors(storage, 4)) == {key: v.tobytes() for key, v in zip(keys, vectors, strict=True)}
    assert dict(ledger.read_vectors(storage, 4, pa.array(["e"]))) == {keys[1]: vectors[1].tobytes()}
    assert bytes([1]) * 32 not in ledger.read_vectors(storage, 4)
    assert len(ledger.read_vectors(storage, 8)) == 0, "another embedder's vectors are no obstacle"


def test_a_full_batch_is_due_and_durable_when_flushed(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    writer = ledger.ContextWriter(storage, "run-1")
    assert [writer.add(paid(n % 256)) for n in range(1024)] == [False] * 1023 + [True]
    writer.flush()
    writer.flush()
    (name,) = ledger_parts.names(storage)
    assert ledger_parts.read(storage, name).num_rows == 1024 and len(ledger.read_contexts(storage)) == 256


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
