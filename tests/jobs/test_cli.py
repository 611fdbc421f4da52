"""The command as a person or a script meets it: one sentence and the right exit status, JSON alone on stdout."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import cli

CONFIG = """\
corpus: {root}/corpus
documents: {{uri: {root}/docs}}
embedding: {{name: {embedder}}}
model: {{name: {model}}}
"""


def write_config(root: Path, model: str = "fake", embedder: str = "fake") -> str:
    path = root / "job.yaml"
    path.write_text(CONFIG.format(root=root, model=model, embedder=embedder))
    return str(path)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


def test_a_wrong_key_is_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write_config(tmp_path))
    path.write_text(path.read_text() + "splitt: {}\n")
    assert cli.main(["refresh", str(path)]) == 2
    assert "splitt is not a known key" in sentence(capsys)


def test_a_missing_configuration_is_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["refresh", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml does not exist" in sentence(capsys)


def test_a_missing_source_is_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["refresh", write_config(tmp_path)]) == 2
    assert f"{tmp_path}/docs holds no documents" in sentence(capsys)
    assert not (tmp_path / "corpus").exists(), "nothing is left of a night that could not begin"


def test_an_empty_source_is_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    assert cli.main(["refresh", write_config(tmp_path)]) == 2
    assert "holds no documents" in sentence(capsys)


@pytest.mark.parametrize("which", ["model", "embedder"])
def test_an_unknown_model_is_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\ntext\n")
    assert cli.main(["refresh", write_config(tmp_path, **{which: "no-such-model"})]) == 2
    assert "the model no-such-model is neither" in sentence(capsys)


def test_an_empty_corpus_is_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["search", str(tmp_path), "q"], ["show", str(tmp_path), "d"], ["status", str(tmp_path)]):
        assert cli.main(command) == 2
        assert str(tmp_path) in sentence(capsys)


@pytest.mark.parametrize(
    ("corpus", "words"), [("{}/file", "is no directory"), ("{}\0", "is no directory"), ("s3://", "no bucket")]
)
def test_a_corpus_that_can_be_none_is_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus: str, words: str
) -> None:
    (tmp_path / "file").write_text("x")
    corpus = corpus.format(tmp_path)
    for command in (["search", corpus, "q"], ["status", corpus], ["verify", corpus], ["purge", corpus, "d"]):
        assert cli.main(command) == 2
        assert words in sentence(capsys)


def test_a_command_leaves_nothing_where_no_corpus_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = str(tmp_path / "none")
    for command in (["rollback", corpus, "1"], ["gc", corpus, "--delete"], ["purge", corpus, "d"], ["verify", corpus]):
        assert cli.main(command) == 2
        assert corpus in sentence(capsys)
    assert not (tmp_path / "none").exists()


def test_json_holds_the_error_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", str(tmp_path), "q", "--json"]) == 2
    assert "holds no snapshot" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search", "c", "q", "-k", "many"], "argument -k: invalid int value: 'many'; see `situate search --help`"),
        (["serch"], "invalid choice: 'serch'"),
        (["show", "c"], "required: DOCUMENT"),
        (["refresh", "c", "--nightly"], "unrecognized arguments: --nightly"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_usage_is_one_sentence_in_json_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli.main(arguments) == 2
    assert words.lower() in sentence(capsys).lower()
    assert cli.main([*arguments, "--json"]) == 2
    assert words.lower() in json.loads(capsys.readouterr().out)["error"].lower()


def test_numbers_out_of_range_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag, value in (("-k", "0"), ("--window", "-1"), ("--budget", "0")):
        assert cli.main(["search", str(tmp_path), "q", f"{flag}={value}" if flag != "-k" else f"-k{value}"]) == 2
        assert f"{flag} is {value}" in sentence(capsys)


def test_init_writes_a_configuration_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jobs import config

    folder = tmp_path / 'notes "2024": #1'
    folder.mkdir()
    (folder / "a.md").write_text("# A\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", str(folder), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["files"] == 1
    assert config.load(Path(written["config"])).documents.uri == str(folder)
    assert cli.main(["init", str(folder)]) == 2
    assert "exists already" in sentence(capsys)


def test_doctor_names_what_it_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n")
    assert cli.main(["doctor", write_config(tmp_path), "--json"]) == 0
    names = {check["name"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert {"ray", "vllm", "faiss", "pyserini", "java", "memory", "store", "embedding model", "language model"} <= names
    assert not list((tmp_path / "corpus").rglob("*")), "doctor leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--where", "owner"], "'owner' is no condition on metadata; write key=value"),
        (["--weights", "0", "0"], "dense_weight and lexical_weight are both 0"),
        (["--document-weight", "-1"], "document_weight is -1.0"),
        (["--document-weight", "1e308"], "it must be a number from 0 to 1,000,000"),
        (["--document-weight", "1", "--mode", "dense"], "mode is dense, which fuses nothing"),
        (["--weights", "1", "0", "--mode", "lexical"], "mode is lexical, which fuses nothing"),
        (["--rerank", "x", "--rerank-depth", "0"], "the depth of reranking is 0"),
        (["--fusion", "magic"], "invalid choice: 'magic'"),
        (["-k", "0"], "-k is 0; it must be at least 1"),
        (["--expand", "page"], "invalid choice: 'page'"),
        (["--window-by", "words"], "invalid choice: 'words'"),
        (["--expand", "parent", "--window", "1"], "expand is parent, which takes no window"),
        (["--expand", "run", "--run-penalty", "2"], "run_penalty is 2.0; it must be a number from 0 to 1"),
        (["--run-length", "7"], "expand is window, which has no runs"),
    ],
)
def test_a_search_that_cannot_be_is_one_sentence_and_exit_2(
    nights: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    nights.write(a="# A\n\nThe roof leaks.\n")
    nights.refresh()
    assert cli.main(["search", nights.storage.uri, "roof", *arguments]) == 2
    assert words in sentence(capsys)


def test_a_search_takes_filters_and_a_way_to_fuse(nights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {"id": f"{kind}/{n}", "title": f"{kind} {n}", "text": "The roof leaks.", "metadata": {"kind": kind, "n": n}}
        for kind in ("deed", "note")
        for n in range(4)
    ]
    nights.write(**{"in.jsonl": "\n".join(map(json.dumps, records))})
    nights.refresh()

    def found(*arguments: str) -> list[str]:
        assert cli.main(["search", nights.storage.uri, "roof", "-k", "9", "--json", *arguments]) == 0
        return [passage["document_id"] for passage in json.loads(capsys.readouterr().out)["passages"]]

    assert len(found()) == len(found("--fusion", "scores", "--weights", "1", "0.5")) == 8
    assert found("--where", "kind=deed", "--where", "n=2") == ["deed/2"]
    assert found("--title", "NOTE 1") == ["note/1"]
    assert found("--id-prefix", "note/", "--mode", "lexical") == [f"note/{n}" for n in range(4)]
