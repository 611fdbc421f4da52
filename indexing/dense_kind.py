"""Which kind of dense index a corpus gets: by its size and a memory budget, or as a FAISS factory string says.

Flat over float16 while a scan is fast enough; then lists (IVF) with scalar quantisation, or product quantisation if asked for.
HNSW only finds the lists: a graph per segment would change the answers with the number of segments. Numbers and words only;
FAISS itself is in `dense_files.py` and `dense.py`.
"""

import math
import re
from dataclasses import dataclass

from enrichment.errors import ConfigError

FLAT = "SQfp16"
"""The flat kind: every vector is looked at. Nothing is trained."""
FLAT_VALUES = 200_000 * 384
"""Values up to which auto stays flat: a scan of 200,000 x 384 takes 15 ms on 2 cores (`dense_files.py`).
Time goes with values."""
LISTS_PER_ROOT = 4
"""Lists are at least 4 x sqrt(vectors), rounded up to a power of two: FAISS's "Guidelines to choose an index" say 4 to 16."""
MOST_LISTS = 65_536
"""What the guidelines use up to ten million vectors; more would need more vectors to train on than a machine should hold."""
HNSW_ABOVE = 1_000_000
"""Vectors above which the guidelines find the lists by HNSW, with 32 links."""
TRAINED_PER_LIST = 50
LEAST_PER_LIST = 30
"""Vectors to train on, per list: the guidelines say 30 to 256. Training takes as long as there are more of them."""
LEAST_FOR_PRODUCT = 30 * 256
"""A product quantizer has 256 centroids per byte, which need as many."""
KEPT_WITHIN = 4
"""While the corpus is within this factor of what it was when the lists were made, auto keeps them: they are
2 to 16 x sqrt(n)."""
ROOM = 0.8
"""Auto goes back to the larger code when that fits in this share of the budget: a corpus at its edge does not go to and fro."""

_FORM = re.compile(r"IVF(?P<lists>[1-9]\d{0,6})(?:_HNSW(?P<links>[1-9]\d?))?,(?P<code>SQfp16|SQ8|PQ[1-9]\d{0,3})")
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of index. `lists` 0 is flat; `links` 0: the lists are found by looking at all of them."""

    lists: int = 0
    links: int = 0
    code: str = "SQfp16"

    def __str__(self) -> str:
        """The factory string, as the manifest has it and as FAISS reads it."""
        links = f"_HNSW{self.links}" if self.links else ""
        return f"IVF{self.lists}{links},{self.code}" if self.lists else self.code

    def code_bytes(self, dimension: int) -> int:
        """What a vector takes, without its id."""
        sizes = {"SQfp16": 2 * dimension, "SQ8": dimension}
        return sizes[self.code] if self.code in sizes else int(self.code.removeprefix("PQ"))

    def memory_bytes(self, num_vectors: int, dimension: int) -> int:
        """What an index of so many vectors takes in serving: codes, ids, and the lists' centroids with their links."""
        if not self.lists:
            return num_vectors * self.code_bytes(dimension)
        lists = self.lists * (4 * dimension + 8 * self.links)
        return num_vectors * (self.code_bytes(dimension) + _ID_BYTES) + lists

    def least_vectors(self) -> int:
        """Fewer are not enough to train on."""
        return max(LEAST_PER_LIST * self.lists, LEAST_FOR_PRODUCT if self.code.startswith("PQ") else 0)


def parse(text: str) -> Kind | None:
    """The kind that `index.dense` asks for; None for auto. Raises ConfigError naming what is allowed."""
    if text == "auto":
        return None
    if text in ("flat", "Flat", FLAT):
        return Kind()
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"index.dense is {text}; it must be auto, flat, or IVF<lists>[_HNSW<links>],<code> with the code SQfp16, SQ8 or"
            " PQ<bytes>, such as IVF4096,SQfp16: HNSW only finds the lists, for a graph per segment changes answers, and"
            " more than float16 is not stored"
        )
    return Kind(int(found["lists"]), int(found["links"] or 0), found["code"])


def check(text: str, memory_gb: float | None, recall_floor: float) -> None:
    """Raise ConfigError for settings that no corpus can have."""
    parse(text)
    if memory_gb is not None and not memory_gb > 0:
        raise ConfigError(f"index.memory_gb is {memory_gb}; it must be above 0, or null for no bound")
    if not 0 <= recall_floor <= 1:
        raise ConfigError(f"index.recall_floor is {recall_floor}; it must be a share from 0 to 1")


def check_dimension(kind: Kind | None, dimension: int) -> None:
    """Raise ConfigError for a product quantizer whose bytes do not divide the dimension."""
    if kind is not None and kind.code.startswith("PQ") and dimension % kind.code_bytes(dimension):
        raise ConfigError(
            f"index.dense is {kind}, but {kind.code_bytes(dimension)} bytes do not divide the embedder's {dimension}"
            " dimensions; take a number that does"
        )


def choose(
    asked: Kind | None, num_vectors: int, dimension: int, memory_bytes: float | None, known: tuple[Kind, int] | None
) -> Kind:
    """The kind for so many vectors; `known` is what they have now and the number of vectors that it was made for.

    Auto: flat while small, else lists over float16, or over 8-bit codes if float16 does not fit the budget. Raises ConfigError
    if those do not fit either, or if there are too few vectors to train what is asked for.
    """
    if asked is not None:
        is_made = known is not None and known[0] == asked
        if num_vectors and num_vectors < asked.least_vectors() and not is_made:
            raise ConfigError(
                f"index.dense is {asked}, which takes {asked.least_vectors():,} vectors to train, and the corpus has"
                f" {num_vectors:,}; set it to auto, or to fewer lists"
            )
        return asked if num_vectors else Kind()
    budget = float("inf") if memory_bytes is None else memory_bytes
    before, made_for = known or (Kind(), num_vectors)
    keeps = before.lists > 0 and made_for / KEPT_WITHIN <= num_vectors <= made_for * KEPT_WITHIN
    flat = Kind()
    is_small = num_vectors * dimension <= FLAT_VALUES
    if not keeps and is_small and flat.memory_bytes(num_vectors, dimension) <= budget:
        return flat
    lists, links = (before.lists, before.links) if keeps else _lists(num_vectors)
    whole, small = Kind(lists, links), Kind(lists, links, "SQ8")
    share = ROOM if keeps and before.code == small.code else 1.0
    for kind, room in ((whole, share * budget), (small, budget)):
        if kind.memory_bytes(num_vectors, dimension) <= room:
            return kind
    raise ConfigError(
        f"index.memory_gb is {budget / 1e9:g}, but {num_vectors:,} vectors take"
        f" {small.memory_bytes(num_vectors, dimension) / 1e9:.3g} GB as {small}; raise it, or set index.dense to"
        f" IVF{lists},PQ<bytes> and index.recall_floor to what that reaches"
    )


def _lists(num_vectors: int) -> tuple[int, int]:
    """How many lists, and the links of the graph that finds them; at least one, and no more than can be trained."""
    wanted = math.ceil(LISTS_PER_ROOT * math.sqrt(num_vectors))
    most = max(1, min(MOST_LISTS, num_vectors // LEAST_PER_LIST))
    lists = min(1 << (wanted - 1).bit_length(), 1 << (most.bit_length() - 1))
    return lists, 32 if num_vectors > HNSW_ABOVE else 0
