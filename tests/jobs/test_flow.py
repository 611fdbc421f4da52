"""The order of the work: each document once, longest first in windows, blocks that shrink towards a common end."""

import itertools

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.flow import _BLOCK_BYTES, _BLOCK_DOCUMENTS, WINDOW_DOCUMENTS, plan_blocks


def references(sizes: list[int]) -> pa.Table:
    return pa.table({"id": [f"{n:06}" for n in range(len(sizes))], "num_bytes": pa.array(sizes, pa.int64())})


@given(st.lists(st.integers(0, 1 << 22), min_size=1, max_size=300), st.integers(1, 8))
@settings(deadline=None, max_examples=50)
def test_each_document_is_in_one_block_and_a_block_has_its_bounds(sizes: list[int], replicas: int) -> None:
    blocks = plan_blocks(references(sizes), replicas)
    ids = [block["id"].to_pylist() for block in blocks]
    assert sorted(itertools.chain(*ids)) == references(sizes)["id"].to_pylist()
    for block in blocks:
        assert 1 <= block.num_rows <= _BLOCK_DOCUMENTS
        assert block.num_rows == 1 or sum(block["num_bytes"].to_pylist()) <= _BLOCK_BYTES


def test_longest_first_inside_each_window_of_a_thousand_documents() -> None:
    sizes = [(n * 7919) % 5003 for n in range(3 * WINDOW_DOCUMENTS)]
    blocks = plan_blocks(references(sizes), 2)
    order = list(itertools.chain(*(block["id"].to_pylist() for block in blocks)))
    assert WINDOW_DOCUMENTS >= 1000
    for start in range(0, len(order), WINDOW_DOCUMENTS):
        window = [int(name) for name in order[start : start + WINDOW_DOCUMENTS]]
        assert sorted(window) == list(range(start, start + WINDOW_DOCUMENTS))
        lengths = [sizes[number] for number in window]
        assert lengths == sorted(lengths, reverse=True)


def test_towards_the_end_a_block_is_a_small_part_of_what_is_left() -> None:
    sizes = [20_000] * 8000
    blocks = [sum(block["num_bytes"].to_pylist()) for block in plan_blocks(references(sizes), 2)]
    assert max(blocks) <= _BLOCK_BYTES
    left = sum(blocks)
    for size in blocks:
        assert size <= max(20_000, left / 32)
        left -= size
    assert blocks[-1] == 20_000 and len(blocks) < 500
