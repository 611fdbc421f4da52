"""Sentence windows: `python benchmarks/sentence_windows.py SOURCES QUESTIONS [--header]`.

A corpus of one sentence per chunk, in a temporary folder, without a language model; the sentence alone is embedded, or with
`--header` its header too. Printed for each window: the share of the golden characters that the 10 best hits cover, the
questions answered whole, those of them that smaller windows did not answer, and the characters returned; then what the text
takes as it is stored, and what windows of three sentences stored with every row would take. Hybrid search, MiniLM, BM25 over
header and text.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from indexing import heartbeat, layout
from indexing.expansion import Expansion
from indexing.snapshot import Snapshot, open_snapshot
from indexing.storage import open_storage
from jobs import config, golden, local_flow, refresh, stored_bytes
from jobs.golden import Golden, GoldenSpan
from jobs.judging import covered
from jobs.progress import Progress

K, MOST = 10, 5


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", help="a folder of documents")
    parser.add_argument("questions", type=Path, help="JSON lines with spans")
    parser.add_argument("--header", action="store_true", help="embed title and headings before each sentence")
    parser.add_argument("--embedding", default="all-minilm-l6-v2")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="situate-sentences-") as root:
        settings = {
            "corpus": f"{root}/corpus",
            "documents": {"uri": options.sources},
            "split": {"by": "sentences"},
            "context": {"strategy": "header"},
            "embedding": {"name": options.embedding},
            "index": {"dense_text": ["header", "body"] if options.header else ["body"]},
        }
        parsed = config.parse(settings)
        checked = refresh.check(parsed)
        refresh.night(heartbeat.new_run_id(), None, parsed, checked, Progress(show=False), local_flow)
        snapshot = open_snapshot(open_storage(parsed.corpus))
        print_windows(snapshot, golden.read(options.questions))
        print_bytes(snapshot, Path(parsed.corpus))


def print_windows(snapshot: Snapshot, questions: Golden) -> None:
    """A line per window. The hits are the same in all of them."""
    wanted = [questions.spans[name] for name in questions.queries]
    rankings = snapshot.open_indexes().search_many(list(questions.queries.values()), K)
    answered: set[str] = set()
    print("| window | recall | answered whole | newly | characters |\n|---|---|---|---|---|")
    for window in range(MOST + 1):
        answers = [snapshot.passages(ranking, K, Expansion(window=window), None) for ranking in rankings]
        shares = [
            covered(spans, [GoldenSpan(each.document_id, each.start, each.end) for each in passages])
            for spans, passages in zip(wanted, answers, strict=True)
        ]
        whole = {name for name, share in zip(questions.queries, shares, strict=True) if share == 1}
        characters = sum(len(each.text) for passages in answers for each in passages) / len(answers)
        new = " ".join(sorted(whole - answered)) if window else "-"
        cells = [f"{100 * sum(shares) / len(shares):.1f}", f"{len(whole)} of {len(shares)}", new, f"{characters:,.0f}"]
        print(f"| {window} | {' | '.join(cells)} |")
        answered |= whole


def print_bytes(snapshot: Snapshot, corpus: Path) -> None:
    """Bytes of text: of the documents, as stored here, and as windows on each side would take."""
    text = stored_bytes.by_kind(snapshot.manifest)[layout.ORIGINALS]
    stored = text
    for segment in snapshot.manifest.segments:
        rows = pq.ParquetFile(corpus / layout.SEGMENTS / segment.id / layout.ROWS)
        groups = [rows.metadata.row_group(number) for number in range(rows.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        stored += sum(column.total_compressed_size for column in columns if column.path_in_schema == "text")
    windows = stored_bytes.of_windows(snapshot.live_rows(stored_bytes.WINDOW_COLUMNS))
    print(f"\ntext {text:,} bytes; stored {stored:,} = originals and compressed rows, {stored / text:.2f} x")
    print(f"windows of {stored_bytes.WINDOW} stored with every row: {windows:,} bytes, {windows / text:.2f} x the text")


if __name__ == "__main__":
    main()
