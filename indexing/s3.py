"""Storage on S3 and what speaks its protocol: the only code that knows boto3.

Credentials, region and endpoint come from the standard AWS environment (`AWS_ENDPOINT_URL` for another server; path-style
addresses are then used). Timeouts and retries with jitter are botocore's own "standard" mode, bounded; what it leaves to the
caller, two conditional writes that met (409) and an answer that breaks off while its body is read, is tried again here.
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enrichment.errors import ConfigError, OperationError
from indexing import disk
from indexing.storage import Entry, MissingObjectError, ShortObjectError

MULTIPART_BYTES = 64 << 20  # one PUT below this; S3 allows 5 GiB, but a retry repeats all of it
_TRIES = 6
_LONGEST_PAUSE_S = 2.0
_CONNECT_S, _SILENCE_S = 10, 60  # without a byte from the other side
_ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}


class S3Storage:
    """Objects below `s3://bucket/prefix`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._bucket, _, prefix = uri.removeprefix("s3://").rstrip("/").partition("/")
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
            stored = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)["ContentLength"]
        if stored != path.stat().st_size:  # a store that keeps a checksum trailer inside the body, for one
            raise OperationError(
                f"{self.uri}/{name} holds {stored} of {path.stat().st_size} bytes: the store changes what it is given"
            )

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._conditional(name, data, IfNoneMatch="*")
        except PreconditionError:
            return False
        return True

    def replace(self, name: str, data: bytes, expected: bytes) -> bool:
        try:
            with self._failures(name):
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
                if answer["Body"].read() != expected:
                    return False
            self._conditional(name, data, IfMatch=answer["ETag"])
        except MissingObjectError:  # removed by another: that race is lost
            return False
        except PreconditionError:  # changed by another, or by this very write if its first answer was lost
            with contextlib.suppress(MissingObjectError):
                return self.get(name) == data
            return False
        return True

    def _conditional(self, name: str, data: bytes, **condition: str) -> None:
        """A write under a condition. Raises PreconditionError where another was first; 409 is tried again, bounded."""
        for attempt in range(_TRIES):
            _pause(attempt)
            with contextlib.suppress(ConflictError):
                return self._call("put_object", name, Body=data, **condition)
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
        with disk.writing(path), self._failures(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._client.download_file(self._bucket, self._prefix + name, str(path))
        return path

    def list(self, prefix: str = "") -> Iterator[Entry]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with self._failures(prefix):
            for page in pages:
                for item in page.get("Contents", ()):
                    name = item["Key"].removeprefix(self._prefix)
                    yield Entry(name, item["Size"], item["LastModified"].timestamp())

    def delete(self, name: str) -> None:
        self._call("delete_object", name)

    def unfinished(self) -> Iterator[Entry]:
        """Multipart uploads that nobody completed: their parts are kept, and billed, until they are aborted."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=self._prefix)
        with self._failures(""):
            uploads = [upload for page in pages for upload in page.get("Uploads", ())]
        yield from sorted(
            Entry(
                f"{upload['Key'].removeprefix(self._prefix)}?{upload['UploadId']}", 0, upload["Initiated"].timestamp()
            )
            for upload in uploads
        )

    def discard(self, entry: Entry) -> None:
        name, _, upload = entry.name.rpartition("?")
        with contextlib.suppress(MissingObjectError):
            self._call("abort_multipart_upload", name, UploadId=upload)

    def keeps_versions(self) -> bool:
        """Whether the bucket keeps what is deleted and replaced, as older versions."""
        with self._failures(""):
            return bool(self._client.get_bucket_versioning(Bucket=self._bucket).get("Status"))

    def _read(self, name: str, **arguments: Any) -> bytes:
        """A body, whole: botocore repeats a request that fails, but not one whose answer breaks off in its body."""
        for attempt in range(_TRIES):
            _pause(attempt)
            try:
                with self._failures(name):
                    answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **arguments)
                    body: bytes = answer["Body"].read()
                return body
            except BrokenBodyError:
                if attempt + 1 == _TRIES:
                    raise
        raise AssertionError("unreachable")

    def _call(self, operation: str, name: str, **arguments: Any) -> None:
        with self._failures(name):
            getattr(self._client, operation)(Bucket=self._bucket, Key=self._prefix + name, **arguments)

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """What boto3 raises -> our errors, each naming the object. Codes decide, never texts."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError

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
        except (IncompleteReadError, ResponseStreamingError) as error:
            raise BrokenBodyError(f"{where} broke off while it was read: {error}") from error
        except (BotoCoreError, Boto3Error) as error:
            raise OperationError(f"{where} cannot be reached: {error}") from error


class PreconditionError(OperationError):
    """A conditional write came second."""


class ConflictError(OperationError):
    """A conditional write met another one and may be tried again."""


class BrokenBodyError(OperationError):
    """An answer ended before its body did, or was slower than the time-out."""


def _pause(attempt: int) -> None:
    """Wait before another try, longer each time; at random, so that writers that met do not meet again."""
    if attempt:
        time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 0.05 * 2**attempt)))


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
            connect_timeout=_CONNECT_S,
            read_timeout=_SILENCE_S,
            s3={"addressing_style": style},
            # Checksum trailers corrupt bodies on some stores; our own sha256 covers every file.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        _local.client = boto3.session.Session().client("s3", config=config)
    return _local.client
