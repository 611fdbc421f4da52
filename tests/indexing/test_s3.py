"""S3 on a network that fails: answers cut, lost, late and refused; large files in parts; addresses and checksums."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from s3_proxy import S3Proxy

from enrichment.errors import OperationError
from indexing import s3
from indexing.storage import MissingObjectError, Storage, open_storage


@pytest.fixture
def remote(s3_bucket: Callable[[], str], s3_faults: S3Proxy) -> Storage:
    return open_storage(s3_bucket())


def count(faults: S3Proxy, method: str, part: str) -> int:
    return sum(method == found and part in path for found, path, _ in faults.requests)


def test_an_answer_that_breaks_off_in_its_body_is_asked_for_again(
    remote: Storage, s3_faults: S3Proxy, tmp_path: Path
) -> None:
    data = os.urandom(100_000)
    remote.put("x", data)
    s3_faults.fail("cut", "GET", "/x", 2)
    assert remote.get("x") == data
    s3_faults.fail("cut", "GET", "/x", 2)
    assert remote.get_range("x", 1000, 50_000) == data[1000:51_000]
    s3_faults.fail("cut", "GET", "/x", 1)
    assert remote.fetch("x", tmp_path / "x").read_bytes() == data


def test_an_answer_that_always_breaks_off_is_an_error_by_name(
    remote: Storage, s3_faults: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_LONGEST_PAUSE_S", 0.01)
    remote.put("x", bytes(1000))
    s3_faults.fail("cut", "GET", "/x", 1000)
    with pytest.raises(OperationError, match="/x broke off while it was read"):
        remote.get("x")
    assert count(s3_faults, "GET", "/x") == s3._TRIES


def test_a_write_whose_answer_is_lost_or_refused_for_now_is_repeated(remote: Storage, s3_faults: S3Proxy) -> None:
    s3_faults.fail("drop", "PUT", "/x")
    s3_faults.fail("status", "PUT", "/x", 1, 503)
    remote.put("x", b"1")
    assert remote.get("x") == b"1"
    assert count(s3_faults, "PUT", "/x") == 3


def test_what_is_forbidden_is_not_repeated(remote: Storage, s3_faults: S3Proxy) -> None:
    s3_faults.fail("status", "PUT", "/x", 100, 403)
    with pytest.raises(OperationError, match=r"/x failed: .*AccessDenied"):
        remote.put("x", b"1")
    assert count(s3_faults, "PUT", "/x") == 1


def test_a_server_that_falls_silent_is_given_up_and_asked_again(
    s3_bucket: Callable[[], str], s3_faults: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3_bucket()
    monkeypatch.setattr(s3, "_SILENCE_S", 1)
    monkeypatch.setattr(s3, "_local", threading.local())
    remote = open_storage(uri)
    remote.put("x", b"1")
    s3_faults.fail("delay", "GET", "/x", 1, 5)
    begun = time.monotonic()
    assert remote.get("x") == b"1"
    assert 1 <= time.monotonic() - begun < 5


def test_a_large_file_goes_in_parts_and_a_part_that_fails_alone_is_repeated(
    remote: Storage, s3_faults: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 5 << 20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 << 20))
    s3_faults.fail("drop", "PUT", "partNumber=2")
    remote.put_file("large", path)
    assert remote.get("large") == path.read_bytes()
    assert count(s3_faults, "PUT", "partNumber=") == 4
    assert not list(remote.unfinished())
    assert remote.fetch("large", tmp_path / "back").read_bytes() == path.read_bytes()
    assert remote.get_range("large", (5 << 20) - 10, 20) == path.read_bytes()[(5 << 20) - 10 : (5 << 20) + 10]


def test_a_store_that_keeps_more_than_it_was_given_is_noticed_at_the_upload(
    remote: Storage, s3_faults: S3Proxy, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    s3_faults.mangle = True
    with pytest.raises(OperationError, match=r"/file holds \d+ of 5 bytes: the store changes what it is given"):
        remote.put_file("file", tmp_path / "file")


def test_a_missing_bucket_is_not_taken_for_a_missing_object(s3_faults: S3Proxy) -> None:
    with pytest.raises(OperationError, match="no-such-bucket") as raised:
        open_storage("s3://no-such-bucket/prefix").get("x")
    assert not isinstance(raised.value, MissingObjectError)


def test_no_request_names_a_bucket_in_its_host(remote: Storage, s3_faults: S3Proxy) -> None:
    """Another server than Amazon's is addressed by path: it seldom has a name for every bucket."""
    remote.put("x", b"1")
    for _, path, headers in s3_faults.requests:
        assert path.startswith("/bucket-") and headers["Host"].startswith("127.0.0.1:")


def test_no_checksum_trailer_is_sent(remote: Storage, s3_faults: S3Proxy, tmp_path: Path) -> None:
    """Some stores keep it inside the body."""
    (tmp_path / "file").write_bytes(b"12345")
    remote.put("x", b"1")
    remote.put_file("file", tmp_path / "file")
    assert s3_faults.requests
    for _, _, headers in s3_faults.requests:
        lowered = {name.lower(): value.lower() for name, value in headers.items()}
        assert "x-amz-trailer" not in lowered and "aws-chunked" not in lowered.get("content-encoding", "")
