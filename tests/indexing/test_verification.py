"""`verify` names what is damaged, in every kind of file, and files that contradict each other."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import dead, dense_files, layout, ledger_parts, lexical_build, manifest, tables
from indexing.manifest import Manifest
from indexing.storage import DirectoryStorage, open_storage
from indexing.tables import as_matrix
from indexing.verification import verify

FILES = {
    f"{name}.md": f"# {name}\n\n" + "".join(f"Rule {n} of {name} holds for each thing. " for n in range(6))
    for name in ("alder", "birch", "cedar", "elm")
}


@pytest.fixture(scope="module")
def original(stage: Callable[..., Any]) -> Path:
    """Two segments, two snapshots, two bitmaps, a ledger of two runs' worth."""
    staged = stage(FILES)
    first = staged.publish(rows_per_segment=8)
    bitmaps = {}
    for place, segment in enumerate(first.segments):
        documents = tables.read(
            Path(staged.storage.uri) / layout.segment(segment.id, layout.DOCUMENTS), tables.DOCUMENTS
        )
        bits = dead.none_of(segment)
        bits.documents[place] = True
        document = documents.slice(place, 1).to_pylist()[0]
        bits.rows[document["first_row"] : document["first_row"] + document["num_rows"]] = True
        bitmaps[segment.id] = dead.write(staged.storage, segment, bits)
    second = replace(first, sequence=2, parent=1, nonce="second", dead=bitmaps)
    manifest.publish(staged.storage, second)
    manifest.publish(staged.storage, replace(second, sequence=3, parent=2, nonce="third", dead={}))
    return Path(staged.storage.uri)


@pytest.fixture
def storage(original: Path, tmp_path: Path) -> DirectoryStorage:
    shutil.copytree(original, tmp_path / "corpus")
    return DirectoryStorage(tmp_path / "corpus")


KINDS = {
    "manifest": "manifests/*.json",
    "documents": "segments/*/documents.parquet",
    "originals": "segments/*/originals.bin",
    "rows": "segments/*/rows.parquet",
    "vectors": "segments/*/vectors.parquet",
    "dense": "segments/*/dense.faiss",
    "Lucene's list": "segments/*/lexical/segments_*",
    "Lucene's postings": "segments/*/lexical/*.doc",
    "Lucene's documents": "segments/*/lexical/*.fdt",
    "bitmap": "dead/*/*",
    "contexts": "ledger/*/contexts-*",
    "paid vectors": "ledger/*/vectors-*",
}


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << (place % 8)
    path.write_bytes(bytes(data))


def swap(paths: list[Path]) -> None:
    first, second = paths[0].read_bytes(), paths[1].read_bytes()
    assert first != second
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)


DAMAGES: dict[str, Callable[[list[Path]], Any]] = {
    "a bit at the beginning": lambda paths: flip(paths[0], 0),
    "a bit in the middle": lambda paths: flip(paths[0], paths[0].stat().st_size // 2),
    "a bit at the end": lambda paths: flip(paths[0], paths[0].stat().st_size - 1),
    "truncated": lambda paths: paths[0].write_bytes(paths[0].read_bytes()[:-1]),
    "emptied": lambda paths: paths[0].write_bytes(b""),
    "appended": lambda paths: paths[0].write_bytes(paths[0].read_bytes() + b"\0"),
    "swapped": swap,
    "missing": lambda paths: paths[1].unlink(),
}


def test_a_sound_store_has_no_problems(storage: DirectoryStorage) -> None:
    report = verify(storage)
    assert report["problems"] == [] and report["ok"]
    assert (report["snapshots"], report["segments"], report["segments_read"]) == (3, 2, 2)
    assert report["ledger_parts"] >= 4 and report["bytes_read"] > 10_000


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named(storage: DirectoryStorage, kind: str, damage: str) -> None:
    """P18, and the whole table of what `verify` finds."""
    paths = sorted(storage.root.glob(KINDS[kind]))
    assert len(paths) >= 2
    if damage == "missing" and kind in ("contexts", "paid vectors"):
        pytest.skip("nothing lists the parts of the ledger: what is missing is paid for again")
    before = {path: path.read_bytes() for path in paths}
    DAMAGES[damage](paths)
    damaged = [path for path in paths if not path.exists() or path.read_bytes() != before[path]]
    assert damaged
    report = verify(storage)
    assert not report["ok"]
    named = {problem["file"] for problem in report["problems"]}
    assert named == {path.relative_to(storage.root).as_posix() for path in damaged}


def test_every_byte_of_a_part_of_the_ledger_counts(storage: DirectoryStorage) -> None:
    for path in (
        sorted(storage.root.glob("ledger/*/contexts-*"))[0],
        sorted(storage.root.glob("ledger/*/vectors-*"))[0],
    ):
        name, data = path.relative_to(storage.root).as_posix(), path.read_bytes()
        ledger_parts.read(storage, name)
        for place in range(len(data)):
            flip(path, place)
            with pytest.raises(OperationError, match=path.name):
                ledger_parts.read(storage, name)
            path.write_bytes(data)


def test_a_snapshot_that_a_run_says_it_published_is_missed(storage: DirectoryStorage) -> None:
    storage.put(layout.run_file("run-9", layout.SUCCESS), json.dumps({"snapshot": 4}).encode())
    assert [problem["file"] for problem in verify(storage)["problems"]] == [layout.manifest(4)]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}"])
def test_a_record_of_a_run_that_is_none_is_named(storage: DirectoryStorage, content: bytes) -> None:
    name = layout.run_file("run-9", layout.SUCCESS)
    storage.put(name, content)
    assert [problem["file"] for problem in verify(storage)["problems"]] == [name]


def test_a_file_that_nobody_lists_is_named(storage: DirectoryStorage) -> None:
    [segment, _] = manifest.require_latest(storage).segments
    storage.put(layout.segment(segment.id, "lexical/segments_9"), b"x")
    [problem] = verify(storage)["problems"]
    assert problem["file"].endswith("lexical/segments_9") and problem["snapshots"] == (1, 2, 3)


def test_a_sample_reads_some_and_lists_all(storage: DirectoryStorage) -> None:
    report = verify(storage, share=0.1)
    assert (report["segments"], report["segments_read"], report["ok"]) == (2, 1, True)
    for path in storage.root.glob("segments/*/dense.faiss"):
        path.write_bytes(path.read_bytes() + b"x")
    assert len(verify(storage, share=0.1)["problems"]) == 2, "sizes are compared for all"
    with pytest.raises(ConfigError, match="--sample is 0"):
        verify(storage, share=0)


def test_on_s3_the_same_is_found(storage: DirectoryStorage, s3_bucket: Callable[[], str]) -> None:
    remote = open_storage(s3_bucket())
    for entry in storage.list():
        remote.put(entry.name, storage.get(entry.name))
    assert verify(remote)["ok"]
    [name, _] = [entry.name for entry in remote.list(layout.SEGMENTS) if entry.name.endswith("rows.parquet")]
    data = remote.get(name)
    remote.put(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert [problem["file"] for problem in verify(remote)["problems"]] == [name]


def relist(storage: DirectoryStorage, name: str, change: Callable[[Path], Any]) -> Manifest:
    """Change a file and list it as it is now, in the only snapshot: as if it had been written so."""
    for sequence in (1, 2):
        storage.delete(layout.manifest(sequence))
    old = manifest.require_latest(storage)
    segment = old.segments[0]
    change(storage.root / layout.segment(segment.id, name))
    files = []
    for file in segment.files:
        path = storage.root / layout.segment(segment.id, file.name)
        data = path.read_bytes()
        files.append(replace(file, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    new = replace(old, segments=(replace(segment, files=tuple(files)), *old.segments[1:]))
    storage.put(layout.manifest(3), new.to_json())
    return new


def edit(kind: pa.Schema, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda path: tables.write(change(tables.read(path, kind)), path)


def with_column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        column = pa.array(change(table[name].to_pylist()), table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)

    return changed


def other_vectors(path: Path) -> None:
    matrix = as_matrix(tables.read(path.parent / layout.VECTORS, tables.vectors(64)), 64).copy()
    dense_files.build(matrix[::-1].copy(), path)


def one_fewer(path: Path) -> None:
    matrix = as_matrix(tables.read(path.parent / layout.VECTORS, tables.vectors(64)), 64)
    dense_files.build(matrix[:-1], path)


CONTRADICTIONS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "another text in a row": (
        layout.ROWS,
        edit(tables.ROWS, with_column("text", lambda texts: [texts[0].upper(), *texts[1:]])),
        "chunk 0 of the document alder.md is not the span",
    ),
    "a span one byte off": (
        layout.ROWS,
        edit(tables.ROWS, with_column("byte_end", lambda ends: [ends[0] - 1, *ends[1:]])),
        "chunk 0 of the document alder.md is not the span",
    ),
    "a span one code point off": (
        layout.ROWS,
        edit(tables.ROWS, with_column("start", lambda starts: [starts[0] + 1, *starts[1:]])),
        "chunk 0 of the document alder.md is not the span",
    ),
    "a row twice": (
        layout.ROWS,
        edit(tables.ROWS, with_column("chunk_index", lambda indices: [0, 0, *indices[2:]])),
        "are not its chunks 0 to",
    ),
    "a row missing": (layout.ROWS, edit(tables.ROWS, lambda table: table.slice(1)), "entries, the manifest says"),
    "a document missing": (
        layout.DOCUMENTS,
        edit(tables.DOCUMENTS, lambda table: table.slice(0, table.num_rows - 1)),
        "bytes or rows that no document owns",
    ),
    "a text exchanged": (
        layout.ORIGINALS,
        lambda path: path.write_bytes(path.read_bytes().replace(b"alder", b"ALDER", 1)),
        "the text of the document alder.md is not what its sha256 says",
    ),
    "a vector of another row": (
        layout.VECTORS,
        edit(tables.vectors(64), with_column("row", lambda rows: [*rows[:-1], rows[-2]])),
        "not those of the rows",
    ),
    "a part missing": (
        layout.VECTORS,
        edit(tables.vectors(64), with_column("part", lambda parts: [*parts[:-1], 1])),
        "not those of the rows",
    ),
    "FAISS in another order": (layout.DENSE, other_vectors, "its vector 0 is not line 0"),
    "FAISS with one fewer": (layout.DENSE, one_fewer, "bytes, too few for its 13 vectors"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_files_that_contradict_each_other_are_named(storage: DirectoryStorage, name: str) -> None:
    """P20: each file is exactly what its manifest says, and yet they are not one set."""
    file, change, sentence = CONTRADICTIONS[name]
    new = relist(storage, file, change)
    problems = verify(storage)["problems"]
    assert any(sentence in problem["problem"] for problem in problems), problems
    assert {problem["file"].split("/")[1] for problem in problems} == {new.segments[0].id}


def test_a_lucene_index_with_a_row_less_is_named(storage: DirectoryStorage) -> None:
    def rebuild(path: Path) -> None:
        segment_id = path.parent.name
        texts = tables.read(path.parent / layout.ROWS, tables.ROWS)["text"].to_pylist()
        shutil.rmtree(path)
        lexical_build.build(texts[:-1], segment_id, path, "en")

    for sequence in (1, 2):
        storage.delete(layout.manifest(sequence))
    old = manifest.require_latest(storage)
    segment = old.segments[0]
    folder = storage.root / layout.segment(segment.id, "")
    rebuild(folder / "lexical")
    others = [file for file in segment.files if not file.name.startswith(layout.LEXICAL)]
    lucene = [
        manifest.FileEntry(
            path.relative_to(folder).as_posix(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted((folder / "lexical").iterdir())
    ]
    new = replace(old, segments=(replace(segment, files=(*others, *lucene)), *old.segments[1:]))
    storage.put(layout.manifest(3), new.to_json())
    [problem] = verify(storage)["problems"]
    assert f"has {segment.num_rows - 1} rows, rows.parquet has {segment.num_rows}" in problem["problem"]


def test_an_index_is_compared_with_its_vectors_bit_by_bit(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 12)).astype(np.float16)
    vectors[7, 3] = 0
    dense_files.build(vectors, tmp_path / "index")
    assert dense_files.first_difference(tmp_path / "index", vectors) is None
    vectors[7, 3] = -0.0
    assert dense_files.first_difference(tmp_path / "index", vectors) == 7
