"""Ray's native log lines stay off the terminal; everything else arrives."""

import subprocess
import sys

CODE = """
import os, sys
from jobs import native_output
with native_output.filtered():
    os.write(2, b"[2026-01-01 10:00:00,123 E 12 12] core_worker.cc:2465: Actor with class name\\n")
    os.write(2, b"a library's own line\\n")
    print("python's line", file=sys.stderr)
print("after", file=sys.stderr)
raise SystemExit("the last word")
"""


def test_native_lines_are_dropped_and_others_kept() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    lines = found.stderr.splitlines()
    assert sorted(lines) == sorted(["a library's own line", "python's line", "after", "the last word"])
