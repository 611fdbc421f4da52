"""Tokenizers: offsets in code points, and no control token from a document."""

import json
from pathlib import Path

import numpy as np
import pytest

from enrichment import models
from enrichment.errors import ConfigError
from enrichment.tokens import FakeTokenizer, FileTokenizer, Tokenizer

MIXED = "Naïve café 👩‍👧 在该范围内。e\u0301 né  a\r\n\tb\x00c \U0001f1e9\U0001f1ea\n\nEnd of  it "
NAMES = ("fake", "smollm2-135m-instruct", "all-minilm-l6-v2")


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {n: FakeTokenizer() if n == "fake" else FileTokenizer(models.resolve(n)) for n in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_tokens_stand_in_order_inside_the_text(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    encoding = tokenizers[name].encode(MIXED)
    starts, ends = encoding.offsets.starts, encoding.offsets.ends
    assert len(encoding.ids) == len(starts) == len(ends) > 15
    assert encoding.ids.dtype == starts.dtype == ends.dtype == np.int64
    assert (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all()
    assert (starts < ends).all() and starts[0] == 0 and ends[-1] in (len(MIXED), len(MIXED) - 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("word", ["after", "END", "在", "7"])
def test_offsets_count_code_points_behind_emoji_and_ideographs(
    name: str, word: str, tokenizers: dict[str, Tokenizer]
) -> None:
    text = f"👩‍👧👋🏻 该范围 e\u0301 \U00010348 {word}"
    offsets = tokenizers[name].encode(text).offsets
    inside = [i for i in range(len(offsets.starts)) if offsets.ends[i] > text.index(word)]
    assert text[offsets.starts[inside[0]] : offsets.ends[inside[-1]]].strip() == word


def test_byte_level_tokens_cover_the_text_without_a_gap(tokenizers: dict[str, Tokenizer]) -> None:
    offsets = tokenizers["smollm2-135m-instruct"].encode(MIXED).offsets
    covered = np.zeros(len(MIXED), dtype=bool)
    for start, end in zip(offsets.starts, offsets.ends, strict=True):
        covered[start:end] = True
    assert covered.all()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_text_has_no_tokens(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    encoding = tokenizers[name].encode("")
    assert len(encoding.ids) == len(encoding.offsets.starts) == len(encoding.offsets.ends) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_long_text_is_not_truncated(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    assert len(tokenizers[name].encode("word " * 3_000).ids) >= 3_000


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_added_token_is_one_token_in_a_template_and_ordinary_text_in_a_document(
    name: str, tokenizers: dict[str, Tokenizer]
) -> None:
    added = json.loads((models.resolve(name) / "tokenizer.json").read_text())["added_tokens"]
    assert len(added) >= 5
    control = {token["id"] for token in added}
    for token in added:
        assert tokenizers[name].encode_template(token["content"]) == [token["id"]]
        for text in (token["content"], f"a{token['content']}b", f" {token['content']} "):
            ids = tokenizers[name].encode(text).ids.tolist()
            assert len(ids) > 1
            assert not control & set(ids) or name == "all-minilm-l6-v2" and "[UNK]" in text


def test_an_added_token_that_is_not_marked_special_is_ordinary_text_in_a_document_too(tmp_path: Path) -> None:
    source = json.loads((models.resolve("smollm2-135m-instruct") / "tokenizer.json").read_text())
    for token in source["added_tokens"]:
        token["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    tokenizer = FileTokenizer(tmp_path)
    [control] = tokenizer.encode_template("<|im_end|>")
    assert control not in tokenizer.encode("a <|im_end|> b").ids


def test_a_model_without_a_fast_tokenizer_is_refused_by_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer.json is missing"):
        FileTokenizer(tmp_path)
