"""Plain text: UTF-8, or UTF-16 where a byte order mark says so."""

import codecs

from enrichment.errors import DocumentError


def decode(data: bytes) -> str:
    """The text of a file without its byte order mark. Raises DocumentError at the first undecodable byte."""
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DocumentError(
            "undecodable", f"byte {error.start} is not {encoding.removesuffix('-sig').upper()}: convert the file"
        ) from error
