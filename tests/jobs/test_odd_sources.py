"""One odd file or record is one quarantined document by name; the others go on."""

import os
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from enrichment.errors import ConfigError
from jobs import sources
from jobs.config import DocumentsOptions

GOOD = "# Good\n\nA good document.\n"


def problems(folder: Path) -> dict[str, str | None]:
    """The fate of every record of a folder: null for a document, else its reason."""
    listing = sources.list_files(DocumentsOptions(uri=str(folder)))
    reader = sources.SourceReader(listing.root)
    fates: dict[str, str | None] = {}
    for file in listing.files:
        for ref in sources.scan_file(listing.root, file, 1 << 20).to_pylist():
            try:
                reader.load(ref)
                fates[ref["id"]] = None
            except sources.DocumentError as error:
                fates[ref["id"]] = error.reason
    return fates


@pytest.mark.parametrize("escape", ["\\U00110000", "\\UFFFFFFFF"])
def test_front_matter_that_no_text_can_hold_is_text(tmp_path: Path, escape: str) -> None:
    (tmp_path / "good.md").write_text(GOOD)
    (tmp_path / "odd.md").write_text(f'---\ntitle: "{escape}"\n---\n# Odd\n')
    assert problems(tmp_path) == {"good.md": None, "odd.md": None}


def test_links_in_a_circle_are_unreadable_and_pipes_and_sockets_are_no_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.md").write_text(GOOD)
    (tmp_path / "a.md").symlink_to(tmp_path / "b.md")
    (tmp_path / "b.md").symlink_to(tmp_path / "a.md")
    os.mkfifo(tmp_path / "pipe.md")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # a socket's path may not be long
        listening.bind("socket.md")
        assert problems(tmp_path) == {"a.md": "unreadable", "b.md": "unreadable", "good.md": None}


def test_a_column_that_no_json_can_hold_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text(GOOD)
    metadata = pa.array([[(b"k", "v")]], pa.map_(pa.binary(), pa.string()))
    pq.write_table(pa.table({"id": ["p"], "text": ["some text"], "metadata": metadata}), tmp_path / "odd.parquet")
    fates = problems(tmp_path)
    assert fates.pop("good.md") is None
    assert len(fates) == 1


def test_a_source_below_the_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus" / "segments").mkdir(parents=True)
    options = DocumentsOptions(uri=str(tmp_path / "corpus" / "segments"))
    with pytest.raises(ConfigError, match="lies in the corpus"):
        sources.list_files(options, besides=str(tmp_path / "corpus"))
