"""A process that reads a corpus over and over: opens the newest snapshot, searches, and keeps every answer it has not had yet.

On stdin a line of JSON begins, `{"corpus": uri, "questions": [...], "cache": folder}`, and an empty line ends it. On stdout, in
the end, one line: `{"reads": number, "answers": {sequence: [answers, each a JSON text]}, "errors": [...]}`.
"""

import contextlib
import json
import os
import select
import sys
import tempfile
from typing import Any

from indexing import serving

PAUSE_S = 0.15  # between reads: two cores are also for the run that is read beside


def main() -> None:
    """Serve until stdin ends."""
    print("ready", flush=True)
    while line := sys.stdin.readline():
        print(json.dumps(watch(**json.loads(line))), flush=True)


def watch(corpus: str, questions: list[str], cache: str) -> dict[str, Any]:
    """Read until a line comes."""
    reads, answers, errors = 0, dict[int, set[str]](), set[str]()
    over = False
    with tempfile.TemporaryDirectory(dir=cache) as own:
        os.environ["SITUATE_CACHE"] = own
        while not over:
            over = bool(select.select([sys.stdin], [], [], PAUSE_S)[0])  # once more after the end
            try:
                with contextlib.closing(serving.open(corpus)) as opened:  # thousands of them, night after night
                    found = [[passage.as_dict() for passage in opened.search(question, 5)] for question in questions]
                    answers.setdefault(opened.manifest.sequence, set()).add(json.dumps(found))
                reads += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, a reader saw it
                errors.add(f"{type(error).__name__}: {error}")
    sys.stdin.readline()
    return {"reads": reads, "answers": {n: sorted(found) for n, found in answers.items()}, "errors": sorted(errors)}


if __name__ == "__main__":
    main()
