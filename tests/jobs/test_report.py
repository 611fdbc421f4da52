"""The report: what stands in it, that nothing in it can run or load, and that it can be looked at."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from enrichment.errors import ConfigError
from jobs import cli, report, stored_bytes

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'x' <img src=x onerror=alert(1)> \u202e"
EVALUATION = {
    "measure": "recall@10",
    "questions": 9,
    "best": {"plain": "dense body"},
    "recommendation": f"the plain text is enough {HOSTILE}",
    "combinations": [
        {"name": "dense body", "scores": {"recall@10": 0.5}, "interval": [0.4, 0.6]},
        {"name": f"lexical {HOSTILE}", "scores": {"recall@10": 0.7}, "interval": [0.6, 0.8]},
    ],
    "won": [{"points": 100.0, "query": HOSTILE, "context": HOSTILE}],
    "lost": [],
}


class Tags(HTMLParser):
    """The elements of a page and their attributes, as a browser sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture
def corpus(nights: Any, no_lexical: None) -> Any:
    nights.write(
        **{
            "good.md": "# Good\n\nOne thing holds here. Another holds there. And a third.\n",
            "hostile.md": f"# {HOSTILE}\n\n{HOSTILE} is here. {HOSTILE} is there too.\n",
            f"bad {HOSTILE[:8].replace('/', '')}.md": b"\xff\xfe\xfd",
        }
    )
    nights.refresh()
    nights.write(new="# New\n\nIt is new. It is here.\n")
    nights.refresh()
    return nights


def test_a_page_tells_what_the_run_did_and_shows_samples(corpus: Any, tmp_path: Path) -> None:
    page = report.page(corpus.storage, corpus.manifest, None)
    for expected in (
        "Snapshot 2 of",
        "chunks by status",
        "Samples, before and after",
        "is known as",
        "quarantine",
        "new.md",
    ):
        assert expected in page, expected
    assert page.count("<figure>") >= 4 and page.count("<svg") == page.count("<figure>")
    assert "Not evaluated" in page and "bad" in page


def test_what_windows_would_take_is_counted_within_documents(corpus: Any) -> None:
    """By hand: chunks of 10, 20, 30, 40, 50 bytes and one of 7, with one on each side, then with three."""
    ends = [10, 30, 60, 100, 150]
    rows = {"document_id": ["a"] * 5 + ["b"], "byte_start": [0, *ends[:-1], 0], "byte_end": [*ends, 7]}
    assert stored_bytes.of_windows(pa.table(rows), 1) == 30 + 60 + 90 + 120 + 90 + 7
    assert stored_bytes.of_windows(pa.table(rows), 3) == 100 + 150 + 150 + 150 + 140 + 7
    assert stored_bytes.of_windows(pa.table(rows).slice(0, 0)) == 0
    page = report.page(corpus.storage, corpus.manifest, None)
    originals = sum(f.size_bytes for s in corpus.manifest.segments for f in s.files if f.name == "originals.bin")
    assert f"<td>originals.bin</td><td class=n>{originals:,} bytes</td><td class=n>1.00 x the text</td>" in page
    assert "windows of 3 chunks on each side" in page


def test_text_of_documents_models_and_evaluations_is_only_text(corpus: Any) -> None:
    page = report.page(corpus.storage, corpus.manifest, EVALUATION)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "the plain text is enough" in page
    found = Tags()
    found.feed(page)
    assert not found.names & {"script", "img", "iframe", "link", "object", "embed", "form", "a", "image"}
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]
    assert all(value.startswith("#") for name, value in found.attributes if name.endswith("href")), "nothing is loaded"
    assert "default-src 'none'" in page


def test_names_inside_pictures_do_not_collide(corpus: Any) -> None:
    page = report.page(corpus.storage, corpus.manifest, EVALUATION)
    pictures = re.findall(r"<svg.*?</svg>", page, re.S)
    paths = [set(re.findall(r'clipPath id="([^"]+)"', picture)) for picture in pictures]
    seen: set[str] = set()
    for names in paths:
        assert not names & seen
        seen |= names


def test_the_command_writes_it_and_a_collected_run_is_no_matter(
    corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for entry in list(corpus.storage.list("runs/")):
        corpus.storage.delete(entry.name)
    out = tmp_path / "report.html"
    (tmp_path / "e.json").write_text(json.dumps(EVALUATION))
    asked = ["report", str(corpus.root / "corpus"), "--out", str(out)]
    assert cli.main([*asked, "--evaluation", str(tmp_path / "e.json")]) == 0
    assert "about snapshot 2" in capsys.readouterr().out and "recall@10 of 9 questions" in out.read_text()
    assert cli.main([*asked, "--snapshot", "1"]) == 0
    assert "Snapshot 1 of" in out.read_text()
    (tmp_path / "e.json").write_text("{}")
    assert cli.main([*asked, "--evaluation", str(tmp_path / "e.json")]) == 2
    assert "is not what `situate evaluate --json` prints" in capsys.readouterr().err
    assert cli.main([*asked[:3], str(tmp_path / "no" / "r.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_forced_gate_is_told(corpus: Any) -> None:
    import dataclasses

    gate = {"recall": 0.5, "questions": 2, "asked": "x", "refused": ["too few"], "forced": HOSTILE}
    page = report.page(corpus.storage, dataclasses.replace(corpus.manifest, gate=gate), None)
    assert "Published although the gate refused" in page and "too few" in page and "found 0.500" in page


def test_a_store_without_a_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no snapshot"):
        report.write(str(tmp_path / "none"), tmp_path / "r.html")
