"""Relations: which other chunks a chunk is read with, by place and by likeness."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enrichment.relations import cosines_of, neighbours, ranked, similar


def test_neighbours_are_the_same_number_on_both_sides_the_nearest_first_and_never_the_chunk() -> None:
    assert neighbours(5, 20, 3, 3) == [4, 6, 3, 7, 2, 8]
    assert neighbours(5, 20, 2, 0) == [4, 3]
    assert neighbours(5, 20, 0, 2) == [6, 7]


def test_neighbours_end_where_the_document_does() -> None:
    assert neighbours(0, 3, 3, 3) == [1, 2]
    assert neighbours(2, 3, 3, 3) == [1, 0]
    assert neighbours(0, 1, 3, 3) == []


@given(st.integers(0, 300), st.integers(1, 301), st.integers(0, 5), st.integers(0, 5))
def test_every_chunk_has_its_neighbours_also_behind_the_hundredth(
    index: int, behind: int, backward: int, forward: int
) -> None:
    num_chunks = index + behind
    found = neighbours(index, num_chunks, backward, forward)
    assert sorted(found) == [n for n in range(num_chunks) if n != index and index - backward <= n <= index + forward]


def test_similar_chunks_have_at_least_the_threshold_as_their_cosine_the_most_similar_first() -> None:
    cosines = np.array([[1, 0.7, 0.95, 0.69, -0.9]], np.float32)
    assert similar(cosines, 0, 10, 0.7) == [2, 1]  # not those with a distance of 0.7 or more, 3 and 4
    assert similar(cosines, 0, 1, 0.7) == [2]
    assert similar(cosines, 0, 10, -1.0) == [2, 1, 3, 4]


def test_the_threshold_itself_counts_in_the_precision_of_the_vectors() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8]], np.float32)
    assert similar(cosines_of(vectors, [0, 1], 2), 0, 10, 0.6) == [1]


def test_two_chunks_are_as_alike_as_their_most_similar_parts() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]], np.float32)  # chunk 0 has two parts, chunk 2 the last one
    found = cosines_of(vectors, [0, 0, 1, 2], 3)
    assert np.allclose(found, [[1, 0.8, 0], [0.8, 1, -0.6], [0, -0.6, 1]])


def test_a_union_wants_most_what_any_order_wants_most() -> None:
    assert ranked([4, 6, 3, 7], [9, 4, 11]) == [4, 9, 6, 3, 11, 7]
    assert ranked([], [2]) == [2]
