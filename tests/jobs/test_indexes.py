"""Nights with dense indexes that have lists: trained once, shared, followed by all segments, measured, kept and cleaned up.

Without Ray and without Lucene; FAISS, the segments and the store are the real ones.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from enrichment.embed import EmbeddingOptions, FakeEmbedder
from enrichment.errors import ConfigError, OperationError, PublishGateError
from enrichment.fake_engine import FakeEngine
from indexing import collection, contents, dense_files, dense_kind, history, layout, manifest, recall
from indexing.manifest import Manifest
from indexing.storage import DirectoryStorage
from indexing.verification import verify
from jobs.purge import purge

pytestmark = pytest.mark.usefixtures("no_lexical")

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = {"index": {"dense": "IVF4,SQfp16"}}
CHUNKS = 8
EMBEDDER = FakeEmbedder(EmbeddingOptions("fake"))
QUIET = {"compaction": {"dead_share": 1.0, "pile": 1000}}


def documents(first: int, number: int) -> dict[str, str]:
    """Files of CHUNKS chunks each; some chunks have the same fake vector."""
    return {
        f"d{n:03}": f"# D{n}\n\n" + "".join(f"Sentence {m} of {n} says {n * 31 + m}. " for m in range(7))
        for n in range(first, first + number)
    }


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all trainings, as they come."""
    found, train = [], dense_files.train

    def counted(vectors: Any, kind: Any, path: Any) -> float:
        found.append(str(kind))
        return train(vectors, kind, path)

    monkeypatch.setattr(dense_files, "train", counted)
    return found


@pytest.fixture
def listed(nights: Any, trainings: list[str]) -> Any:
    """Twenty documents, 160 chunks, published with four lists."""
    nights.write(**documents(0, 20))
    nights.refresh(**LISTS, **QUIET)
    assert trainings == ["IVF4,SQfp16"]
    return nights


def trained_path(found: Any) -> Any:
    assert isinstance(found.storage, DirectoryStorage)
    return found.storage.root / layout.trained(found.manifest.dense.trained.id)


def hits(found: Any, k: int = 12) -> list[list[str]]:
    """What searches by the words of some chunks find, by their texts."""
    snapshot = found.open()
    rows = [snapshot.rows(f"d{n:03}.md")[1] for n in (0, 5, 11)]
    texts = [snapshot.original(row["document_id"], (row["byte_start"], row["byte_end"])) for row in rows]
    index, numbers = snapshot._open_dense(), [segment.id for segment in snapshot.manifest.segments]
    answers = []
    for query in EMBEDDER.embed_queries(texts):
        ranked = sorted(
            (-hit.score, *snapshot._row_order(numbers.index(hit.segment_id), hit.vector))
            for hit in index.search(query[None], k)[0]
        )
        answers.append([f"{name} {chunk}" for _, name, chunk in ranked[:k]])
    return answers


def problems(found: Any) -> list[tuple[str, str]]:
    """What `verify` says but for Lucene, which was not built."""
    return [(p["file"], p["problem"]) for p in verify(found.storage)["problems"] if "lexical" not in p["file"]]


def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "generate", None)
    monkeypatch.setattr(FakeEmbedder, "embed_passages", None)


def test_what_is_trained_is_shared_by_all_segments_of_all_nights(listed: Any, trainings: list[str]) -> None:
    first = listed.manifest
    assert (first.dense.kind, first.dense.trained.corpus_vectors) == ("IVF4,SQfp16", 20 * CHUNKS)
    assert 120 < first.dense.trained.num_vectors < 20 * CHUNKS - first.dense.num_queries, "equal vectors count once"
    for night in (1, 2, 3):
        listed.write(**documents(20 + night, 1))
        listed.refresh(**LISTS, **QUIET)
        found = listed.manifest
        assert found.dense.trained == first.dense.trained
        assert (found.dense.recall, found.dense.nprobe) == (first.dense.recall, first.dense.nprobe)
        assert found.dense.added == CHUNKS * night == sum(s.num_vectors for s in found.segments[1:])
        assert [segment.trained for segment in found.segments] == [first.dense.trained.id] * (night + 1)
    assert trainings == ["IVF4,SQfp16"]
    assert [entry.name for entry in listed.storage.list(layout.TRAINED)] == [layout.trained(first.dense.trained.id)]
    assert not problems(listed)


def test_the_manifest_says_what_the_trained_file_is(listed: Any) -> None:
    entry, data = listed.manifest.dense.trained, trained_path(listed).read_bytes()
    assert (entry.size_bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert entry.id.startswith(entry.sha256[:24]) and 0 < entry.score <= 1
    record = json.loads(listed.storage.get(layout.manifest(1)))
    assert record["dense"]["trained"]["kind"] == record["dense"]["kind"] == "IVF4,SQfp16"
    assert manifest.from_json(listed.storage.get(layout.manifest(1)), "m") == listed.manifest


def test_segments_do_not_carry_the_centroids(listed: Any) -> None:
    [segment] = listed.manifest.segments
    path = listed.storage.root / layout.segment(segment.id, layout.DENSE)
    assert path.stat().st_size < segment.num_vectors * (2 * 64 + 8) + 1000
    assert trained_path(listed).stat().st_size >= 4 * 64 * 4


def test_recall_is_measured_and_shown(listed: Any) -> None:
    dense = listed.manifest.dense
    assert 0.9 <= dense.recall <= 1 and dense.num_queries > 10 and dense.nprobe in (1, 2, 4)
    assert history.snapshots(listed.storage)[0]["recall"] == dense.recall
    listed.write(**documents(30, 1))
    shown = listed.refresh(**LISTS, **QUIET).as_dict()["dense"]
    assert shown == {"kind": "IVF4,SQfp16", "recall": dense.recall, "nprobe": dense.nprobe, "trained": dense.trained.id}
    assert listed.refresh(**LISTS, **QUIET).as_dict()["dense"] == shown


def test_a_recall_below_the_floor_publishes_nothing_and_says_what_to_set(
    nights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.write(**documents(0, 20))
    monkeypatch.setattr(recall, "probes", lambda kind: [1])
    with pytest.raises(
        PublishGateError, match=r"recall@10 .*IVF4,SQfp16, 1 lists.*index\.recall_floor \(0\.999\).*flat"
    ):
        nights.refresh(index={**LISTS["index"], "recall_floor": 0.999})
    assert manifest.latest(nights.storage) is None
    nights.refresh(index={**LISTS["index"], "recall_floor": 0.1})
    assert 0.1 < nights.manifest.dense.recall < 0.999


def test_three_quarters_of_newer_vectors_are_trained_on_and_all_segments_follow(
    listed: Any, trainings: list[str]
) -> None:
    first = listed.manifest
    listed.write(**documents(20, 59))
    listed.refresh(**LISTS, **QUIET)
    assert trainings == ["IVF4,SQfp16"], "59 of 79 documents are not more than three quarters"
    listed.write(**documents(79, 2))
    result = listed.refresh(**LISTS, **QUIET)
    assert trainings == ["IVF4,SQfp16"] * 2 and result.chunks["generated"] == 2 * CHUNKS
    found = listed.manifest
    assert found.dense.trained.sha256 != first.dense.trained.sha256 and found.dense.added == 0
    assert {segment.trained for segment in found.segments} == {found.dense.trained.id}
    assert {s.id for s in found.segments}.isdisjoint(s.id for s in first.segments)
    assert found.dense.trained.corpus_vectors == found.counts["chunks"]["total"] == 81 * CHUNKS
    assert not problems(listed)


def test_another_kind_redoes_the_indexes_and_asks_no_model(listed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listed.manifest
    no_models(monkeypatch)
    for kind in ("flat", "IVF4,SQ8", "IVF2_HNSW4,SQfp16", "flat"):
        settings = {"index": {"dense": kind}, **QUIET}
        result = listed.refresh(**settings)
        found = listed.manifest
        assert result.published and (result.chunks["generated"], result.documents["unchanged"]) == (0, 20)
        assert found.dense.kind == ("SQfp16" if kind == "flat" else kind)
        assert [s.digest for s in found.segments] == [s.digest for s in before.segments], "the same documents"
        assert not problems(listed)
        assert not listed.refresh(**settings).published
    assert found.dense.trained is None and found.dense.recall == 1.0
    assert found.fingerprints == before.fingerprints


def test_the_answers_are_those_of_a_flat_index_where_all_lists_are_looked_at(
    listed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "probes", lambda kind: [kind.lists])
    listed.refresh(index={"dense": "IVF5,SQfp16", "rows_per_segment": 500_000}, **QUIET)
    assert listed.manifest.dense.nprobe == 5
    answers = hits(listed)
    listed.refresh(index={"dense": "flat"}, **QUIET)
    assert hits(listed) == answers and all(len(found) == 12 for found in answers)


def test_a_night_that_crosses_the_threshold_takes_all_segments_along(
    nights: Any, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_kind, "FLAT_VALUES", 300 * 64)
    nights.write(**documents(0, 35))
    nights.refresh(**QUIET)
    assert (nights.manifest.dense.kind, trainings) == ("SQfp16", [])
    nights.write(**documents(35, 5))
    result = nights.refresh(**QUIET)
    assert nights.manifest.dense.kind == "IVF8,SQfp16" == trainings[0] and result.chunks["generated"] == 5 * CHUNKS
    assert {segment.trained for segment in nights.manifest.segments} == {nights.manifest.dense.trained.id}
    assert not nights.refresh(**QUIET).published
    assert not problems(nights)


def test_a_smaller_memory_redoes_the_indexes_with_a_smaller_code(listed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    no_models(monkeypatch)
    listed.refresh(index={"memory_gb": 2e-5}, **QUIET)
    assert listed.manifest.dense.kind == "IVF4,SQ8"
    assert not listed.refresh(index={"memory_gb": 2e-5}, **QUIET).published
    with pytest.raises(ConfigError, match=r"index\.memory_gb is 1e-06, but 160 vectors take .* as IVF4,SQ8; raise it"):
        listed.refresh(index={"memory_gb": 1e-6}, **QUIET)


def test_too_few_vectors_are_refused_with_their_number(nights: Any) -> None:
    nights.write(**documents(0, 3))
    with pytest.raises(ConfigError, match="IVF4,SQfp16, which takes 120 vectors to train, and the corpus has 24"):
        nights.refresh(**LISTS)
    assert manifest.latest(nights.storage) is None


def test_what_is_made_anew_is_trained_anew(listed: Any, trainings: list[str]) -> None:
    listed.refresh(embedding={"name": "fake", "passage_prefix": "p: "}, **LISTS)
    assert len(trainings) == 2 and listed.manifest.dense.added == 0


def test_deleted_documents_are_not_trained_on(nights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.write(**documents(0, 25))
    nights.refresh(**QUIET)
    nights.write(**{f"d{n:03}": None for n in range(5)})
    nights.refresh(**QUIET)
    seen: list[int] = []
    train = dense_files.train
    monkeypatch.setattr(dense_files, "train", lambda v, kind, path: seen.append(len(v)) or train(v, kind, path))
    nights.refresh(**LISTS, **QUIET)
    assert 120 < seen[0] < 150 and nights.manifest.segments[0].num_documents == 20


DAMAGES: dict[str, Any] = {
    "a flipped bit": lambda path, data: path.write_bytes(data[:900] + bytes([data[900] ^ 4]) + data[901:]),
    "truncated": lambda path, data: path.write_bytes(data[:-1]),
    "extended": lambda path, data: path.write_bytes(data + b"\0"),
    "emptied": lambda path, data: path.write_bytes(b""),
    "missing": lambda path, data: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_trained_file_is_named_and_never_serves(listed: Any, damage: str) -> None:
    """P18."""
    name, path = layout.trained(listed.manifest.dense.trained.id), trained_path(listed)
    DAMAGES[damage](path, path.read_bytes())
    [(file, problem)] = problems(listed)
    assert file == name and ("missing" in problem) == (damage == "missing")
    with pytest.raises(OperationError, match=f"{name} (is missing|differs from its manifest)"):
        listed.open()._open_dense()
    listed.write(**documents(40, 1))
    with pytest.raises(OperationError, match=name):
        listed.refresh(**LISTS, **QUIET)


def test_a_segment_with_other_lists_than_its_snapshot_is_refused(listed: Any) -> None:
    record = json.loads(listed.storage.get(layout.manifest(1)))
    record["segments"][0]["trained"] = None
    del record["sha256"]
    listed.storage.put(layout.manifest(1), json.dumps(record).encode())
    with pytest.raises(OperationError, match="its segment .* was built with none"):
        listed.open()._open_dense()
    assert any(file == layout.manifest(1) for file, _ in problems(listed))


def test_codes_that_are_not_those_of_the_vectors_are_found(listed: Any) -> None:
    [segment] = listed.manifest.segments
    folder = listed.storage.root / layout.segment(segment.id, "")
    entry = listed.manifest.dense.trained
    shared = dense_files.Trained(trained_path(listed), dense_kind.Kind(4))
    other = contents.as_matrix(contents.tables.read(folder / layout.VECTORS, contents.tables.vectors(64)), 64).copy()
    other[[2, 3]] = other[[3, 2]]
    dense_files.build(other, folder / layout.DENSE, shared)
    found = [p for p in contents.problems(folder, segment, 64, shared) if p[0] == layout.DENSE]
    assert found == [(layout.DENSE, "its vector 2 is not line 2 of vectors.parquet")] and entry.kind == "IVF4,SQfp16"


def test_garbage_is_a_trained_file_that_no_kept_snapshot_lists(listed: Any) -> None:
    old = layout.trained(listed.manifest.dense.trained.id)
    listed.refresh(index={"dense": "IVF3,SQfp16"}, **QUIET)
    new = layout.trained(listed.manifest.dense.trained.id)

    def there() -> list[str]:
        return sorted(entry.name for entry in listed.storage.list(layout.TRAINED))

    collection.collect(listed.storage, keep=2, older_than_s=0, delete=True)
    assert there() == sorted([old, new])
    collection.collect(listed.storage, keep=1, older_than_s=3600, delete=True)
    assert there() == sorted([old, new]), "the young are spared"
    collection.collect(listed.storage, keep=1, older_than_s=0, delete=True)
    assert there() == [new]
    assert not problems(listed)


def test_a_rollback_takes_its_trained_file_along(listed: Any) -> None:
    before = hits(listed)
    listed.refresh(index={"dense": "IVF3,SQfp16"}, **QUIET)
    history.roll_back(listed.storage, 1)
    assert listed.manifest.dense == manifest.load(listed.storage, 1).dense
    assert hits(listed) == before
    path = trained_path(listed)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OperationError, match=rf"{path.name} is missing or cut short"):
        history.roll_back(listed.storage, 1)


def test_an_erasure_keeps_the_lists_and_removes_the_document(listed: Any) -> None:
    before = listed.manifest
    proof = purge(listed.storage, "d003.md")
    assert proof["left"] == []
    after: Manifest = listed.manifest
    assert after.dense == before.dense and after.segments[0].id != before.segments[0].id
    assert after.segments[0].trained == before.dense.trained.id
    assert after.segments[0].num_vectors == before.segments[0].num_vectors - CHUNKS
    assert trained_path(listed).is_file() and not problems(listed)
    assert all("d003" not in name for found in hits(listed, 200) for name in found)


def test_plain_faiss_reads_it_as_the_storage_contract_says(listed: Any) -> None:
    import faiss

    corpus, found = listed.storage.root, json.loads(listed.storage.get(layout.manifest(1)))
    folder, [query] = corpus / "segments" / found["segments"][0]["id"], EMBEDDER.embed_queries(["some words"])
    section = (ROOT / "docs" / "storage.md").read_text().partition("and the trained file")[2]
    names: dict[str, Any] = {"faiss": faiss, "manifest": found, "folder": folder, "corpus": corpus}
    exec(section.partition("```python")[2].partition("```")[0], names)
    scores, ids = names["index"].search(query[None], 10)
    [own] = listed.open()._open_dense().search(query[None], 10)
    assert scores[0].tolist() == [hit.score for hit in own[:10]]
    assert set(ids[0].tolist()) <= {hit.vector for hit in own}, "of tied ones it may take others"


def test_an_older_corpus_is_flat_until_told_otherwise(nights: Any) -> None:
    """P36: a manifest of version 2 says nothing of trained files."""
    nights.write(**documents(0, 20))
    nights.refresh(**QUIET)
    record = json.loads(nights.storage.get(layout.manifest(1)))
    del record["sha256"], record["dense"]
    for segment in record["segments"]:
        del segment["trained"]
    nights.storage.put(layout.manifest(1), json.dumps(record | {"format_version": 2}).encode())
    assert nights.manifest.dense == manifest.DenseEntry()
    assert all(len(found) == 12 for found in hits(nights))
    assert history.snapshots(nights.storage)[0]["dense"] == "SQfp16"
    nights.refresh(**LISTS, **QUIET)
    assert nights.manifest.dense.kind == "IVF4,SQfp16"
