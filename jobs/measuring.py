"""The commands that measure, and what their arguments mean. Nothing heavy is imported before a command runs.

A command takes the parsed arguments and gives the record that `--json` prints, what people see of it, and what is wrong, if
anything is.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from enrichment.errors import ConfigError


class Outcome(NamedTuple):
    """`complaint` makes the exit status 1."""

    record: dict[str, Any]
    shown: Callable[[dict[str, Any]], Any]
    complaint: str | None = None


def run(options: argparse.Namespace) -> Outcome:
    """Carry out the command that was parsed. Raises ConfigError also for a package that is not installed."""
    try:
        return _COMMANDS[options.command](options)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{options.command} needs the package {error.name}; install situate[evaluate]") from error


def _evaluate(options: argparse.Namespace) -> Outcome:
    from enrichment.rerank import RerankOptions
    from jobs import config, evaluate, evaluation_table, golden, variants
    from jobs.evaluate import EvaluateOptions
    from jobs.progress import Progress

    asked = EvaluateOptions(
        varied=tuple(map(variants.parse_varied, options.vary)),
        windows=tuple(options.window),
        window_by=options.window_by,
        fusions=tuple(map(_fusion, options.fusion)) or EvaluateOptions().fusions,
        measure=options.measure,
        sample=options.sample,
        into=options.into,
        rerank=RerankOptions(options.rerank) if options.rerank else None,
    )
    questions = golden.read(options.queries, options.qrels)
    found = evaluate.evaluate(config.load(options.config), questions, Progress(), asked, options.address)
    if options.out:
        found.write(options.out)
    return Outcome(dict(found.record), evaluation_table.shown)


def _check(options: argparse.Namespace) -> Outcome:
    from jobs import check, evaluation_table

    record, complaint = check.run(options)
    return Outcome(record, evaluation_table.checked, complaint)


def _questions(options: argparse.Namespace) -> Outcome:
    from jobs import config, evaluation_table, questions
    from jobs.progress import Progress

    record = questions.write(config.load(options.config), options.n, options.out, Progress())
    none = f"no question could be written from {sum(record['passages'].values())} passages; use a larger model"
    return Outcome(record, evaluation_table.written, None if record["questions"] else none)


def _report(options: argparse.Namespace) -> Outcome:
    from rich.text import Text

    from jobs import report

    record = report.write(options.corpus, options.out, options.snapshot, options.evaluation)
    return Outcome(record, lambda record: Text(f"wrote {record['file']} about snapshot {record['snapshot']}"))


def _fusion(text: str) -> Any:
    from indexing.fusion import Fusion

    method, *weights = text.split(":")
    try:
        if method not in ("rrf", "scores") or len(weights) not in (0, 2, 3):
            raise ValueError(text)
        return Fusion(method, *map(float, weights))  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(
            f"--fusion {text} is neither rrf nor scores, with weights such as scores:1:0.5 or scores:1:0.5:0.5"
        ) from error


_COMMANDS: dict[str, Callable[[argparse.Namespace], Outcome]] = {
    "evaluate": _evaluate,
    "check": _check,
    "questions": _questions,
    "report": _report,
}
