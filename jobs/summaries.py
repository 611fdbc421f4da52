"""One row per document that a run worked on: what the driver needs to cut segments, to judge and to report. No texts."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from enrichment.records import Status
from enrichment.strategies import UNGROUNDED
from indexing import staging

Rows = npt.NDArray[np.int64]
STATUSES = tuple(str(status) for status in Status)


def summaries(units: pa.Table, part: str, rows_of_vectors: Rows) -> pa.Table:
    """One row per document: what the driver needs to cut segments and to count; nothing of the text. `rows_of_vectors` has for
    each vector the place of its row among all rows of the units.
    """
    names = ["id", "source", "source_sha256", "status", "reason", "generated"]
    columns = {name: units[name] for name in names}
    columns |= {f"tokens_{name}": units[f"tokens_{name}"] for name in staging.TOKEN_COUNTS}
    columns["part"] = pa.array([part] * units.num_rows, pa.string())
    lists = units["rows"].combine_chunks()
    columns["num_rows"] = pc.list_value_length(lists)
    owners = np.repeat(np.arange(units.num_rows), columns["num_rows"].to_numpy())
    columns["num_vectors"] = pa.array(np.bincount(owners[rows_of_vectors], minlength=units.num_rows), pa.int64())
    rows_of_documents = lists.to_pylist()
    counted = [[sum(row["status"] == status for row in rows) for status in STATUSES] for rows in rows_of_documents]
    for position, status in enumerate(STATUSES):
        columns[f"chunks_{status}"] = pa.array([counts[position] for counts in counted], pa.int32())
    ungrounded = [
        sum(row["status"] == "ok" and (row["reason"] or "").startswith(UNGROUNDED) for row in rows)
        for rows in rows_of_documents
    ]
    columns["ungrounded"] = pa.array(ungrounded, pa.int32())
    reasons = [[row["reason"] for row in rows if row["status"] in ("fallback", "failed")] for rows in rows_of_documents]
    columns["reasons"] = pa.array(reasons, pa.list_(pa.string()))
    return pa.table(columns)
