"""The command `situate`: parse, call one function, print. Nothing heavy is imported before a command needs it.

Results go to stdout, everything else to stderr; with `--json` stdout is exactly one JSON object. Exit status: 0 done within the
configured limits, 1 failed, 2 bad usage or configuration, 3 published but a limit was exceeded, 4 a publish gate refused.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from enrichment.errors import ConfigError, PublishGateError, SituateError
from jobs import arguments, export, measuring, native_output, search_command, serve

logger = logging.getLogger(__name__)

DONE, FAILED, BAD_USAGE, LIMIT_EXCEEDED, GATE_REFUSED = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parser().parse_args(given)
    except ConfigError as error:
        return _failed("--json" in given, str(error), BAD_USAGE)
    with native_output.filtered():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' own bars; ours say what is going on
    level = logging.INFO if options.verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    try:
        status: int = options.run(options)
    except SituateError as error:
        statuses = {ConfigError: BAD_USAGE, PublishGateError: GATE_REFUSED}
        return _failed(options.json, str(error), next((s for k, s in statuses.items() if isinstance(error, k)), FAILED))
    except KeyboardInterrupt:
        return _failed(options.json, "interrupted; run the same command again to continue", FAILED)
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a sentence for the user, the traceback for a report
        logger.info("this is unexpected", exc_info=True)
        cause = getattr(error, "cause", None) or error  # Ray wraps what a worker raised
        text = (str(cause).strip() or "no message").splitlines()[-1]
        return _failed(options.json, f"{type(cause).__name__}: {text} (the traceback: add -v)", FAILED)
    return status


def _failed(as_json: bool, sentence: str, status: int) -> int:
    if as_json:
        print(json.dumps({"error": sentence}))
    print(f"situate: {sentence}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as every command does, in one sentence, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"situate {version('situate')}")
        parser.exit(DONE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="situate", description="Enrich document collections so that search over their chunks works.")
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_argument("-v", "--verbose", action="store_true", help="log what happens to stderr")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=[common])
        added.set_defaults(run=run, command=name)
        return added

    added = command("init", _init, "write a starter configuration for a folder of documents")
    added.add_argument("directory", type=Path)
    added = command("doctor", _doctor, "say what is missing on this machine and how to get it")
    added.add_argument("config", type=Path, nargs="?")
    added = command("refresh", _refresh, "the main job: bring a corpus up to date with its sources")
    added.add_argument("config", type=Path)
    added.add_argument("--address", help="a Ray to join (default: RAY_ADDRESS, else one of this machine)")
    added.add_argument(
        "--allow-deletes", action="store_true", help="delete what is absent, however much (limits.deleted)"
    )
    added.add_argument(
        "--retry-failed", action="store_true", help="try again what failed or was refused, however often it was tried"
    )
    added.add_argument(
        "--single-writer", action="store_true", help="go on with a store that ignores conditional writes"
    )
    added.add_argument(
        "--max-tokens", type=float, metavar="N", help="to read and write; what is over waits for a later night"
    )
    added.add_argument("--max-minutes", type=float, metavar="N", help="the same, by the speed of earlier runs")
    added.add_argument("--force", metavar="REASON", help="publish what the gate refuses; the manifest keeps the reason")
    added = command("plan", _plan, "what a refresh would do and cost; touches nothing")
    added.add_argument("config", type=Path)
    added.add_argument("--address", help="as of refresh")
    added.add_argument("--sample", type=float, default=1.0, metavar="SHARE", help="look at this share of the work")
    added.add_argument(
        "--tokens-per-s", type=float, metavar="N", help="read and written, all replicas (default: as in earlier runs)"
    )
    added.add_argument("--dollars-per-hour", type=float, metavar="N", help="of all machines together")
    added = command("status", _status, "the run in progress, or the last one")
    added.add_argument("corpus")
    added.add_argument("--watch", action="store_true", help="repeat until the run is over")
    added.add_argument("--max-age", type=float, metavar="HOURS", help="exit 1 if the last success is older")
    search_command.add_arguments(command("search", _search, "search a corpus; the answer is original text"))
    added = command("show", _show, "a document or a chunk: original and context side by side")
    added.add_argument("corpus")
    added.add_argument("document")
    added.add_argument("chunk", type=int, nargs="?")
    search_command.add_window(added, "the chunk")
    arguments.add_upkeep(command, _upkeep)
    arguments.add_measuring(command, _measuring)
    export.add_arguments(command("export", _export, "write rows, contexts and vectors for other search systems"))
    serve.add_arguments(command("serve", _serve, "answer searches over HTTP, and show a page for people"))
    added = command("submit", _submit, "run a refresh on a Ray cluster")
    added.add_argument("config", type=Path)
    added.add_argument("--address", required=True, help="the cluster's job server, such as http://127.0.0.1:8265")
    added.add_argument("--single-writer", action="store_true", help="as of refresh")
    added.add_argument("--no-wait", action="store_true", help="return once the job is accepted")
    return parser


def _print(options: argparse.Namespace, result: dict[str, Any], text: Any) -> None:
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        from jobs import console

        console.show(text(result))


def _init(options: argparse.Namespace) -> int:
    from jobs import console, starter

    _print(options, starter.write(options.directory), console.started)
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    from jobs import config, console, doctor

    result = doctor.examine(config.load(options.config) if options.config else None)
    _print(options, result, console.diagnosis)
    return DONE if result["ok"] else FAILED


def _refresh(options: argparse.Namespace) -> int:
    from jobs import config, console, refresh
    from jobs.difference import Asked
    from jobs.progress import Progress

    loaded = config.load(options.config)
    caps = options.max_tokens, options.max_minutes
    asked = Asked(options.allow_deletes, options.retry_failed, *caps, options.force)
    result = refresh.refresh(loaded, Progress(), options.address, asked, options.single_writer)
    _print(options, result.as_dict(), lambda record: console.refreshed(record, loaded.corpus))
    for sentence in result.exceeded:
        print(f"situate: {'published, but ' if result.published else ''}{sentence}", file=sys.stderr)
    return LIMIT_EXCEEDED if result.exceeded else DONE


def _plan(options: argparse.Namespace) -> int:
    from jobs import config, console, plan
    from jobs.progress import Progress

    prices = plan.Prices(options.tokens_per_s, options.dollars_per_hour)
    found = plan.plan(config.load(options.config), Progress(), options.address, options.sample, prices)
    _print(options, found.as_dict(), console.planned)
    return DONE


def _status(options: argparse.Namespace) -> int:
    import time

    from jobs import console, status

    result = status.read(options.corpus)
    while options.watch and result["stage"] not in status.ENDED:
        print(console.progress_line(result), file=sys.stderr)
        time.sleep(5)
        result = status.read(options.corpus)
    _print(options, result, console.run_status)
    success = result["last_success"]
    if options.max_age is not None and (success is None or success["age_s"] > options.max_age * 3600):
        since = f"was {success['age_s'] / 3600:.1f} hours ago" if success else "is not known"
        print(f"situate: the last success of {options.corpus} {since}; see what stops the refresh", file=sys.stderr)
        return FAILED
    return DONE


def _upkeep(options: argparse.Namespace) -> int:
    from rich.text import Text

    from jobs import upkeep

    record, lines, complaint = upkeep.COMMANDS[options.command](options)
    _print(options, record, lambda _: Text("\n".join(lines)))
    return _complained(complaint)


def _complained(complaint: str | None) -> int:
    if complaint is not None:
        print(f"situate: {complaint}", file=sys.stderr)
    return FAILED if complaint is not None else DONE


def _measuring(options: argparse.Namespace) -> int:
    record, shown, complaint = measuring.run(options)
    _print(options, record, shown)
    return _complained(complaint)


def _search(options: argparse.Namespace) -> int:
    from jobs import console

    _print(options, search_command.run(options), lambda record: console.passages(record, options.query))
    return DONE


def _show(options: argparse.Namespace) -> int:
    from indexing.expansion import Expansion
    from jobs import console, show

    if options.window < 0:
        raise ConfigError(f"--window is {options.window}; it must be at least 0")
    if options.window and options.chunk is None:
        raise ConfigError(f"--window is {options.window}, but no chunk is named; give its number behind the document")
    how = Expansion("window", options.window, options.window_by, options.within is not None)
    _print(options, show.read(options.corpus, options.document, options.chunk, how), console.shown)
    return DONE


def _export(options: argparse.Namespace) -> int:
    _print(options, export.run(options), export.line)
    return DONE


def _serve(options: argparse.Namespace) -> int:
    from rich.text import Text

    def announce(record: dict[str, Any]) -> None:
        line = f"snapshot {record['snapshot']} of {options.corpus} answers at {record['url']}"
        _print(options, record, lambda _: Text(line))
        sys.stdout.flush()

    serve.serve(options, announce)
    return DONE


def _submit(options: argparse.Namespace) -> int:
    from jobs import config, console, submit

    loaded, wait = config.load(options.config), not options.no_wait
    result = submit.submit(options.config, loaded, options.address, wait, options.single_writer)
    _print(options, result, console.submitted)
    return LIMIT_EXCEEDED if result["status"] == submit.LIMIT_EXCEEDED else DONE


if __name__ == "__main__":
    sys.exit(main())
