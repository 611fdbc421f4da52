"""`situate serve`: open a corpus, listen, answer until told to stop.

Beyond loopback nothing is served without a token. The corpus is opened and warmed before the port answers, so that a request
that gets through gets an answer; SIGTERM and SIGINT end it when the requests in work have been answered.
"""

import argparse
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from enrichment.errors import ConfigError, OperationError

TOKEN_VARIABLE = "SITUATE_TOKEN"
MIN_TOKEN_LENGTH = 16
"""Characters. What `openssl rand -hex 16` makes is twice as long; a word can be guessed over the network."""

Announce = Callable[[dict[str, Any]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("corpus")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes a free one")
    parser.add_argument(
        "--token",
        help=f"what requests must bring (better: {TOKEN_VARIABLE}, which other users of the machine cannot see)",
    )
    parser.add_argument("--follow", type=float, metavar="SECONDS", help="look for a newer snapshot every so often")


def serve(options: argparse.Namespace, announce: Announce) -> None:
    """Serve until a signal; `announce` gets {url, snapshot} once requests are answered.

    Raises ConfigError before anything is opened if it may not listen, OperationError if it cannot.
    """
    token = _token(options)
    if options.follow is not None and not options.follow >= 1:
        raise ConfigError(f"--follow is {options.follow:g}; it must be at least 1 second")
    listener = _bound(options.host, options.port, token)
    try:
        import uvicorn

        from indexing import http, serving
        from indexing.follower import Follower
    except ModuleNotFoundError as error:
        raise ConfigError(f"serving needs the package {error.name}; install situate[serve]") from error
    logging.getLogger("indexing.follower").setLevel(logging.INFO)  # a swap is news, with or without -v
    with ExitStack() as resources:
        resources.callback(listener.close)
        corpus = serving.open(options.corpus)
        resources.callback(corpus.close)
        with corpus.using("hybrid") as snapshot:
            snapshot.warm("hybrid")
        limits = http.Limits()
        built = http.service(corpus, token, limits)
        resources.callback(built.workers.close)
        if options.follow is not None:
            resources.enter_context(Follower(corpus, options.follow, built.metrics))
        server = uvicorn.Server(
            uvicorn.Config(
                built.app,
                log_config=None,
                access_log=False,  # it would hold what people ask
                http="h11",  # its limit on the size of a request's head holds with and without httptools
                ws="none",
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=int(limits.timeout_s) + 1,
            )
        )
        # uvicorn hands the signal on when it has ended well; nobody is to take that for a failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            resources.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        listener.listen()
        announce({"url": _url(listener), "snapshot": corpus.manifest.sequence})
        server.run(sockets=[listener])


def _token(options: argparse.Namespace) -> str | None:
    """The token, or None. Raises ConfigError, without the token in it, for one that protects nothing."""
    token: str | None = options.token if options.token is not None else os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        return None
    if len(token) < MIN_TOKEN_LENGTH or not all("!" <= character <= "~" for character in token):
        raise ConfigError(
            f"the token is shorter than {MIN_TOKEN_LENGTH} characters, or has some that are not plain visible ASCII; "
            "`openssl rand -hex 16` makes one"
        )
    return token


def _bound(host: str, port: int, token: str | None) -> socket.socket:
    """A socket on the address, which does not answer yet. The address that was judged is the one that is bound."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}; it must be from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host is {host}, which is no address of this machine ({error})") from error
    if token is None and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ConfigError(
            f"--host is {host}, which others can reach: set {TOKEN_VARIABLE} to a secret of at least "
            f"{MIN_TOKEN_LENGTH} characters, or listen on 127.0.0.1"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OperationError(f"{host} port {port} cannot be listened on ({error.strerror}); choose another") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
