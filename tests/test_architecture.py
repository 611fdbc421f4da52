"""The rules that keep the tree readable: one-way imports, one door per library, short files, a fast command."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("enrichment", "indexing", "jobs")
FORBIDDEN = {"enrichment": {"indexing", "jobs", "ray"}, "indexing": {"jobs", "ray", "vllm"}, "jobs": set()}
DOORS = {
    "boto3": {"indexing/s3.py"},
    "botocore": {"indexing/s3.py"},
    "faiss": {"indexing/dense_files.py"},
    "fastapi": {"indexing/http.py"},
    "jnius": {"indexing/jvm.py", "indexing/lexical.py"},
    "langchain_core": {"indexing/langchain_retriever.py"},
    "llama_index": {"indexing/llama_index_retriever.py"},
    "openai": {"enrichment/endpoint.py"},
    "prometheus_client": {"indexing/metrics.py"},
    "pyserini": set(),
    "ray": {"jobs/flow.py", "jobs/relay.py", "jobs/submit.py"},
    "sentence_transformers": {"enrichment/embed.py", "enrichment/rerank.py"},
    "sentencex": {"enrichment/sentences.py"},
    "uvicorn": {"jobs/serve.py"},
    "vllm": {"enrichment/vllm_engine.py"},
}
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The top-level modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_flow_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    assert not imports(path) & FORBIDDEN[package]


@pytest.mark.parametrize("library", DOORS)
def test_a_library_has_one_door(library: str) -> None:
    found = {str(path.relative_to(ROOT)) for path in MODULES if library in imports(path)}
    assert found <= DOORS[library]


def test_no_file_is_over_300_lines() -> None:
    long = {str(path.relative_to(ROOT)): n for path in MODULES if (n := len(path.read_text().splitlines())) > 300}
    assert not long


def test_serving_imports_neither_ray_nor_vllm() -> None:
    code = "import sys, indexing.serving; print({'ray', 'vllm', 'torch', 'langchain_core', 'llama_index'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert output.stdout.strip() == "set()"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib\nfrom jobs import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['--help'])\n"
        "heavy = {'numpy', 'pyarrow', 'rich', 'yaml', 'ray', 'torch', 'transformers', 'pydantic', 'openai'}\n"
        "print('loaded:', heavy & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert output.stdout.strip().endswith("loaded: set()")
