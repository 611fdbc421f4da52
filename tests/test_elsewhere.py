"""What docs/elsewhere.md says is run as it stands; the two retrievers against the real packages."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from indexing import serving
from indexing.search import Mode
from jobs.difference import Asked

DELETE = Asked(True, False)
ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "elsewhere.md").read_text()
QUERY = "who may work from home"
NASTY = "Tab\there. Back\\slash and \\N. Carriage\r\nreturn. Work from home, they may. Line\u2028separator. NUL\0 too."


def blocks(heading: str, language: str = "python") -> list[str]:
    """The code blocks below a heading, as they stand."""
    section = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, heading
    return re.findall(rf"^```{language}\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def nights(nights_in: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two nights of a small corpus in which a document that matches best is dead. Read it, or work on a copy."""
    found = nights_in(tmp_path_factory.mktemp("elsewhere"))
    found.write(remote=f"# Remote work\n\nEvery employee may work from home. {NASTY}\n\n## Pay\n\nNothing changes.\n")
    found.write(cars="# Vehicles\n\nCars are washed. Keys are returned.\n", long="home " * 600 + "end. It ends.")
    found.write(dead=f"# Old\n\n{QUERY}. {QUERY}. Who may work from home?\n")
    found.refresh()
    found.write(dead=None)
    found.refresh(DELETE)
    assert found.manifest.dead
    return found


@pytest.fixture(scope="module")
def place(nights: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `corpora/handbook` and what the blocks before wrote."""
    root = tmp_path_factory.mktemp("place")
    shutil.copytree(nights.root / "corpus", root / "corpora" / "handbook")
    run(root, *blocks("An export", "bash"), shell=True)
    return root


def run(root: Path, *codes: str, shell: bool = False) -> str:
    """Run blocks one after the other, each in a process of its own."""
    output = ""
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for code in codes:
        command = ["bash", "-ec", code] if shell else [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=root, env={**os.environ, **path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        output += done.stdout
    return output


def test_every_block_of_the_page_is_run() -> None:
    tested = ("One segment with plain FAISS", "One segment with plain pyserini", "An export")
    tested += ("Into OpenSearch, Qdrant, PostgreSQL", "LangChain", "LlamaIndex")
    kinds = {kind: len(re.findall(rf"^```{kind}$", PAGE, re.MULTILINE)) for kind in ("python", "bash", "text")}
    assert sum(len(blocks(heading)) for heading in tested) == kinds["python"] == 9
    assert len(blocks("An export", "bash")) == kinds["bash"] == 1
    assert len(re.findall("^```", PAGE, re.MULTILINE)) == 2 * sum(kinds.values())


@pytest.mark.parametrize("heading", ["One segment with plain FAISS", "One segment with plain pyserini"])
def test_plain_readers_find_what_this_program_finds(place: Path, nights: Any, heading: str) -> None:
    mode: Mode = "dense" if "FAISS" in heading else "lexical"
    lines = run(place, *blocks(heading)).splitlines()
    found = [match for line in lines if (match := re.match(r"([\d.]+) (\S+) (\d+) '", line))]
    said = list(dict.fromkeys((match[2], int(match[3])) for match in found))
    hits = serving.open(str(place / "corpora/handbook")).search(QUERY, 10, mode)
    ours = {(p.document_id, hit.chunk_index): hit.score for p in hits for hit in p.hits}
    assert said and not any(name == "dead.md" for name, _ in said)
    assert set(said) <= set(ours) and said[0] == max(ours, key=lambda chunk: ours[chunk])
    assert float(found[0][1]) == pytest.approx(max(ours.values()), abs=1e-3)


def test_the_export_is_read_with_plain_pyarrow(place: Path, nights: Any) -> None:
    output = run(place, *blocks("An export"))
    records = pq.read_metadata(place / "rows.parquet").num_rows
    assert f"snapshot 2 of vectors by fake\n{records} records" in output
    assert records == len((place / "rows.jsonl").read_text().splitlines()) > nights.manifest.counts["chunks"]["total"]


@pytest.fixture(scope="module")
def loaded(place: Path) -> Path:
    run(place, *blocks("Into OpenSearch, Qdrant, PostgreSQL"))
    return place


def records_of(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(place / "rows.parquet").to_pylist()
    return found


def test_opensearch_gets_an_action_and_a_source_a_line_each(loaded: Path) -> None:
    data = b"".join(path.read_bytes() for path in sorted(loaded.glob("opensearch-*.ndjson")))
    assert data.endswith(b"\n") and data.isascii()
    lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
    records = records_of(loaded)
    assert lines[::2] == [{"index": {"_index": "handbook", "_id": record["id"]}} for record in records]
    assert lines[1::2] == [{**record, "metadata": json.loads(record["metadata"])} for record in records]
    index = json.loads((loaded / "opensearch-index.json").read_text())
    assert index["mappings"]["properties"]["vector"]["dimension"] == len(records[0]["vector"]) == 64


def test_qdrant_gets_points_with_uuids(loaded: Path) -> None:
    bodies = [json.loads(path.read_text()) for path in sorted(loaded.glob("qdrant-0*.json"))]
    points, records = [point for body in bodies for point in body["points"]], records_of(loaded)
    assert [set(point) for point in points] == [{"id", "vector", "payload"}] * len(records)
    assert [str(uuid.UUID(point["id"])) for point in points] == [record["id"] for record in records]
    assert [point["vector"] for point in points] == [record["vector"] for record in records]
    assert [point["payload"]["text"] for point in points] == [record["text"] for record in records]
    collection = json.loads((loaded / "qdrant-collection.json").read_text())
    assert collection == {"vectors": {"size": 64, "distance": "Dot"}}


def test_postgresql_gets_lines_that_copy_reads(loaded: Path) -> None:
    """Read back by the rules of COPY's text format."""
    escapes = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
    lines = (loaded / "chunks.copy").read_bytes().decode().split("\n")
    table = [
        [
            None if cell == r"\N" else re.sub(r"\\(.)", lambda match: escapes[match[1]], cell)
            for cell in line.split("\t")
        ]
        for line in lines[:-1]
    ]
    assert lines[-1] == "" and any("\0" in record["text"] for record in records_of(loaded))
    for cells, record in zip(table, records_of(loaded), strict=True):
        assert len(cells) == 10 and cells[0] == record["id"] and cells[7] == record["generated_context"]
        assert cells[8] == record["text"].replace("\0", "\ufffd") and "\0" not in "".join(c or "" for c in cells)
        assert json.loads(cells[9] or "") == record["vector"]
    assert "vector vector(64)" in (loaded / "chunks.sql").read_text()


@pytest.mark.parametrize("heading", ["LangChain", "LlamaIndex"])
def test_retrievers_run_as_the_page_says(place: Path, heading: str) -> None:
    output = run(place, *blocks(heading))
    assert "remote.md [" in output and "Every employee may work from home." in output and "dead.md" not in output


def langchain(corpus: serving.Corpus, **settings: Any) -> tuple[Any, Any]:
    from indexing.langchain_retriever import SituateRetriever

    retriever = SituateRetriever(corpus=corpus, **settings)

    def plain(documents: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(document.page_content, {**document.metadata, "id": document.id}) for document in documents]

    async def ask(query: str) -> list[tuple[str, dict[str, Any]]]:
        return plain(await retriever.ainvoke(query))

    return (lambda query: plain(retriever.invoke(query))), ask


def llama_index(corpus: serving.Corpus, **settings: Any) -> tuple[Any, Any]:
    from llama_index.core.schema import MetadataMode

    from indexing.llama_index_retriever import SituateRetriever

    retriever = SituateRetriever(corpus, **settings)

    def plain(nodes: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        for found in nodes:
            shown = found.node.get_content(MetadataMode.LLM)
            assert found.node.text.strip() in shown and found.metadata["document_id"] in shown
            assert found.score == found.metadata["score"] and found.node.ref_doc_id == found.metadata["document_id"]
            for context in filter(None, found.metadata["generated_contexts"]):
                assert context not in shown and context not in found.node.get_content(MetadataMode.EMBED)
        return [(found.node.text, {**found.metadata, "id": found.node.node_id}) for found in nodes]

    async def ask(query: str) -> list[tuple[str, dict[str, Any]]]:
        return plain(await retriever.aretrieve(query))

    return (lambda query: plain(retriever.retrieve(query))), ask


@pytest.mark.parametrize("framework", [langchain, llama_index])
def test_a_retriever_answers_with_original_text_and_follows_a_refresh(
    framework: Any, nights: Any, nights_in: Callable[[Path], Any], tmp_path: Path
) -> None:
    shutil.copytree(nights.root, tmp_path / "copy")
    mine = nights_in(tmp_path / "copy")
    corpus = serving.open(str(mine.root / "corpus"))
    ask, ask_async = framework(corpus, k=3, window=1)
    before = ask(QUERY)
    ours = corpus.search(QUERY, 3, window=1)
    assert [text for text, _ in before] == [passage.text for passage in ours]
    for (text, metadata), passage in zip(before, ours, strict=True):
        assert text == corpus.original(passage.document_id)[passage.start : passage.end]
        assert (metadata["document_id"], metadata["start"], metadata["end"]) == (
            passage.document_id,
            passage.start,
            passage.end,
        )
        assert metadata["chunk_indexes"] == [hit.chunk_index for hit in passage.hits]
        assert metadata["generated_contexts"] == [hit.context for hit in passage.hits]
        assert metadata["heading_paths"] == [list(hit.heading_path) for hit in passage.hits]
        assert metadata["score"] == passage.score and metadata["snapshot"] == 2
        json.dumps(metadata)
    assert any(metadata["generated_contexts"] != [None] for _, metadata in before)
    assert asyncio.run(ask_async(QUERY)) == before
    mine.write(remote=None, newer=f"# Newer\n\n{QUERY}, it was asked. All may work from home.\n")
    mine.refresh(DELETE)
    assert ask(QUERY) == before and corpus.refresh() is True
    after = asyncio.run(ask_async(QUERY))
    assert after == ask(QUERY) and after[0][1]["document_id"] == "newer.md" and after[0][1]["snapshot"] == 3
    assert "remote.md" not in {metadata["document_id"] for _, metadata in after}


@pytest.mark.parametrize("framework", [langchain, llama_index])
@pytest.mark.parametrize(
    "how",
    [
        {"window": 30, "window_by": "characters"},
        {"window": 4, "window_by": "tokens", "within_section": True},
        {"expand": "parent", "budget": 400},
        {"expand": "run", "run_penalty": 0.05, "run_length": 4},
    ],
)
def test_a_retriever_expands_hits_as_a_search_does(framework: Any, how: dict[str, Any], nights: Any) -> None:
    corpus = serving.open(str(nights.root / "corpus"))
    ask, _ = framework(corpus, k=3, **how)
    found = [text for text, _ in ask(QUERY)]
    assert found == [passage.text for passage in corpus.search(QUERY, 3, **how)]
    assert found != [passage.text for passage in corpus.search(QUERY, 3)]


def test_asynchronous_questions_do_not_wait_for_each_other_in_the_loop(nights: Any) -> None:
    """A search runs in a thread: the loop goes on."""
    corpus = serving.open(str(nights.root / "corpus"))
    _, ask = llama_index(corpus, k=3)

    async def both() -> tuple[Any, int]:
        ticks = 0
        question = asyncio.create_task(ask(QUERY))
        while not question.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return question.result(), ticks

    found, ticks = asyncio.run(both())
    assert found and ticks > 2
