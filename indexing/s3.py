"""Storage on S3 and what speaks its protocol: the only code that knows boto3.

Credentials, region and endpoint come from the standard AWS environment (`AWS_ENDPOINT_URL` for another server; path-style
addresses are then used). Retries and timeouts are botocore's own "standard" mode, bounded.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enrichment.errors import ConfigError, OperationError
from indexing.storage import Entry, MissingObjectError, ShortObjectError

MULTIPART_BYTES = 64 << 20  # one PUT below this; S3 allows 5 GiB, but a retry repeats all of it
_CONFLICT_TRIES = 5
_ABSENT = {"NoSuchKey", "404", "NotFound"}


class S3Storage:
    """Objects below `s3://bucket/prefix`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        if not self._bucket:
            raise ConfigError(f"{uri} names no bucket; write s3://bucket/prefix")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = _client()

    def put(self, name: str, data: bytes) -> None:
        self._call("put_object", name, Body=data)

    def put_file(self, name: str, path: Path) -> None:
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES)
        with self._failures(name):
            self._client.upload_file(str(path), self._bucket, self._prefix + name, Config=config)

    def create(self, name: str, data: bytes) -> bool:
        for _ in range(_CONFLICT_TRIES):
            try:
                self._call("put_object", name, Body=data, IfNoneMatch="*")
                return True
            except PreconditionError:
                return False
            except ConflictError:
                continue  # two conditional writes met; botocore does not try this again by itself
        raise OperationError(f"{self.uri}/{name} is being written by many at once; run the same command again")

    def get(self, name: str) -> bytes:
        return self._read(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        body = self._read(name, Range=f"bytes={offset}-{offset + length - 1}")
        if len(body) != length:
            raise ShortObjectError(f"{self.uri}/{name} gave {len(body)} of {length} bytes at {offset}: it is damaged")
        return body

    def fetch(self, name: str, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._failures(name):
            self._client.download_file(self._bucket, self._prefix + name, str(path))
        return path

    def list(self, prefix: str = "") -> Iterator[Entry]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with self._failures(prefix):
            for page in pages:
                for item in page.get("Contents", ()):
                    yield Entry(item["Key"].removeprefix(self._prefix), item["Size"])

    def delete(self, name: str) -> None:
        self._call("delete_object", name)

    def _read(self, name: str, **arguments: Any) -> bytes:
        with self._failures(name):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **arguments)
            body: bytes = answer["Body"].read()
        return body

    def _call(self, operation: str, name: str, **arguments: Any) -> None:
        with self._failures(name):
            getattr(self._client, operation)(Bucket=self._bucket, Key=self._prefix + name, **arguments)

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """What boto3 raises -> our errors, each naming the object. Codes decide, never texts."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        where = f"{self.uri}/{name}"
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if code in _ABSENT:
                raise MissingObjectError(f"{where} does not exist") from error
            if code == "InvalidRange":
                raise ShortObjectError(f"{where} ends before the range asked for: it is damaged") from error
            if status == 412:
                raise PreconditionError(f"{where} exists already") from error
            if status == 409:
                raise ConflictError(f"{where} is being written by another") from error
            raise OperationError(f"{where} failed: {error}") from error
        except (BotoCoreError, Boto3Error) as error:
            raise OperationError(f"{where} cannot be reached: {error}") from error


class PreconditionError(OperationError):
    """A conditional write came second."""


class ConflictError(OperationError):
    """A conditional write met another one and may be tried again."""


_local = threading.local()


def _client() -> Any:
    """One client per thread: botocore clients are thread-safe, building them is not."""
    import os

    import boto3
    from botocore.config import Config

    if not hasattr(_local, "client"):
        style = "path" if os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3") else "auto"
        config = Config(
            retries={"mode": "standard", "max_attempts": 5},
            connect_timeout=10,
            read_timeout=60,
            s3={"addressing_style": style},
            # Checksum trailers corrupt bodies on some stores; our own sha256 covers every file.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        _local.client = boto3.session.Session().client("s3", config=config)
    return _local.client
