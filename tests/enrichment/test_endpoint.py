"""The engine that asks a server: a small real HTTP server stands in for it and does as it is told."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from enrichment import endpoint, models
from enrichment.admission import Admission
from enrichment.endpoint import EndpointEngine, ServedModel
from enrichment.engine import Completion, ModelOptions, PromptRefusedError, Sampling
from enrichment.errors import ConfigError, OperationError
from jobs import config, doctor, refresh

SAMPLING = Sampling(max_tokens=96)
URGENT = Sampling(max_tokens=96, repetition_penalty=1.3, urgent=True)
PROBE = endpoint._PROBE
PROMPT = [5, 6, 7, 8]
Reply = tuple[int, Any]


class Server(ThreadingHTTPServer):
    """`completions` answers requests; `bodies` are those received, without probes; `most` is how many came at once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: Reply = (200, {"object": "list", "data": [model("served")]})
        self.completions: Callable[[dict[str, Any]], Reply] = lambda body: (200, completion())
        self.received: list[dict[str, Any]] = []
        self.authorizations: set[str | None] = set()
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for body in self.received if body["prompt"] != PROBE]

    @property
    def probes(self) -> list[dict[str, Any]]:
        return [body for body in self.received if body["prompt"] == PROBE]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.reply(*(self.server.models if self.path == "/v1/models" else (404, {})))

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.now += 1
            server.most = max(server.most, server.now)
            server.received.append(body)
            server.authorizations.add(self.headers["Authorization"])
        answer = server.completions(body) if self.path == "/v1/completions" else (404, {})
        with server.lock:
            server.now -= 1
        self.reply(*answer)

    def reply(self, status: int, content: Any) -> None:
        page = isinstance(content, str)
        data = content if isinstance(content, bytes) else (content if page else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if page else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def model(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "test", **more}


def completion(text: str = " stands at the end.", **usage: Any) -> dict[str, Any]:
    counted = {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9, **usage}
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    return {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "served",
        "choices": [choice],
        "usage": counted,
    }


def refusal(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "code": 400}}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRIES", 3)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "SITUATE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def options(server: Server, **more: Any) -> ModelOptions:
    return ModelOptions("owner/model", endpoint=server.url, **more)


def ask(engine: EndpointEngine, *samplings: Sampling, prompt: Sequence[int] = PROMPT) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return list(await asyncio.gather(*(engine.generate(prompt, sampling) for sampling in samplings)))

    return asyncio.run(all_of_them())


def test_a_prompt_goes_as_token_ids_and_the_answer_comes_with_its_counts(server: Server) -> None:
    details = {"cached_tokens": 3}
    server.completions = lambda body: (200, completion(prompt_tokens_details=details))
    engine = EndpointEngine(options(server))
    assert not engine.reports_cached
    assert ask(engine, SAMPLING) == [Completion(" stands at the end.", "stop", 4, 3, 5)]
    assert engine.reports_cached
    expected = {"model": "served", "prompt": PROMPT, "max_tokens": 96, "temperature": 0.0, "stop": ["\n"]}
    assert server.bodies == [expected | {"repetition_penalty": 1.1}]
    assert server.authorizations == {"Bearer none"}


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}}])
def test_cached_tokens_that_are_not_counted_are_none_and_known_as_such(server: Server, usage: dict[str, Any]) -> None:
    server.completions = lambda body: (200, completion(**usage))
    engine = EndpointEngine(options(server))
    assert ask(engine, SAMPLING)[0].cached_tokens == 0
    assert not engine.reports_cached


def test_a_second_attempt_goes_before_others_where_the_server_can(server: Server) -> None:
    ask(EndpointEngine(options(server)), URGENT)
    assert (server.bodies[0]["priority"], server.bodies[0]["repetition_penalty"]) == (-1, 1.3)
    assert len(server.probes) == 1


@pytest.mark.parametrize(
    ("unknown", "first", "second"),
    [
        ({"priority"}, {"repetition_penalty": 1.1}, {"repetition_penalty": 1.3}),
        ({"repetition_penalty"}, {}, {"frequency_penalty": 0.5, "priority": -1}),
        ({"repetition_penalty", "priority"}, {}, {"frequency_penalty": 0.5}),
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_fields_that_a_server_refuses_are_left_out_from_the_start(
    server: Server, unknown: set[str], first: dict[str, Any], second: dict[str, Any], status: int
) -> None:
    def completions(body: dict[str, Any]) -> Reply:
        return (status, refusal("Unrecognized request argument")) if unknown & body.keys() else (200, completion())

    server.completions = completions
    engine = EndpointEngine(options(server))
    assert len(ask(engine, SAMPLING, URGENT)) == 2
    plain = {"model", "prompt", "max_tokens", "temperature", "stop"}
    bodies = [{k: v for k, v in body.items() if k not in plain} for body in server.bodies]
    assert bodies in ([first, second], [second, first])  # both are with the server at once
    assert len(server.probes) == 3


def test_a_busy_server_is_asked_again(server: Server) -> None:
    engine = EndpointEngine(options(server))
    replies = iter([(429, {}), (503, {}), (200, completion())])
    server.completions = lambda body: next(replies)
    assert ask(engine, SAMPLING)[0].finish_reason == "stop"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_prompt_leaves_the_others_alone(server: Server, status: int) -> None:
    long = "too   long\n" * 100
    server.completions = lambda body: (status, refusal(long)) if body["prompt"] == [9] else (200, completion())
    engine = EndpointEngine(options(server))

    async def both() -> list[Any]:
        calls = (engine.generate(prompt, SAMPLING) for prompt in ([9], PROMPT))
        return list(await asyncio.gather(*calls, return_exceptions=True))

    refused, answered = asyncio.run(both())
    assert isinstance(refused, PromptRefusedError) and isinstance(answered, Completion)
    assert "too long too long" in str(refused) and len(str(refused)) <= 200
    assert len(server.bodies) == 2, "a refused prompt is not sent again"


@pytest.mark.parametrize(
    ("reply", "words", "tries"),
    [
        ((500, {}), "answers 500 on /completions; the log of the server says why", 4),
        ((401, refusal("wrong key: geheim")), "answers 401 on /completions; set SITUATE_API_KEY", 1),
        ((403, {}), "answers 403 on /completions; set SITUATE_API_KEY", 1),
        ((404, {}), "answers 404 on /completions; the model is no longer served, the key in SITUATE_API_KEY", 1),
        ((200, "<html>sign in</html>"), "answered without a completion", 1),
        ((200, completion() | {"choices": []}), "answered without a completion", 1),
    ],
)
def test_a_server_that_fails_ends_the_work(server: Server, reply: Reply, words: str, tries: int) -> None:
    engine = EndpointEngine(options(server))
    server.completions = lambda body: reply
    with pytest.raises(OperationError) as caught:
        ask(engine, SAMPLING)
    assert words in str(caught.value) and server.url in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert len(server.bodies) == tries


def test_a_server_that_is_gone_is_named(server: Server) -> None:
    engine = EndpointEngine(options(server))
    server.shutdown()
    server.server_close()
    with pytest.raises(OperationError, match=f"{server.url} cannot be reached"):
        ask(engine, SAMPLING)
    with pytest.raises(OperationError, match="cannot be reached"):
        EndpointEngine(options(server))
    with pytest.raises(ConfigError, match="cannot be reached; start the server"):
        endpoint.check(options(server))


def test_a_server_that_does_not_answer_in_time_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRIES", 0)
    engine = EndpointEngine(options(server))
    engine._client = engine._client.with_options(timeout=0.02)
    server.completions = lambda body: time.sleep(0.1) or (200, completion())  # type: ignore[func-returns-value]
    with pytest.raises(OperationError, match="did not answer in time; lower model.concurrency"):
        ask(engine, SAMPLING)


def ask_in_order(engine: EndpointEngine, numbers: Sequence[int]) -> None:
    """As a strategy asks: each request when it is let in."""
    admission = Admission(engine.capacity)

    async def one(number: int) -> None:
        async with admission.request():
            await engine.generate([number], SAMPLING)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in numbers))

    asyncio.run(all_of_them())


def test_as_many_requests_as_allowed_are_with_the_server_at_once(server: Server) -> None:
    engine = EndpointEngine(options(server, concurrency=3))
    together = threading.Barrier(3, timeout=5)

    def completions(body: dict[str, Any]) -> Reply:
        together.wait()
        time.sleep(0.01)  # for a fourth to come, if there is one
        return 200, completion()

    server.completions = completions
    ask_in_order(engine, range(10, 22))
    assert (server.most, len(server.bodies)) == (3, 12)


def test_requests_go_in_the_order_of_the_calls(server: Server) -> None:
    ask_in_order(EndpointEngine(options(server, concurrency=1)), range(10, 22))
    assert [body["prompt"] for body in server.bodies] == [[number] for number in range(10, 22)]


def test_the_key_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "general")
    endpoint.check(options(server))
    monkeypatch.setenv("SITUATE_API_KEY", "own")
    ask(EndpointEngine(options(server)), SAMPLING)
    assert server.authorizations == {"Bearer general", "Bearer own"}


@pytest.mark.parametrize(
    ("names", "served_name", "expected"),
    [
        (["other"], None, "other"),
        (["owner/model", "other"], None, "owner/model"),
        (["one", "two"], "two", "two"),
        (["one"], "one", "one"),
    ],
)
def test_which_of_the_served_models_is_asked(
    server: Server, names: list[str], served_name: str | None, expected: str
) -> None:
    server.models = 200, {"object": "list", "data": [model(name) for name in names]}
    assert endpoint.check(options(server, served_name=served_name)).id == expected
    assert {body["model"] for body in server.received} == {expected}


@pytest.mark.parametrize(
    ("names", "served_name", "words"),
    [
        ([], None, "does not serve owner/model but no model;"),
        (["two", "one"], None, "does not serve owner/model but one, two;"),
        (["one"], "two", "does not serve two but one;"),
    ],
)
def test_a_model_that_is_not_served_is_refused_with_those_that_are(
    server: Server, names: list[str], served_name: str | None, words: str
) -> None:
    server.models = 200, {"object": "list", "data": [model(name) for name in names]}
    for start in (endpoint.check, EndpointEngine):
        with pytest.raises(ConfigError, match=words) as caught:
            start(options(server, served_name=served_name))
        assert server.url in str(caught.value) and "model.served_name" in str(caught.value)


def test_the_check_returns_what_the_server_says_of_its_model(server: Server) -> None:
    server.models = 200, {"object": "list", "data": [model("m", root="/models/m", max_model_len=8192)]}
    assert endpoint.check(options(server)) == ServedModel("m", 8192)
    assert [(body["prompt"], body["max_tokens"]) for body in server.received] == [(PROBE, 1)]


def test_a_server_with_too_short_a_window_is_refused(server: Server) -> None:
    server.models = 200, {"object": "list", "data": [model("m", max_model_len=4096)]}
    with pytest.raises(ConfigError, match=r"model.max_model_len is 8192, but .* serves m with 4096 tokens; lower it"):
        endpoint.check(options(server))
    assert endpoint.check(options(server, max_model_len=4096)).max_model_len == 4096


@pytest.mark.parametrize(
    ("models", "completions", "words"),
    [
        (None, (404, {"detail": "Not Found"}), "only takes chat messages, which is not supported"),
        (None, (405, {}), "only takes chat messages, which is not supported"),
        (None, (400, refusal("prompt must be a string")), "takes no prompts of token ids on /completions"),
        ((404, {}), None, r"answers 404 on /models; see that the address is right \(most end in /v1\)"),
        ((401, {}), None, "answers 401 on /models; set SITUATE_API_KEY"),
        ((200, "<html>hello</html>"), None, "does not serve owner/model but no model"),
        ((200, {"data": None}), None, "does not serve owner/model but no model"),
        ((200, b"{"), None, "gives no answer of an OpenAI-compatible server on /models; correct the address"),
    ],
)
def test_a_server_that_will_not_do_is_refused_before_anything_is_spent(
    server: Server, models: Reply | None, completions: Reply | None, words: str
) -> None:
    server.models = models or server.models
    if completions:
        server.completions = lambda body: completions
    with pytest.raises(ConfigError, match=words) as caught:
        endpoint.check(options(server))
    assert f"model.endpoint {server.url} " in str(caught.value) and "\n" not in str(caught.value)


def test_the_fingerprint_is_the_models_and_not_the_servers() -> None:
    same = endpoint.fingerprint(ServedModel("m", 8192), None)
    assert endpoint.fingerprint(ServedModel("m", 4096), None) == same
    assert len({same, endpoint.fingerprint(ServedModel("n"), None), endpoint.fingerprint(ServedModel("m"), "abc")}) == 3


DOCUMENT = """# Parental leave

Everyone who becomes a parent may take leave. It lasts up to twelve months and is paid for the first six of them.

## Notice

Announce the leave seven weeks ahead. In urgent cases two weeks are enough, and the manager decides within three days.
"""


def model_section(url: str, **more: Any) -> dict[str, Any]:
    return {"name": "smollm2-135m-instruct", "endpoint": url, **more}


def test_a_run_asks_the_server_and_its_rows_carry_the_served_models_fingerprint(
    server: Server, stage: Callable[..., Any]
) -> None:
    server.completions = lambda body: (200, completion(" explains who may take leave and for how long."))
    staged = stage({"a.md": DOCUMENT}, model=model_section(server.url))
    row = staged.summary.to_pylist()[0]
    assert row["chunks_ok"] == row["num_rows"] == len(server.bodies) > 1
    assert row["tokens_cached"] == 0 and row["tokens_prompt"] == sum(len(body["prompt"]) for body in server.bodies)
    expected = refresh.check_models(staged.run.config)[1]["model"]
    assert staged.run.model_fingerprint == expected == endpoint.fingerprint(ServedModel("served"), None)


def test_a_window_that_the_server_does_not_tell_is_checked_against_the_models_own(server: Server) -> None:
    settings = {"corpus": "c", "documents": {"uri": "d"}, "embedding": {"name": "fake"}}
    parsed = config.parse(settings | {"model": model_section(server.url, max_model_len=100_000)})
    with pytest.raises(ConfigError, match="smollm2-135m-instruct takes 8192 tokens; lower it"):
        refresh.check_models(parsed)
    server.models = 200, {"data": [model("served", max_model_len=100_000)]}
    refresh.check_models(parsed)


def test_the_doctor_looks_at_the_server_and_does_not_ask_for_vllm(server: Server, tmp_path: Path) -> None:
    settings = {"corpus": str(tmp_path / "c"), "documents": {"uri": "d"}, "embedding": {"name": "fake"}}
    parsed = config.parse(settings | {"model": model_section(server.url)})
    checks = {check["name"]: check for check in doctor.examine(parsed)["checks"]}
    assert checks["model server"]["ok"] and checks["model server"]["detail"] == f"{server.url} serves served"
    assert checks["openai"]["ok"] and "vllm" not in checks
    server.models = 401, {}
    checks = {check["name"]: check for check in doctor.examine(parsed)["checks"]}
    assert not checks["model server"]["ok"] and "SITUATE_API_KEY" in checks["model server"]["detail"]


def test_of_a_served_model_only_the_tokenizers_files_are_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    from jobs.models import resolve_model

    resolve_model(ModelOptions("owner/model", endpoint="http://host/v1"))
    resolve_model(ModelOptions("owner/model"))
    assert asked[0] == ["*.json", "*.txt", "*.model", "*.jinja"] and "*.safetensors" in asked[1]


@pytest.fixture
def vllm_url(tmp_path: Path) -> Iterator[str]:
    """vLLM's own server, on a CPU."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory = models.resolve("smollm2-135m-instruct")
    # `vllm serve` asks for the version of a package `vllm`, which the build for CPUs is not called.
    settings = {"model": directory, "served-model-name": "small", "host": "127.0.0.1", "port": port}
    settings |= {"max-model-len": 8192, "block-size": 32, "dtype": "bfloat16"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += ["--enable-prompt-tokens-details", *(f"--{name}={value}" for name, value in settings.items())]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 300
            while process.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            else:
                pytest.fail((tmp_path / "log").read_text()[-2000:])
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.soak
@pytest.mark.model
def test_vllms_own_server_shares_prefixes_and_counts_them(vllm_url: str, stage: Callable[..., Any]) -> None:
    served = endpoint.check(ModelOptions("x", endpoint=vllm_url))
    assert (served.id, served.max_model_len) == ("small", 8192)
    with pytest.raises(ConfigError, match="serves small with 8192 tokens"):
        endpoint.check(ModelOptions("x", endpoint=vllm_url, max_model_len=8193))
    row = stage({"a.md": DOCUMENT * 3}, model=model_section(vllm_url)).summary.to_pylist()[0]
    assert row["num_rows"] == row["chunks_ok"] + row["chunks_fallback"] > 2
    assert row["tokens_cached"] > 0 and row["tokens_output"] > row["num_rows"]
    computed = row["tokens_prompt"] - row["tokens_cached"]
    # Requests that run side by side cannot yet share what both are computing.
    assert computed >= row["tokens_ideal"] + row["tokens_block_rounding"] + row["tokens_retries"]
    with pytest.raises(PromptRefusedError):
        ask(EndpointEngine(ModelOptions("x", endpoint=vllm_url)), SAMPLING, prompt=[5] * 8200)
