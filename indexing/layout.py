"""The names of everything in a corpus store. Nothing else builds a name."""

MANIFESTS = "manifests/"
SEGMENTS = "segments/"
LEDGER = "ledger/"
RUNS = "runs/"
DEAD = "dead/"
TRAINED = "trained/"

DOCUMENTS = "documents.parquet"
ORIGINALS = "originals.bin"
ROWS = "rows.parquet"
VECTORS = "vectors.parquet"
DENSE = "dense.faiss"
LEXICAL = "lexical/"

INTERMEDIATE = ("staged/", "probe-")
"""How names of files of a run begin that mean nothing once it is over."""
SUCCESS = "success.json"
"""The record of a refresh that ended well."""
ERASURE = "erasure.json"
"""The proof of an erasure, among the files of its run."""

_SEQUENCE_DIGITS = 20


def manifest(sequence: int) -> str:
    """The manifest of a snapshot: names sort as their sequence numbers do."""
    return f"{MANIFESTS}{sequence:0{_SEQUENCE_DIGITS}d}.json"


def sequence_of(name: str) -> int | None:
    """The sequence number of a manifest's name; None for any other object below `manifests/`."""
    digits = name.removeprefix(MANIFESTS).removesuffix(".json")
    known = len(digits) == _SEQUENCE_DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) if known and name == manifest(int(digits)) else None


def segment(segment_id: str, file: str) -> str:
    """A file of a segment."""
    return f"{SEGMENTS}{segment_id}/{file}"


def dead(segment_id: str, sha256: str) -> str:
    """The bitmaps of a segment's dead rows and documents, named after their content."""
    return f"{DEAD}{segment_id}/{sha256}"


def trained(trained_id: str) -> str:
    """What was trained once for the dense indexes of many segments."""
    return f"{TRAINED}{trained_id}.faiss"


def ledger_part(run_id: str, part: str) -> str:
    """One durable part of the ledger."""
    return f"{LEDGER}{run_id}/{part}.parquet"


def staged(run_id: str, part: str, file: str) -> str:
    """A run's intermediate file: enriched documents that are not yet a segment."""
    return f"{RUNS}{run_id}/staged/{part}/{file}"


def run_file(run_id: str, file: str) -> str:
    """A run's own record: `progress.json`, `report.json`, `events.jsonl`."""
    return f"{RUNS}{run_id}/{file}"
