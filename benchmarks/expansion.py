"""What windows, parents and runs find in the same room: `python benchmarks/expansion.py CORPUS QUESTIONS`.

For each way to expand hits and each budget: the mean share of the golden characters that the passages cover, in per cent, and
that recall per 1,000 characters returned. The k best hits are asked for, more than any budget here has room for, so that every
way fills its budget as far as whole passages go. Conditions: the corpus's own models and fusion, hybrid, no reranker.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from indexing.expansion import RUN_LENGTH, RUN_PENALTY, Expansion
from indexing.passages import Passage
from indexing.search import FUSION_DEPTH
from indexing.snapshot import open_snapshot
from indexing.storage import open_storage
from jobs import golden
from jobs.golden import GoldenSpan
from jobs.judging import covered


class Found(NamedTuple):
    """Means over the questions: the share of the golden characters, and the characters returned."""

    recall: float
    characters: float

    def cell(self) -> str:
        """Recall in per cent / the same per 1,000 characters."""
        per_thousand = 1000 * self.recall / self.characters if self.characters else 0.0
        return f"{100 * self.recall:.1f} / {100 * per_thousand:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("questions", type=Path, help="JSON lines with spans, as examples/handbook-questions.jsonl")
    parser.add_argument("-k", type=int, default=30)
    parser.add_argument("--budgets", type=int, nargs="+", default=[2000, 4000, 8000], metavar="CHARACTERS")
    parser.add_argument("--penalties", type=float, nargs="+", default=[RUN_PENALTY], metavar="P", help="of runs")
    parser.add_argument("--lengths", type=int, nargs="+", default=[RUN_LENGTH], metavar="N", help="of runs, in chunks")
    parser.add_argument("--only", default="", metavar="START", help="ways whose names begin so, such as run")
    options = parser.parse_args(arguments)
    questions, snapshot = golden.read(options.questions), open_snapshot(open_storage(options.corpus))
    print(f"{len(questions.queries)} questions, {options.corpus}, k {options.k}")
    print(f"| | {' | '.join(f'{budget:,}' for budget in options.budgets)} |")
    print("|---" * (1 + len(options.budgets)) + "|")
    found = ways(options.penalties, options.lengths)
    rankings = snapshot.open_indexes().search_many(list(questions.queries.values()), max(options.k, FUSION_DEPTH))
    wanted = [questions.spans[name] for name in questions.queries]
    for name, how in ((name, how) for name, how in found.items() if name.startswith(options.only)):
        cells = []
        for budget in options.budgets:
            answers = [snapshot.passages(ranking, options.k, how, budget) for ranking in rankings]
            cells.append(measured(answers, wanted).cell())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def ways(penalties: Sequence[float], lengths: Sequence[int]) -> dict[str, Expansion]:
    """By the names that the table gives them."""
    found = {f"window of {size} chunks": Expansion(window=size) for size in range(4)}
    found["window of 1 chunk, within section"] = Expansion(window=1, within_section=True)
    found |= {f"window of {n} characters": Expansion(window=n, window_by="characters") for n in (100, 200, 400, 800)}
    found |= {f"window of {n} tokens": Expansion(window=n, window_by="tokens") for n in (25, 50, 100, 200)}
    found["parent"] = Expansion("parent")
    for penalty, length in itertools.product(penalties, lengths):
        how = Expansion("run", run_penalty=penalty, run_length=length)
        found[f"run, penalty {penalty:g}, at most {length} chunks"] = how
    return found


def measured(answers: Sequence[Sequence[Passage]], wanted: Sequence[Sequence[GoldenSpan]]) -> Found:
    """What the passages of some questions are worth."""
    recall, characters = 0.0, 0
    for passages, spans in zip(answers, wanted, strict=True):
        recall += covered(spans, [GoldenSpan(each.document_id, each.start, each.end) for each in passages])
        characters += sum(len(each.text) for each in passages)
    return Found(recall / len(wanted), characters / len(wanted))


if __name__ == "__main__":
    main()
