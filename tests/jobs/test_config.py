"""The configuration file: what is refused, and in which words."""

from pathlib import Path

import pytest

from enrichment.errors import ConfigError
from enrichment.split import SplitOptions
from jobs import config

GOOD = {
    "corpus": "c",
    "documents": {"uri": "d"},
    "embedding": {"name": "fake"},
    "model": {"name": "fake"},
}


def test_defaults_are_those_of_the_design() -> None:
    loaded = config.parse(GOOD)
    assert (loaded.split.by, loaded.split.size, loaded.split.overlap, loaded.split.min_size) == ("tokens", 200, 0, 64)
    assert (loaded.context.strategy, loaded.context.prompt, loaded.context.max_output_tokens) == (
        "situate",
        "causal",
        96,
    )
    assert loaded.index.dense_text == ("header", "body")
    assert loaded.index.lexical_text == ("context", "header", "body")
    assert (loaded.limits.fallback, loaded.limits.quarantined) == (0.15, 0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"splt": {}}, "splt is not a known key"),
        ({"split": {"sise": 3}}, "split.sise is not a known key; the keys here are by, size"),
        ({"split": {"size": "many"}}, 'split.size is "many"'),
        ({"split": {"by": "pages"}}, 'split.by is "pages"'),
        ({"split": {"size": 10, "overlap": 10}}, "split.overlap"),
        ({"documents": {}}, "documents.uri is missing"),
        ({"context": {"strategy": "magic"}}, 'context.strategy is "magic"'),
        ({"context": {"strategy": ["situate", "semantic"]}}, 'context.strategy is "semantic+situate"'),
        ({"context": {"strategy": ["semantic", "semantic"]}}, 'context.strategy is "semantic+semantic"'),
        ({"context": {"strategy": []}}, 'context.strategy is ""'),
        ({"context": {"strategy": "semantic", "semantic_similarity_threshold": 1.5}}, "it is a cosine"),
        ({"context": {"extract": ["Date"]}}, "context.extract is Date"),
        ({"context": {"strategy": "header", "extract": ["date"]}}, "context.extract asks a model"),
        ({"context": {"strategy": "neighborhood", "forward_chunks": -1}}, "context.forward_chunks is -1"),
        ({"model": {"name": "fake", "replicas": 0}}, "model.replicas is 0"),
        ({"model": None}, "needs a model"),
        ({"corpus": " "}, "corpus is empty"),
        ({"documents": {"uri": "d", "max_bytes": 0}}, "documents.max_bytes is 0"),
        ({"limits": {"fallback": 5.0}}, "limits.fallback is 5.0"),
        ({"limits": {"stall_timeout_s": float("inf")}}, "limits.stall_timeout_s is inf"),
        ({"index": {"language": "klingon"}}, "index.language 'klingon' is not known"),
        ({"search": {"fusion": "magic"}}, "search.fusion"),
        ({"search": {"bm25_b": 2}}, "search.bm25_b is 2"),
        ({"model": {"name": "fake", "max_model_len": 512}, "context": {"max_output_tokens": 500}}, "max_output_tokens"),
        ({"index": {"dense_text": []}}, "index.dense_text"),
        ({"index": {"dense": "HNSW32"}}, "index.dense is HNSW32"),
        ({"index": {"dense": 7}}, "index.dense"),
        ({"index": {"memory_gb": 0}}, "index.memory_gb"),
        ({"index": {"recall_floor": 1.5}}, "index.recall_floor"),
        ({"embedding": {"name": "fake", "pooling": "best"}}, 'embedding.pooling is "best"'),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(GOOD | change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [("a: [1", "is not YAML"), ("- 1\n", "holds no settings"), ("", "holds no settings")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        config.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "split: &a [*a]\n",
        "corpus: &a c\ndocuments: {uri: *a}\n",
        "a: &a [x, x]\n" + "".join(f"{n}: &b{n} [{', '.join(['*a'] * 9)}]\n" for n in range(9)),
        "base: &base {name: fake}\nmodel: {<<: *base}\n",
    ],
)
def test_an_alias_is_refused_with_its_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"x.yaml:[12] refers to \*(a|base), but aliases are not read"):
        config.load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("corpus: a\nembedding: {name: fake}\ncorpus: b\n", "x.yaml:3 gives the key corpus again"),
        ("corpus: a\nsplit: {size: 1, by: tokens, size: 2}\n", "x.yaml:2 gives the key size again"),
        ("a: [{b: 1,\n  b: 2}]\n", "x.yaml:2 gives the key b again"),
    ],
)
def test_a_key_that_comes_twice_is_refused_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        config.load(path)


@pytest.mark.parametrize("language", ["english", "EN", "", "e1", "de-AT"])
def test_a_language_that_is_no_code_is_refused(language: str) -> None:
    with pytest.raises(ConfigError, match="split.language is .*ISO 639"):
        SplitOptions(language=language)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        config.load(tmp_path / "none.yaml")


def test_the_fingerprint_follows_what_rows_depend_on() -> None:
    base = config.parse(GOOD).content_fingerprint()
    same = [{"corpus": "elsewhere"}, {"limits": {"fallback": 0.5}}, {"model": {"name": "fake", "replicas": 4}}]
    same += [{"index": {"dense": "flat"}}, {"index": {"memory_gb": 1, "recall_floor": 0.5}}]  # of the same vectors
    same.append({"search": {"fusion": "scores", "dense_weight": 2, "bm25_k1": 1.2}})
    assert {config.parse(GOOD | change).content_fingerprint() for change in same} == {base}
    other = [
        {"documents": {"uri": "d", "max_bytes": 9}},
        {"split": {"size": 100}},
        {"context": {"prompt": "quote"}},
        {"index": {"language": "de"}},
    ]
    assert base not in {config.parse(GOOD | change).content_fingerprint() for change in other}


def test_a_model_that_no_strategy_uses_changes_nothing() -> None:
    header = GOOD | {"context": {"strategy": "header"}}
    other = header | {"model": {"name": "other/model"}}
    assert config.parse(header).content_fingerprint() == config.parse(other).content_fingerprint()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"endpoint": "localhost:8000/v1"}, "model.endpoint is localhost:8000/v1, which is no http or https URL"),
        ({"endpoint": "http:///v1"}, "no http or https URL"),
        ({"endpoint": "http://host:eight/v1"}, "model.endpoint is not a URL"),
        ({"endpoint": "http://me:geheim@host/v1"}, "the environment variable SITUATE_API_KEY"),
        ({"endpoint": "me:geheim@host/v1"}, "the environment variable SITUATE_API_KEY"),
        ({"endpoint": "http://host/v1?api-key=geheim"}, "the environment variable SITUATE_API_KEY"),
        ({"endpoint": "http://host/v1", "gpus_per_replica": 1}, "model.gpus_per_replica"),
        ({"endpoint": "http://host/v1", "name": "fake"}, "model.name is fake"),
        ({"concurrency": 0}, "model.concurrency is 0"),
        ({"concurrency": 1001}, "model.concurrency is 1001"),
    ],
)
def test_a_wrong_model_server_is_named_without_its_password(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(GOOD | {"model": {"name": "owner/model"} | change})
    assert words in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_where_a_model_is_served_changes_no_fingerprint() -> None:
    own = config.parse(GOOD | {"model": {"name": "m"}}).content_fingerprint()
    server = {"name": "m", "endpoint": "https://[::1]:8000/v1", "served_name": "n", "concurrency": 2}
    assert config.parse(GOOD | {"model": server}).content_fingerprint() == own


def test_rewriting_strategies_are_joined_in_any_order() -> None:
    for given in (["neighborhood", "semantic"], ["semantic", "neighborhood"], "neighborhood+semantic"):
        context = config.parse(GOOD | {"context": {"strategy": given}}).context
        assert (context.strategy, context.names, context.rewrites) == ("neighborhood+semantic", context.names, True)
        assert context.max_output_tokens == 512
    assert config.parse(config.parse(GOOD | {"context": {"strategy": ["semantic"]}}).as_dict()).context.rewrites


def test_what_a_strategy_does_not_use_changes_no_fingerprint() -> None:
    def fingerprint(**context: object) -> str:
        return config.parse(GOOD | {"context": context}).content_fingerprint()

    assert fingerprint(strategy="situate") == fingerprint(strategy="situate", forward_chunks=9, summary=True)
    assert fingerprint(strategy="semantic") == fingerprint(strategy="semantic", forward_chunks=9, prompt="quote")
    assert fingerprint(strategy="neighborhood") != fingerprint(strategy="neighborhood", forward_chunks=9)
    assert fingerprint(strategy="semantic") != fingerprint(strategy="semantic", semantic_neighbors=3)
    assert fingerprint(strategy="situate") != fingerprint(strategy="situate", only="needed")
