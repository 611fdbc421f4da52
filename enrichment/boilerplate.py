"""Boilerplate: a text that stands in many documents says nothing of any one of them, so that a context for it is money lost."""

import hashlib

BOILERPLATE = "boilerplate"
"""The reason of a chunk that is not asked about for that."""
HASH_BYTES = 16


def text_hash(text: str) -> bytes:
    """The same for texts that differ in white space and letter case alone."""
    return hashlib.sha256(" ".join(text.split()).casefold().encode("utf-8", "surrogatepass")).digest()[:HASH_BYTES]
