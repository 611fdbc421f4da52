"""The HTTP service: what it answers, to whom, and what it does when it cannot."""

import contextlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from enrichment.errors import OperationError
from indexing import gate, http, layout, serving
from indexing.follower import Follower
from indexing.http import Limits
from indexing.serving import Corpus
from indexing.snapshot import Snapshot
from jobs import cli

TOKEN = "0123456789abcdef-secret"
HERE = "http://127.0.0.1"
IDS = ["a/b", "a//b", "../x", "/etc/passwd", ".", "A", "é", "e\u0301", "👩‍👩‍👧", "two\nlines", "x" * 1024, "?q=1&k=2#f"]
ROOF = """# Roof

👩‍👩‍👧 The tenant repairs the roof. The landlord pays for slates. Nobody walks on it.

# Kettle

Vinegar takes scale off a kettle. Rinse it twice. Do not drink the water.
"""


def text_of(name: str) -> str:
    """A document with a few sentences of its own."""
    return f"# {name}\n\n" + "".join(f"Rule {n} of {name} holds for each thing in it. " for n in range(6))


@pytest.fixture(scope="module")
def corpus(stage: Any) -> Iterator[Corpus]:
    """A document with two sections, one with a single chunk, a dozen with awkward ids."""
    odd = [{"id": name, "text": f"Odd number {place} is here. It has a name."} for place, name in enumerate(IDS)]
    files = {"roof.md": ROOF, "one.txt": "One sentence alone.", "odd.jsonl": "\n".join(map(json.dumps, odd))}
    staged = stage(files)
    staged.publish()
    opened = serving.open(staged.storage.uri)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def client(corpus: Corpus) -> TestClient:
    return client_of(corpus)


def client_of(corpus: Corpus, token: str | None = None, limits: Limits | None = None) -> TestClient:
    return TestClient(http.service(corpus, token, limits or Limits()).app, HERE)


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"window": "1"},
        {"window": "2", "within": "section"},
        {"window": "25", "window-by": "characters"},
        {"window": "4", "window-by": "tokens", "within": "section"},
        {"expand": "parent"},
        {"expand": "parent", "budget": "150"},
        {"expand": "run"},
        {"expand": "run", "run-penalty": "0.05", "run-length": "3"},
        {"budget": "60"},
        {"title": "roof"},
        {"id-prefix": "roof"},
        {"fusion": "scores"},
    ],
)
def test_search_answers_what_the_command_prints(
    corpus: Corpus, client: TestClient, capsys: pytest.CaptureFixture[str], mode: str, more: dict[str, str]
) -> None:
    more = {name: value for name, value in more.items() if mode == "hybrid" or name != "fusion"}
    flags = [text for name, value in more.items() for text in (f"--{name}", value)]
    assert cli.main(["search", corpus.storage.uri, "vinegar roof", "--mode", mode, *flags, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passages"]
    named = {name.replace("-", "_"): value for name, value in more.items()}
    assert client.get("/search", params={"q": "vinegar roof", "mode": mode, **named}).json() == printed


def test_a_filter_keeps_out_what_does_not_pass(client: TestClient) -> None:
    found = client.get("/search", params={"q": "roof", "id_prefix": "one"}).json()["passages"]
    assert [passage["document_id"] for passage in found] == ["one.txt"]
    assert client.get("/search", params={"q": "roof", "where": ["owner=nobody"]}).json()["passages"] == []


def test_k_counts_hits(client: TestClient) -> None:
    answer = client.get("/search", params={"q": "the roof", "k": 2, "mode": "dense"}).json()
    assert sum(len(passage["hits"]) for passage in answer["passages"]) == 2


def test_a_hit_says_where_it_is_in_its_passage(corpus: Corpus, client: TestClient) -> None:
    asked = {"q": "roof slates kettle", "k": "5", "window": "1", "mode": "lexical"}
    passages = client.get("/search", params=asked).json()["passages"]
    assert any(len(passage["hits"]) > 1 for passage in passages)
    for passage in passages:
        for hit in passage["hits"]:
            row = corpus.rows(passage["document_id"])[hit["chunk_index"]]
            text = corpus.original(passage["document_id"], (row["byte_start"], row["byte_end"]))
            assert passage["text"][hit["start"] - passage["start"] : hit["end"] - passage["start"]] == text


def test_a_chunk_lies_in_its_window_by_code_points(client: TestClient) -> None:
    answer = client.get("/chunk", params={"id": "roof.md", "index": 2, "window": 1}).json()
    chunk, window = answer["chunk"], answer["window"]
    assert chunk["original"].strip() == "The landlord pays for slates."
    assert window["text"][chunk["start"] - window["start"] : chunk["end"] - window["start"]] == chunk["original"]
    assert "👩‍👩‍👧" in window["text"][: chunk["start"]], "an offset in UTF-16 or bytes would be another"
    assert (window["first"], window["last"]) == (1, 3)
    assert chunk["status"] == "ok"
    assert chunk["context"]
    assert chunk["context"] not in window["text"]
    assert chunk["header"] == "Roof"


def test_a_window_stops_at_the_section_on_demand(client: TestClient) -> None:
    asked = {"id": "roof.md", "index": 3, "window": 1}
    assert "# Kettle" in client.get("/chunk", params=asked).json()["window"]["text"]
    assert "# Kettle" not in client.get("/chunk", params={**asked, "within": "section"}).json()["window"]["text"]


def test_a_window_counts_characters_or_tokens_and_is_what_a_search_for_the_chunk_has(
    corpus: Corpus, client: TestClient
) -> None:
    for by, size, extra in (("characters", 7, {}), ("tokens", 3, {}), ("characters", 500, {"within": "section"})):
        how = {"window": size, "window_by": by, **extra}
        answer = client.get("/chunk", params={"id": "roof.md", "index": 2, **how}).json()
        window, chunk = answer["window"], answer["chunk"]
        found = client.get("/search", params={"q": "slates", "k": 1, "mode": "lexical", **how}).json()["passages"][0]
        assert found["hits"][0]["chunk_index"] == 2
        assert [window[name] for name in ("start", "end", "text")] == [found[name] for name in ("start", "end", "text")]
        assert window["text"] == corpus.original("roof.md")[window["start"] : window["end"]]
        assert window["first"] <= 2 <= window["last"]
        if by == "characters" and not extra:
            assert (window["start"], window["end"]) == (chunk["start"] - 7, chunk["end"] + 7)
            assert (window["first"], window["last"]) == (2, 2), "its neighbours are not in it whole"


def test_all_chunks_of_a_document_are_its_original_in_order_in_pages(client: TestClient) -> None:
    whole = client.get("/chunks", params={"id": "roof.md"}).json()
    assert "".join(chunk["original"] for chunk in whole["chunks"]) == ROOF
    assert [chunk["chunk_index"] for chunk in whole["chunks"]] == list(range(whole["document"]["num_chunks"]))
    assert all(chunk["text"] == chunk["original"] for chunk in whole["chunks"]), "no strategy rewrote any"
    paged = [client.get("/chunks", params={"id": "roof.md", "first": n, "count": 3}).json() for n in (0, 3, 6, 9)]
    assert [chunk for page in paged for chunk in page["chunks"]] == whole["chunks"]
    assert paged[3]["chunks"] == []
    (alone,) = client.get("/chunks", params={"id": "one.txt"}).json()["chunks"]
    assert (alone["status"], alone["context"]) == ("skipped", None)
    assert alone["reason"]


def test_a_document_comes_with_its_text_on_demand(client: TestClient) -> None:
    record = client.get("/document", params={"id": "roof.md"}).json()
    assert record["text"] is None
    assert record["document"]["num_bytes"] == len(ROOF.encode())
    assert client.get("/document", params={"id": "roof.md", "text": "true"}).json()["text"] == ROOF


@pytest.mark.parametrize("name", IDS, ids=range(len(IDS)))
def test_an_id_is_only_data(client: TestClient, name: str) -> None:
    text = f"Odd number {IDS.index(name)} is here. It has a name."
    answer = client.get("/document", params={"id": name, "text": "true"}).json()
    assert (answer["document"]["id"], answer["text"]) == (name, text)
    assert client.get("/chunk", params={"id": name, "index": 0, "window": 5}).json()["window"]["text"] == text


def test_the_snapshot_says_what_it_is_and_that_fake_models_made_it(corpus: Corpus, client: TestClient) -> None:
    answer = client.get("/snapshot").json()
    assert answer["snapshot"] == corpus.manifest.sequence
    assert answer["fake"] == ["embedding", "model"]
    assert answer["counts"]["documents"]["total"] == len(IDS) + 2
    assert answer["fingerprints"] == dict(corpus.manifest.fingerprints)
    assert (answer["dense_text"], answer["lexical_text"]) == (["header", "body"], ["context", "header", "body"])


def test_a_model_that_was_not_asked_is_not_called_fake(stage: Any) -> None:
    staged = stage({"a.md": text_of("alder")}, context={"strategy": "header"})
    staged.publish()
    assert client_of(serving.open(staged.storage.uri)).get("/snapshot").json()["fake"] == ["embedding"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/search", 422, "q is missing"),
        ("/search?q=", 422, "q is ''"),
        ("/search?q=%20%0A", 422, "q is empty"),
        ("/search?q=a&k=0", 422, "k is '0'"),
        ("/search?q=a&k=101", 422, "k is '101'"),
        ("/search?q=a&k=many", 422, "k is 'many'"),
        ("/search?q=a&window=-1", 422, "window is '-1'"),
        ("/search?q=a&window=51", 422, "window is '51'; it should be at most 50 chunks"),
        (
            "/search?q=a&window=20001&window_by=characters",
            422,
            "window is '20001'; it should be at most 20000 characters",
        ),
        ("/search?q=a&window_by=tokens&window=4001", 422, "window is '4001'; it should be at most 4000 tokens"),
        ("/search?q=a&window_by=words&window=60", 422, "window_by is 'words'"),
        ("/chunk?id=roof.md&index=1&window=51", 422, "window is '51'; it should be at most 50 chunks"),
        ("/chunk?id=roof.md&index=1&window=51&window_by=words", 422, "window_by is 'words'"),
        ("/search?q=a&expand=page", 422, "expand is 'page'"),
        ("/search?q=a&expand=parent&window=1", 422, "expand is parent, which takes no window"),
        ("/search?q=a&run_length=7", 422, "expand is window, which has no runs"),
        ("/search?q=a&expand=run&run_penalty=1.5", 422, "run_penalty is '1.5'"),
        ("/search?q=a&expand=run&run_penalty=nan", 422, "run_penalty is"),
        ("/search?q=a&expand=run&run_length=101", 422, "run_length is '101'"),
        ("/search?q=a&budget=0", 422, "budget is '0'"),
        ("/search?q=a&where=owner", 422, "no condition on metadata"),
        ("/search?q=a&fusion=best", 422, "fusion is 'best'"),
        ("/search?q=a&dense_weight=0&lexical_weight=0", 422, "one must be above 0"),
        ("/search?q=a&dense_weight=inf", 422, "dense_weight"),
        ("/search?q=a&document_weight=-1", 422, "document_weight"),
        ("/search?q=a&document_weight=1&mode=dense", 422, "mode is dense, which fuses nothing"),
        ("/search?q=a&mode=best", 422, "mode is 'best'"),
        ("/search?q=a&within=page", 422, "within is 'page'"),
        ("/search?q=a&windows=1", 422, "windows is no parameter"),
        (f"/search?q={'a' * 2001}", 422, "at most 2000 characters"),
        (f"/document?id={'a' * 8193}", 422, "at most 8192 characters"),
        ("/document?id=nobody", 404, "holds no document nobody"),
        ("/chunk?id=nobody&index=0", 404, "holds no document nobody"),
        ("/chunk?id=roof.md&index=8", 404, "has chunks 0 to 7; 8 is none of them"),
        ("/chunk?id=roof.md&index=-1", 422, "index is '-1'"),
        ("/chunks?id=roof.md&count=1001", 422, "count is '1001'"),
        ("/nowhere", 404, "GET /nowhere: not found"),
        ("/docs", 404, "not found"),
        ("/page/../../etc/passwd", 404, "not found"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(client: TestClient, path: str, status: int, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert len(answer.json()["error"]) < 300


def test_it_only_reads(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/search?q=a", content=b"{}").status_code == 405


def test_openapi_describes_the_answers_and_names_no_other_host(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert {"/search", "/document", "/chunk", "/chunks", "/snapshot", "/health", "/metrics"} == set(schema["paths"])
    assert set(schema["components"]["schemas"]["PassageHit"]["properties"]) >= {"chunk_index", "score", "context"}
    assert "http://" not in json.dumps(schema)
    assert "https://" not in json.dumps(schema)


def test_openapi_describes_every_way_to_expand_a_hit(client: TestClient) -> None:
    given = client.get("/openapi.json").json()["paths"]["/search"]["get"]["parameters"]
    known = {parameter["name"]: parameter for parameter in given}
    assert known["expand"]["schema"]["enum"] == ["window", "parent", "run"]
    assert known["window_by"]["schema"]["enum"] == ["chunks", "characters", "tokens"]
    assert "50 chunks, 20000 characters, 4000 tokens" in known["window"]["description"]
    assert (known["run_penalty"]["schema"]["maximum"], known["run_length"]["schema"]["maximum"]) == (1, 100)


def test_parents_without_a_budget_have_the_services_own(corpus: Corpus, client: TestClient, monkeypatch: Any) -> None:
    asked = {"q": "vinegar", "mode": "lexical", "expand": "parent"}
    whole = client.get("/search", params=asked).json()["passages"][0]
    monkeypatch.setattr(http, "MAX_BUDGET", len(whole["text"]) - 1)
    (hit,) = client.get("/search", params=asked).json()["passages"]
    assert (hit["start"], hit["end"]) == (hit["hits"][0]["start"], hit["hits"][0]["end"])


@pytest.mark.parametrize("path", ["/", "/page.js", "/search?q=roof", "/search", "/nowhere", "/metrics", "/health"])
def test_every_answer_tells_a_browser_to_trust_only_what_comes_from_here(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "no-cache")


def test_the_page_is_whole_and_is_fetched_again_only_if_it_changed(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for file in http.PAGE.iterdir():
        answer = client.get("/" if file.name == "index.html" else f"/{file.name}")
        assert answer.content == file.read_bytes()
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", ""), "nothing comes from another host"
        assert "innerHTML" not in answer.text
    again = client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/search?q=a", "/document?id=roof.md", "/snapshot", "/metrics", "/openapi.json", "/x"]
)
def test_with_a_token_everything_asks_for_it(corpus: Corpus, path: str) -> None:
    client = client_of(corpus, TOKEN)
    wrong: list[dict[str, str]] = [{}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}]
    wrong += [{"Authorization": f"Bearer {given}"} for given in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é")]
    for headers in wrong:
        answer = client.get(path, headers={name: value.encode() for name, value in headers.items()})  # type: ignore[misc]
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    asked = path + ("&" if "?" in path else "?")
    assert client.get(f"{asked}token={TOKEN}").status_code == 401, "an address is kept in histories and logs"
    right = client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
    assert right.status_code == (404 if path == "/x" else 200)


def test_with_a_token_the_page_and_the_probe_are_open_and_say_nothing(corpus: Corpus) -> None:
    client = client_of(corpus, TOKEN)
    assert client.get("/").status_code == 200
    assert client.get("/page.js").status_code == 200
    assert client.get("/health").json() == {"status": "ready"}


def test_the_token_is_compared_in_constant_time(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(gate, "hmac", SimpleNamespace(compare_digest=compare))
    assert client_of(corpus, TOKEN).get("/snapshot", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert compared == [(b"wrong", TOKEN.encode())]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000", "127.8.8.8:80"])
def test_without_a_token_a_request_to_this_machine_is_answered(client: TestClient, host: str) -> None:
    assert client.get("/snapshot", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", ""]
)
@pytest.mark.parametrize("path", ["/snapshot", "/", "/health"])
def test_without_a_token_a_name_that_was_bound_to_this_machine_is_refused(
    client: TestClient, host: str, path: str
) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert "another machine" in answer.json()["error"]


def test_two_names_are_not_one_that_is_right(client: TestClient) -> None:
    headers = [("Host", "evil.example"), ("Host", "localhost")]
    assert client.get("/snapshot", headers=headers).status_code == 421


class Slow:
    """Searches that wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.let_go = threading.Semaphore(0), threading.Event()
        search = Snapshot.search

        def slow(snapshot: Snapshot, *given: Any, **options: Any) -> Any:
            self.begun.release()
            assert self.let_go.wait(20)
            return search(snapshot, *given, **options)

        monkeypatch.setattr(Snapshot, "search", slow)


def test_what_does_not_fit_is_refused_at_once_and_the_rest_is_answered(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    with client_of(corpus, limits=Limits(threads=2, queue=1)) as client, ThreadPoolExecutor(3) as askers:
        asked = [askers.submit(client.get, "/search?q=roof") for _ in range(3)]
        assert slow.begun.acquire(timeout=10)
        assert slow.begun.acquire(timeout=10)
        while "situate_requests_in_work 3.0" not in client.get("/metrics").text:
            time.sleep(0.01)
        began = time.monotonic()
        refused = client.get("/search?q=roof")
        assert time.monotonic() - began < 5
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "3 requests are in work" in refused.json()["error"]
        assert client.get("/health").status_code == 200, "busy is not stuck"
        slow.let_go.set()
        assert [answer.result().status_code for answer in asked] == [200, 200, 200]
        assert client.get("/search?q=roof").status_code == 200, "the places are free again"


def test_an_answer_that_takes_too_long_is_given_up_and_health_says_when_nothing_moves(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    with client_of(corpus, limits=Limits(threads=1, queue=1, timeout_s=0.2)) as client:
        answer = client.get("/search?q=roof")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "longer than 0.2 s" in answer.json()["error"]
        assert client.get("/search?q=roof").status_code == 503, "it waited for the thread"
        health = client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "stuck"})
        slow.let_go.set()
        deadline = time.monotonic() + 10
        while client.get("/health").status_code == 503:
            assert time.monotonic() < deadline
        assert client.get("/search?q=roof&mode=lexical").status_code == 200


def test_a_damaged_store_is_one_sentence_that_names_the_file(nights: Any) -> None:
    nights.write(alder=text_of("alder"))
    nights.refresh()
    corpus = serving.open(str(nights.root / "corpus"))
    name = layout.segment(corpus.manifest.segments[0].id, layout.ORIGINALS)
    (nights.root / "corpus" / name).write_bytes(b"something else")
    answer = client_of(corpus).get("/document", params={"id": "alder.md", "text": "true"})
    assert answer.status_code == 503
    assert name in answer.json()["error"]


def test_what_nobody_expected_is_logged_and_answered_without_its_traceback(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("an inner secret")

    monkeypatch.setattr(Snapshot, "search", fail)
    client = client_of(corpus)
    answer = client.get("/search?q=what+they+asked")
    assert answer.status_code == 500
    assert list(answer.json()) == ["error"]
    assert "secret" not in answer.text
    assert "GET /search failed" in caplog.text
    assert "an inner secret" in caplog.text
    assert "they" not in caplog.text, "what people ask is theirs"
    assert 'situate_http_requests_total{route="/search",status="500"} 1.0' in client.get("/metrics").text


def test_metrics_count_by_route_and_status_and_no_one_can_add_routes(corpus: Corpus) -> None:
    client = client_of(corpus)
    client.get("/search?q=roof")
    client.get("/search")
    for number in range(20):
        client.get(f"/nowhere/{number}")
    client.get("/snapshot", headers={"Host": "evil.example"})
    text = client.get("/metrics").text
    assert 'situate_http_requests_total{route="/search",status="200"} 1.0' in text
    assert 'situate_http_requests_total{route="/search",status="422"} 1.0' in text
    assert 'situate_http_requests_total{route="other",status="404"} 20.0' in text
    assert 'situate_http_requests_total{route="/snapshot",status="421"} 1.0' in text
    assert 'situate_http_request_seconds_count{route="/search"} 2.0' in text
    assert f"situate_snapshot_sequence {corpus.manifest.sequence:.1f}" in text
    assert "situate_snapshot_age_seconds" in text
    assert "nowhere" not in text


def test_following_swaps_to_a_newer_snapshot_and_refuses_a_broken_one(
    nights: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "indexing.follower")
    nights.write(alder=text_of("alder"))
    nights.refresh()
    corpus = serving.open(str(nights.root / "corpus"))
    built = http.service(corpus)
    client, follower = TestClient(built.app, HERE), Follower(corpus, 60, built.metrics)
    follower.look()
    assert caplog.messages == []
    nights.write(birch=text_of("birch"))
    nights.refresh()
    assert client.get("/document?id=birch.md").status_code == 404
    follower.look()
    assert client.get("/document?id=birch.md").status_code == 200
    assert caplog.messages == ["snapshot 2 answers in the place of 1"]
    broken = nights.root / "corpus" / layout.manifest(3)
    broken.write_bytes(b"{}")
    for _ in range(3):
        follower.look()
    assert len(caplog.messages) == 2, "a refusal is said once, not every minute"
    assert "snapshot 2 goes on answering" in caplog.messages[1]
    assert layout.manifest(3) in caplog.messages[1]
    assert client.get("/search?q=birch").json()["snapshot"] == 2
    text = client.get("/metrics").text
    assert 'situate_refreshes_total{result="swapped"} 1.0' in text
    assert 'situate_refreshes_total{result="unchanged"} 1.0' in text
    assert 'situate_refreshes_total{result="refused"} 3.0' in text


def test_a_follower_looks_by_itself_and_outlives_a_store_that_fails(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)

    def refresh() -> bool:
        looks.release()
        raise OperationError("the store is away")

    monkeypatch.setattr(corpus, "refresh", refresh)
    with Follower(corpus, 0.01, http.service(corpus).metrics):
        for _ in range(3):
            assert looks.acquire(timeout=10)
    with contextlib.suppress(AssertionError):
        while looks.acquire(timeout=0.2):
            pass
    assert not looks.acquire(timeout=0.1), "and stops when it is told to"


def test_the_page_is_shipped_with_the_package() -> None:
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'indexing = ["page/*"]' in settings
