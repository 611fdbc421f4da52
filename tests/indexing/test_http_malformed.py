"""Ten thousand malformed requests: no answer is a failure of the service's own, and none shows its insides.

Three ways in, each with a fixed seed: what the schema does and does not allow (schemathesis), any bytes where the server hands
requests on, and any bytes on a socket.
"""

import asyncio
import contextlib
import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from starlette.testclient import TestClient

from indexing import http, serving
from indexing.http import Service

THROUGH_SCHEMA, THROUGH_APPLICATION, THROUGH_SOCKET = 400, 8_200, 1_400
BYTES = bytes(range(256))
WORDS = [
    *(b"q k mode window within budget id index first count text token".split()),
    *(
        b"roof hybrid dense lexical section true null NaN -1 0 1 5 100 101 1e9 99999999999999999999 0x10 \xd9\xa3".split()
    ),
    *(b"a.md ../x %2e%2e%2f %00 %ff %ed%a0%80 %u0041 {} [] ' \" <script> ${x} %25 ; , \xff\xfe".split()),
    *(b"\x00", b"\r\n", b"A" * 3000, b"%41" * 900, b"q[]", b"q.x", b"__proto__", b"%F0%9F%91%A9", b"\xe2\x80\xae"),
]
PATHS = [b"/search", b"/document", b"/chunk", b"/chunks", b"/snapshot", b"/health", b"/metrics", b"/openapi.json", b"/"]
METHODS = ["GET"] * 8 + ["POST", "HEAD", "OPTIONS", "TRACE", "get", "\u00e9", "PRI"]
HEADERS = [
    b"host",
    b"authorization",
    b"content-length",
    b"transfer-encoding",
    b"accept",
    b"range",
    b"if-none-match",
    b"cookie",
    b"expect",
]


@pytest.fixture(scope="module")
def service(stage: Any) -> Iterator[Service]:
    staged = stage({"a.md": "# Roof\n\nThe tenant repairs the roof. The landlord pays.", "b.md": "One."})
    staged.publish()
    corpus = serving.open(staged.storage.uri)
    built = http.service(corpus)
    assert TestClient(built.app, "http://localhost").get("/search?q=roof").status_code == 200
    yield built
    corpus.close()


def check(status: int, body: bytes, asked: object) -> None:
    """An answer that is no failure and keeps to the rule of one sentence."""
    assert 200 <= status < 500, (status, body[:300], asked)
    assert b"Traceback" not in body, asked
    assert b'File "/' not in body, asked
    if status >= 400 and body:
        assert list(json.loads(body)) == ["error"], (status, body[:300], asked)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_what_the_schema_allows_and_forbids_is_answered_as_it_says(service: Service, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(service.app.openapi())
    schema.app = service.app
    conforms = [
        schemathesis.checks.CHECKS.get_one(name)
        for name in ("not_a_server_error", "response_schema_conformance", "content_type_conformance")
    ]
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=THROUGH_SCHEMA // 2,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(headers={"Host": "localhost"})
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=conforms)
        if answer.headers.get("content-type", [""])[0].startswith("application/json"):
            check(answer.status_code, answer.content, case)

    ask()
    assert sum(statuses.values()) >= THROUGH_SCHEMA // 2
    assert statuses[422 if mode is GenerationMode.NEGATIVE else 200] > 20, "what was meant to be asked was asked"


def scrambled(random_: random.Random, pieces: list[bytes], most: int) -> bytes:
    """A few pieces on end, some of them bytes without a meaning."""
    chosen = random_.choices(pieces, k=random_.randint(0, most))
    return b"".join(
        p if random_.random() < 0.8 else bytes(random_.choices(BYTES, k=random_.randint(1, 12))) for p in chosen
    )


def query_of(random_: random.Random) -> bytes:
    if random_.random() < 0.2:
        return scrambled(random_, [*WORDS, b"=", b"&"], 9)
    pairs = (random_.choice(WORDS) + b"=" + scrambled(random_, WORDS, 3) for _ in range(random_.randint(0, 6)))
    return (b"id=a.md&q=roof&" if random_.random() < 0.3 else b"") + b"&".join(pairs)


async def call(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    """Hand a request to the application as a server would, whatever is in it."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_any_bytes_that_a_server_hands_on_are_answered(service: Service) -> None:
    random_ = random.Random(20261130)

    async def ask_all() -> Counter[int]:
        statuses: Counter[int] = Counter()
        for _ in range(THROUGH_APPLICATION):
            path = random_.choice(PATHS) if random_.random() < 0.9 else b"/" + scrambled(random_, WORDS, 4)
            headers = [(random_.choice(HEADERS), scrambled(random_, WORDS, 3)) for _ in range(random_.randint(0, 4))]
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": random_.choice(METHODS),
                "scheme": "http",
                "path": path.decode("utf-8", "replace"),
                "raw_path": path,
                "root_path": "",
                "query_string": query_of(random_),
                # A name that is not this machine's ends at the gate; most are to get further.
                "headers": [*headers, *([(b"host", b"localhost")] if random_.random() < 0.95 else [])],
                "client": None,
                "server": ("127.0.0.1", 80),
            }
            status, body = await call(service.app, scope, scrambled(random_, WORDS, 5))
            check(status, body if path not in (b"/", b"/metrics") else b"", scope)
            statuses[status] += 1
        return statuses

    statuses = asyncio.run(ask_all())
    assert set(statuses) >= {200, 404, 405, 421, 422}, "every kind of refusal was met"


@pytest.fixture(scope="module")
def port(service: Service) -> Iterator[int]:
    """A real server in a thread."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    options: dict[str, Any] = {"log_config": None, "access_log": False, "http": "h11", "ws": "none", "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(service.app, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(20)


def test_any_bytes_on_a_socket_are_answered_or_hung_up_on(service: Service, port: int) -> None:
    random_ = random.Random(1130)
    statuses: Counter[int] = Counter()
    for _ in range(THROUGH_SOCKET):
        line = b" ".join(
            (
                random_.choice(METHODS).encode(),
                random_.choice(PATHS) + b"?" + query_of(random_),
                random_.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""]),
            )
        )
        heads = [b"Host: localhost", b"Connection: close"]
        heads += [random_.choice(HEADERS) + b": " + scrambled(random_, WORDS, 3) for _ in range(random_.randint(0, 3))]
        data = line + b"\r\n" + b"\r\n".join(heads) + b"\r\n\r\n" + scrambled(random_, WORDS, 3)
        if random_.random() < 0.2:
            data = b"x" + scrambled(random_, [data, *WORDS], 4) + b"\r\n\r\n"  # a head that ends: none is waited for
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            answer = exchange(connection, data)
        if answer:
            status = int(answer.split(b" ", 2)[1])
            statuses[status] += 1
            assert 200 <= status < 500, (answer[:300], data)
            assert b"Traceback" not in answer, data
    assert statuses[200] > 20
    assert statuses[400] > 20, "the server's own refusals"
    assert statuses[422] > 20
    for _ in range(50):
        if TestClient(service.app, "http://localhost").get("/metrics").text.count("situate_requests_in_work 0.0"):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a place is held by a request that is over")


def exchange(connection: socket.socket, data: bytes) -> bytes:
    """The first answer to these bytes; nothing where the server hangs up or waits for more."""
    connection.settimeout(1)
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        connection.sendall(data)
        while not is_whole(answer) and (received := connection.recv(65_536)):
            answer += received
    return answer


def is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return length is not None and len(body) >= int(length[1])
