"""A proxy before an S3 server, for what the server itself does not do: a real compare-and-swap, and faults on demand.

Conditional writes take turns, so that the server's check and its write are one step. `fail(...)` queues a fault for the next
requests that match; each is used once, or `times` times.
"""

import http.client
import socket
import struct
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fault:
    """`drop`: the request is carried out, the answer is lost. `cut`: the answer ends in the middle of its body. `delay`: the
    answer comes late. `status`: the request is not carried out, the answer is this status."""

    kind: str
    method: str
    part: str
    times: int
    value: Any


_CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    503: "SlowDown",
}


class S3Proxy:
    """Listens on loopback; forwards to `host:port`."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.ignore_conditions = self.mangle = False
        self.swap, self._lock = threading.Lock(), threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fail(self, kind: str, method: str, part: str, times: int = 1, value: Any = None) -> None:
        self.faults.append(Fault(kind, method, part, times, value))

    def reset(self) -> None:
        self.faults.clear()
        self.requests.clear()
        self.ignore_conditions = self.mangle = False

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times and fault.method == method and fault.part in path:
                    fault.times -= 1
                    return fault
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: S3Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # header and body in one packet, or each answer waits 40 ms for an acknowledgement

    def handle_expect_100(self) -> bool:
        """Say at once that the body may come: the client waits a second for it."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def do_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        self.owner.requests.append((self.command, self.path, headers))
        fault = self.owner.take(self.command, self.path)
        if fault and fault.kind == "status":
            return self.answer(fault.value, {}, f"<Error><Code>{_CODES[fault.value]}</Code></Error>".encode())
        conditions = [name for name in headers if name.lower() in ("if-none-match", "if-match")]
        if self.owner.ignore_conditions:
            for name in conditions:
                del headers[name]
        if self.owner.mangle and self.command == "PUT":
            body += b"\r\nx-amz-checksum-crc32:AAAAAA==\r\n"
            headers["Content-Length"] = str(len(body))
        if conditions:
            with self.owner.swap:
                status, found, data = self.forward(headers, body)
        else:
            status, found, data = self.forward(headers, body)
        if fault and fault.kind == "delay":
            time.sleep(fault.value)
        if fault and fault.kind == "drop":
            return self.break_off()
        if fault and fault.kind == "cut":
            self.answer(status, found, data, shown=len(data) // 2)
            return self.break_off()
        self.answer(status, found, data)

    def forward(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.owner.target, timeout=60)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        data = response.read()
        found = dict(response.getheaders())
        connection.close()
        return response.status, found, data

    def answer(self, status: int, headers: dict[str, str], data: bytes, shown: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        length = headers.get("Content-Length", len(data)) if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:shown])
        self.wfile.flush()

    def break_off(self) -> None:
        """Reset the connection, as a network does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

    def log_message(self, *arguments: object) -> None:
        pass
