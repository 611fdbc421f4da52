"""An open snapshot: what it answers, that sharding never changes it, and that nothing damaged is served."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from enrichment.errors import ConfigError, OperationError
from indexing import layout, manifest, serving
from indexing.passages import Passage
from indexing.search import Mode
from indexing.snapshot import Snapshot
from indexing.storage import DirectoryStorage, Storage, open_storage

WORDS = ["payment", "clause", "tenant", "roof", "insurance", "notice", "garden", "winter", "boiler", "deposit"]
GUIDE = (
    "---\ntitle: Kettle Guide\ndate: 2026-03-01\n---\n# Kettle\n\nFill it slowly. Watch the mark. Close the lid.\n\n"
    "## Descaling\n\nUse vinegar monthly. Rinse it twice. Never use soap.\n"
)
TWINS = "The roof leaks in winter. The tenant gave notice."
MODES: Sequence[Mode] = ("dense", "lexical", "hybrid")


def files() -> dict[str, str | bytes]:
    """A guide with sections, 20 documents of few words, and six under other ids that say the same as each other."""
    made = []
    for number in range(20):
        picked = [WORDS[(number * step + step) % len(WORDS)] for step in (1, 3, 7)]
        made.append(
            {"id": f"n{number:02d}", "text": f"A {picked[0]} {picked[1]}. The {picked[2]} of {picked[0]}. End."}
        )
    made += [{"id": name, "title": "Twin", "text": TWINS} for name in ("a", "m", "n05x", "n10x", "z", "zz")]
    lines = "".join(json.dumps(record) + "\n" for record in made)
    return {"guide.md": GUIDE, "made.jsonl": lines, "blank.txt": " \n", "broken.txt": b"\xfa\xfb is no text"}


@pytest.fixture(scope="module")
def sharded(stage: Callable[..., Any]) -> dict[int, Snapshot]:
    """The same staged rows, published in 1, 2 and 5 segments."""
    staged = stage(files(), split={"by": "sentences", "size": 1})
    found = {}
    for rows_per_segment in (1000, 45, 17):
        published = staged.publish(rows_per_segment)
        found[len(published.segments)] = Snapshot(staged.storage, published)
    assert sorted(found) == [1, 2, 5]
    return found


@pytest.fixture(scope="module")
def snapshot(sharded: dict[int, Snapshot]) -> Snapshot:
    return sharded[2]


@pytest.fixture(scope="module")
def copied(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot of two segments alone, in a directory of its own."""
    target = tmp_path_factory.mktemp("copied") / "corpus"
    assert isinstance(snapshot.storage, DirectoryStorage)
    for segment in snapshot.manifest.segments:
        folder = f"{layout.SEGMENTS}{segment.id}"
        shutil.copytree(snapshot.storage.root / folder, target / folder)
    name = layout.manifest(snapshot.manifest.sequence)
    (target / name).parent.mkdir()
    shutil.copy(snapshot.storage.root / name, target / name)
    return target


@pytest.fixture
def remote(copied: Path, s3_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The same snapshot on S3, and no cache of it."""
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    storage = open_storage(s3_bucket())
    for entry in DirectoryStorage(copied).list():
        storage.put_file(entry.name, copied / entry.name)
    return storage


def keys(passages: Sequence[Passage]) -> list[tuple[str, int]]:
    return [(passage.document_id, hit.chunk_index) for passage in passages for hit in passage.hits]


def use(uri: str) -> list[str]:
    """Do with a snapshot what a serving system does."""
    opened = serving.open(uri)
    texts = [passage.text for mode in MODES for passage in opened.search("roof vinegar", k=3, mode=mode)]
    return texts + [opened.original(name) for name in ("guide.md", "a", "zz")]


def test_the_text_returned_is_original_text_and_the_context_is_beside_it(snapshot: Snapshot) -> None:
    for mode in MODES:
        for window in (0, 1, 5):
            passages = snapshot.search("vinegar roof payment", k=12, mode=mode, window=window)
            assert passages
            for passage in passages:
                assert passage.text == snapshot.original(passage.document_id)[passage.start : passage.end]
                assert "This passage" not in passage.text
                assert all(hit.context is None or hit.context.startswith("This passage") for hit in passage.hits)
            assert any(hit.context for passage in passages for hit in passage.hits)
    record = json.loads(json.dumps(passages[0].as_dict()))
    assert {"document_id", "title", "start", "end", "text", "score", "hits"} == set(record)
    assert {"chunk_index", "score", "context", "heading_path"} <= set(record["hits"][0])


def test_a_hit_is_its_chunk_with_its_scores(snapshot: Snapshot) -> None:
    (passage,) = snapshot.search("vinegar", k=1, mode="lexical")
    assert (passage.document_id, passage.title, passage.text) == ("guide.md", "Kettle Guide", "Use vinegar monthly. ")
    (hit,) = passage.hits
    assert hit.heading_path == ("Kettle", "Descaling")
    assert hit.lexical == hit.score == passage.score > 0
    assert hit.dense is None
    (fused,) = snapshot.search("vinegar", k=1)
    assert fused.hits[0].lexical == pytest.approx(hit.lexical)
    assert fused.hits[0].dense is not None
    assert fused.score <= 2 / 61


def test_k_counts_hits_before_neighbours_merge(snapshot: Snapshot) -> None:
    for k in (1, 2, 7, 30):
        passages = snapshot.search("roof tenant payment", k=k, window=1)
        assert len(keys(passages)) == k == len(set(keys(passages)))
        for passage in passages:
            assert passage.score == max(hit.score for hit in passage.hits)
        assert [p.score for p in passages] == sorted((p.score for p in passages), reverse=True)
        spans = sorted((p.document_id, p.start, p.end) for p in passages)
        assert all(left[0] != right[0] or left[2] < right[1] for left, right in pairwise(spans))


def test_k_above_the_number_of_rows_gives_every_row_once(snapshot: Snapshot) -> None:
    total = sum(segment.num_rows for segment in snapshot.manifest.segments)
    assert len(set(keys(snapshot.search("roof", k=10_000, mode="dense")))) == total
    assert len(keys(snapshot.search("roof", k=10_000, mode="dense"))) == total
    assert len(keys(snapshot.search("roof", k=10_000))) == total


def test_a_window_widens_to_neighbours_and_stops_at_the_section_on_demand(snapshot: Snapshot) -> None:
    def text(**options: Any) -> str:
        return snapshot.search("vinegar", k=1, mode="lexical", **options)[0].text

    assert text(window=1) == "## Descaling\n\nUse vinegar monthly. Rinse it twice. "
    assert text(window=2) == "Close the lid.\n\n## Descaling\n\nUse vinegar monthly. Rinse it twice. Never use soap.\n"
    assert text(window=9) == GUIDE
    assert (
        text(window=9, within_section=True) == "## Descaling\n\nUse vinegar monthly. Rinse it twice. Never use soap.\n"
    )


def test_a_budget_takes_whole_passages_in_rank_order(snapshot: Snapshot) -> None:
    passages = snapshot.search("roof tenant payment", k=10, window=1)
    for budget in (1, 30, 60, 120, 10_000):
        kept = snapshot.search("roof tenant payment", k=10, window=1, budget=budget)
        assert sum(len(passage.text) for passage in kept) <= budget
        left, expected = budget, []
        for passage in passages:
            if len(passage.text) <= left:
                expected.append(passage)
                left -= len(passage.text)
        assert kept == expected


def test_an_unusable_id_is_named_with_what_happened_to_it(snapshot: Snapshot) -> None:
    with pytest.raises(ConfigError, match=r"broken.txt was quarantined: undecodable: byte 0 is not UTF-8"):
        snapshot.original("broken.txt")
    for ask in (snapshot.document, snapshot.rows, snapshot.original):
        with pytest.raises(ConfigError, match=r"snapshot \d of .* holds no document nowhere.md"):
            ask("nowhere.md")
    with pytest.raises(ConfigError, match="holds no snapshot 77"):
        serving.open(snapshot.storage.uri, 77)


def test_a_store_without_a_snapshot_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no snapshot; run `situate refresh"):
        serving.open(str(tmp_path / "nothing"))


def test_an_older_snapshot_opens_by_its_number(sharded: dict[int, Snapshot]) -> None:
    uri = sharded[1].storage.uri
    assert len(serving.open(uri, 1).manifest.segments) == 1
    assert serving.open(uri).manifest.sequence == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 8, 200])
def test_the_number_of_segments_changes_no_answer(sharded: dict[int, Snapshot], mode: Mode, k: int) -> None:
    queries = ["roof leaks in winter", "tenant notice", "end", "vinegar soap lid"]
    for query in queries:
        for window in (0, 1):
            one, *others = (sharded[number].search(query, k=k, mode=mode, window=window) for number in (1, 2, 5))
            scores = [hit.score for passage in one for hit in passage.hits]
            for other in others:
                assert keys(other) == keys(one), query
                assert [(p.start, p.end, p.text) for p in other] == [(p.start, p.end, p.text) for p in one]
                assert [h.score for p in other for h in p.hits] == pytest.approx(scores, abs=1e-4)


def test_duplicates_tie_and_come_in_order_of_their_ids(sharded: dict[int, Snapshot]) -> None:
    for opened in sharded.values():
        for mode in MODES:
            found = opened.search("Twin. The roof leaks in winter.", k=6, mode=mode)
            assert keys(found) == [(name, 0) for name in ("a", "m", "n05x", "n10x", "z", "zz")]
            if mode != "hybrid":
                assert len({passage.score for passage in found}) == 1
            assert keys(opened.search("Twin. The roof leaks in winter.", k=2, mode=mode)) == [("a", 0), ("m", 0)]


def stored_files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * place)] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped at the start": lambda path: flip(path, 0),
    "flipped in the middle": lambda path: flip(path, 0.5),
    "flipped at the end": lambda path: flip(path, 1),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name_before_it_serves(copied: Path, damage: str) -> None:
    names = stored_files(copied)
    assert len(names) > 30
    for name in names:
        kept = (copied / name).read_bytes()
        DAMAGES[damage](copied / name)
        try:
            if name.startswith(layout.MANIFESTS) and damage == "missing":
                with pytest.raises(ConfigError, match="holds no snapshot"):
                    use(str(copied))
            else:
                with pytest.raises(OperationError) as caught:
                    use(str(copied))
                assert name in str(caught.value)
        finally:
            (copied / name).write_bytes(kept)
    assert use(str(copied))


def test_files_of_two_segments_swapped_are_refused_by_name(copied: Path) -> None:
    one, other = sorted((copied / "segments").iterdir())
    for name in stored_files(one):
        kept = (one / name).read_bytes(), (other / name).read_bytes()
        (one / name).write_bytes(kept[1])
        (other / name).write_bytes(kept[0])
        try:
            with pytest.raises(OperationError, match=f"{name} differs from its manifest"):
                use(str(copied))
        finally:
            (one / name).write_bytes(kept[0])
            (other / name).write_bytes(kept[1])
    assert use(str(copied))


def test_a_stray_commit_in_a_lexical_directory_is_not_served(copied: Path) -> None:
    lexical = min((copied / "segments").iterdir()) / "lexical"
    shutil.copy(lexical / "segments_1", lexical / "segments_2")
    try:
        with pytest.raises(OperationError, match="lexical"):
            use(str(copied))
    finally:
        (lexical / "segments_2").unlink()


def test_another_embedder_is_refused(copied: Path) -> None:
    found = manifest.require_latest(open_storage(str(copied)))
    other = {**found.fingerprints, "embedding": "another"}
    opened = Snapshot(open_storage(str(copied)), replace(found, fingerprints=other))
    with pytest.raises(OperationError, match="embedder fake here is not the one"):
        opened.search("roof")


def test_a_snapshot_on_s3_answers_as_on_a_disk_and_is_fetched_once(
    remote: Storage, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert use(remote.uri) == use(str(copied))
    fetched: list[str] = []
    monkeypatch.setattr(type(remote), "fetch", lambda self, name, path: fetched.append(name))
    assert use(remote.uri) == use(str(copied))
    assert fetched == []


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_damage_on_s3_is_refused_by_name(remote: Storage, damage: str) -> None:
    first = min(entry.name for entry in remote.list(layout.SEGMENTS)).rpartition("/")[0]
    entries = [entry for entry in remote.list(first) if layout.LEXICAL not in entry.name or entry.name.endswith(".si")]
    assert len(entries) == 6
    for entry in entries:
        kept = remote.get(entry.name)
        if damage == "missing":
            remote.delete(entry.name)
        else:
            remote.put(entry.name, bytes([kept[0] ^ 1]) + kept[1:-1] + bytes([kept[-1] ^ 1]))
        shutil.rmtree(os.environ["SITUATE_CACHE"], ignore_errors=True)
        with pytest.raises(OperationError) as caught:
            use(remote.uri)
        assert entry.name in str(caught.value)
        remote.put(entry.name, kept)
    assert use(remote.uri)


def test_a_damaged_copy_of_a_remote_file_is_fetched_again(remote: Storage, tmp_path: Path) -> None:
    expected = use(remote.uri)
    copies = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(copies) > 30
    for path in copies:
        flip(path, 0.5)
    assert use(remote.uri) == expected
