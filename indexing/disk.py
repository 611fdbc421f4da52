"""Files on this machine's disks: what the system refuses to write becomes one sentence, with the file and what to do.

Not here: what makes a write durable and visible at once, which is the store's part (`storage.py`).
"""

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from enrichment.errors import OperationError

_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
}
_TRIAL_BYTES = 1 << 20


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file that cannot be written. Raises OperationError."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = _ADVICE.get(error.errno or 0, "see that it can be written")
        raise OperationError(f"{path} cannot be written: {reason}; {advice} and run the same command again") from error


@contextlib.contextmanager
def temporary(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """A folder that is gone with its content when this is over."""
    with writing(within or Path(os.environ.get("TMPDIR", "/tmp"))):
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=within)
    with folder as name:
        yield Path(name)


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_room(folder: Path) -> None:
    """Whether more can be written into a folder, tried with a megabyte. Raises OperationError if not.

    For writers that do not say why they failed, or do not know it.
    """
    trial = folder / ".room"
    with writing(folder):
        try:
            with trial.open("wb") as file:
                file.write(bytes(_TRIAL_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            trial.unlink(missing_ok=True)
