"""Storage on S3 and what speaks its protocol: the only code that knows boto3.

Credentials, region and endpoint come from the standard AWS environment (`AWS_ENDPOINT_URL` for another server; path-style
addresses are then used). Retries and timeouts are botocore's own "standard" mode, bounded.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enrichment.errors import ConfigError, OperationError
from indexing.storage import Entry, MissingObjectError, ShortObjectError

MULTIPART_BYTES = 64 << 20  # one PUT below this; S3 allows 5 GiB, but a retry repeats all of it
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
        from boto3.exceptions import S3UploadFailedError
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES)
        try:
            self._client.upload_file(str(path), self._bucket, self._prefix + name, Config=config)
        except S3UploadFailedError as error:
            raise OperationError(f"{self.uri}/{name} cannot be written: {error}") from error

    def create(self, name: str, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, IfNoneMatch="*")
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (409, 412):
                return False
            raise OperationError(f"{self.uri}/{name} cannot be written: {error}") from error
        return True

    def get(self, name: str) -> bytes:
        body: bytes = self._call("get_object", name)["Body"].read()
        return body

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        answer = self._call("get_object", name, Range=f"bytes={offset}-{offset + length - 1}")
        body: bytes = answer["Body"].read()
        if len(body) != length:
            raise ShortObjectError(f"{self.uri}/{name} gave {len(body)} of {length} bytes at {offset}: it is damaged")
        return body

    def fetch(self, name: str, path: Path) -> Path:
        from botocore.exceptions import ClientError

        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._client.download_file(self._bucket, self._prefix + name, str(path))
        except ClientError as error:
            raise self._failure(name, error) from error
        return path

    def list(self, prefix: str = "") -> Iterator[Entry]:
        from botocore.exceptions import BotoCoreError, ClientError

        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        try:
            for page in pages:
                for item in page.get("Contents", ()):
                    yield Entry(item["Key"].removeprefix(self._prefix), item["Size"])
        except (ClientError, BotoCoreError) as error:
            raise OperationError(f"{self.uri} cannot be listed: {error}") from error

    def delete(self, name: str) -> None:
        self._call("delete_object", name)

    def _call(self, operation: str, name: str, **arguments: Any) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: dict[str, Any] = getattr(self._client, operation)(
                Bucket=self._bucket, Key=self._prefix + name, **arguments
            )
        except ClientError as error:
            raise self._failure(name, error) from error
        except BotoCoreError as error:
            raise OperationError(f"{self.uri}/{name} cannot be reached: {error}") from error
        return answer

    def _failure(self, name: str, error: Any) -> OperationError:
        if error.response.get("Error", {}).get("Code") in _ABSENT:
            return MissingObjectError(f"{self.uri}/{name} does not exist")
        if error.response.get("Error", {}).get("Code") == "InvalidRange":
            return ShortObjectError(f"{self.uri}/{name} ends before the range asked for: it is damaged")
        return OperationError(f"{self.uri}/{name} failed: {error}")


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
