"""One short file per source format: bytes -> records. What a record means is decided in `enrichment/documents.py`."""
