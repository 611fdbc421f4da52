"""The page in a real browser: a search by keyboard, a hit in its place, the context apart, hostile text as text."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enrichment import guards
from enrichment.engine import Completion
from enrichment.fake_engine import FakeEngine
from indexing import http, serving
from indexing.serving import Corpus

CASES = Path(__file__).parents[2] / "shared" / "cases" / "texts.jsonl"
TOKEN = "0123456789abcdef-secret"
WAIT_S = 20
RUN = "document.documentElement.dataset.ran = 1"
HOSTILE = {
    "script": f"zebra <script>{RUN}</script><img src=x onerror='{RUN}'> end",
    "attribute": f"zebra \" onmouseover=\"{RUN}\" ' autofocus onfocus='{RUN}' end",
    "json": f'zebra {{"a": "</script><script>{RUN}</script>"}} <!-- ]]> end',
    "url": f"zebra [link](javascript:{RUN}) <a href='javascript:{RUN}'>x</a> <iframe srcdoc='<script>{RUN}</script>'> end",
    "template": "zebra ${" + RUN + "} {{constructor.constructor('" + RUN + "')()}} <svg/onload=" + RUN + "> end",
    "bidi": "zebra abc \u202egnp.exe\u202c \u2066x\u2069 \u200fend",
    "controls": "zebra bell\u0007 escape\u001b[31m tag\U000e0041 zero\u200bwidth\u2028line end",
}
HANDBOOK = """# Leave

## Notice

👩‍👩‍👧 Tell your manager twelve weeks ahead. The portal keeps the date. Silence counts as consent.

## Pay

Eighteen weeks are paid in full. The rest is paid at sixty percent.
"""


@pytest.fixture(scope="module")
def corpus(stage: Any) -> Iterator[Corpus]:
    """A handbook, and documents that are hostile in text, title, id, heading and (the guards being off) context."""
    records = [
        {"id": f"{name} {text}", "title": f"{name} {text}", "text": f"# {text}\n\n{text} first. {text} second."}
        for name, text in HOSTILE.items()
    ]
    if CASES.is_file():
        cases = [json.loads(line) for line in CASES.read_text().splitlines()]
        records += [{"id": f"case {case['case']}", "text": case["text"][:5000]} for case in cases]

    async def generate(engine: FakeEngine, prompt: Any, *_: Any, **__: Any) -> Completion:
        return Completion(f" is hostile: {HOSTILE['script']}, {HOSTILE['bidi']}.", "stop", len(prompt), 0, 9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeEngine, "generate", generate)
        patch.setattr(guards, "bad_form", lambda *_: None)
        staged = stage({"leave.md": HANDBOOK, "hostile.jsonl": "\n".join(map(json.dumps, records))})
    staged.publish()
    opened = serving.open(staged.storage.uri)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def serve(corpus: Corpus) -> Iterator[Callable[..., str]]:
    """`serve(token)`: a real server in a thread; its address."""
    import uvicorn

    running = []

    def start(token: str | None = None) -> str:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        options: dict[str, Any] = {"log_config": None, "access_log": False, "ws": "none", "lifespan": "off"}
        server = uvicorn.Server(uvicorn.Config(http.service(corpus, token).app, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def address(serve: Callable[..., str]) -> str:
    return serve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    found, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not found or not driver:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = found
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    os.environ.setdefault("SE_AVOID_STATS", "true")
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    opened.set_script_timeout(WAIT_S)
    yield opened
    opened.quit()


@pytest.fixture(autouse=True)
def nothing_complains(browser: Any) -> Iterator[None]:
    """After every test: no script error and no breach of the policy was reported, and no hostile script ran."""
    browser.get_log("browser")
    yield
    assert browser.execute_script("return document.documentElement.dataset.ran ?? null") is None, "a hostile script ran"
    said = [entry["message"] for entry in browser.get_log("browser") if "status of 401" not in entry["message"]]
    assert said == []


def find(browser: Any, selector: str) -> Any:
    """The first element, once it is there and seen."""
    from selenium.webdriver.support.ui import WebDriverWait

    def seen(driver: Any) -> Any:
        elements = driver.find_elements("css selector", selector)
        return next((element for element in elements if element.is_displayed()), None)

    return WebDriverWait(browser, WAIT_S).until(seen, selector)


def until(browser: Any, script: str) -> None:
    """Wait until an expression is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, WAIT_S).until(lambda driver: driver.execute_script(f"return {script}"), script)


def row_with(corpus: Corpus, words: str) -> dict[str, Any]:
    """The handbook's row whose text has these words."""
    return next(row for row in corpus.rows("leave.md") if words in HANDBOOK[row["start"] : row["end"]])


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def text(element: Any) -> str:
    """The text that is in the page, seen or scrolled out of sight."""
    found: str = element.get_property("textContent")
    return found


def test_by_keyboard_alone_a_search_is_typed_a_hit_opened_and_closed_again(browser: Any, address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(address)
    find(browser, ".summary")
    browser.execute_script("document.activeElement.blur()")
    press(browser, "/")
    press(browser, "notice to my manager before leave", Keys.ENTER)
    find(browser, "a.hit")
    until(browser, "document.activeElement.matches('li:nth-child(1) a.hit')")
    press(browser, "j")
    until(browser, "document.activeElement.matches('li:nth-child(2) a.hit')")
    press(browser, "k")
    until(browser, "document.activeElement.matches('li:nth-child(1) a.hit')")
    press(browser, Keys.ENTER)
    find(browser, "#detail mark")
    assert browser.execute_script("return document.getElementById('detail').matches(':modal')")
    press(browser, Keys.ESCAPE)
    until(browser, "!document.getElementById('detail').open")
    until(browser, "document.activeElement.matches('li:nth-child(1) a.hit')")


def test_a_hit_is_marked_in_its_window_and_the_context_is_apart(browser: Any, address: str, corpus: Corpus) -> None:
    browser.get(f"{address}/?q=Silence+counts+as+consent&mode=lexical&k=5")
    find(browser, "a.hit").click()
    mark = find(browser, "#detail mark")
    row = row_with(corpus, "Silence counts")
    original = HANDBOOK[row["start"] : row["end"]]
    assert text(mark) == original
    page = find(browser, "#detail .page")
    assert text(page) in HANDBOOK, "the window is original text and nothing else"
    assert len(text(page)) > len(original)
    context = find(browser, "#detail aside.generated")
    assert row["context"]
    assert row["context"].split("<")[0] in text(context)
    assert "generated" in text(context).lower()
    assert not browser.execute_script("return arguments[0].contains(arguments[1])", page, context)
    assert text(find(browser, "#detail-where .trail")) == "Notice"
    assert context.value_of_css_property("border-style") != page.value_of_css_property("border-style")
    assert context.value_of_css_property("background-color") != page.value_of_css_property("background-color")


def test_before_and_after_shows_what_each_index_saw(browser: Any, address: str, corpus: Corpus) -> None:
    row = row_with(corpus, "The rest is paid")
    browser.get(f"{address}/?q=paid&mode=lexical&doc=leave.md&chunk={row['chunk_index']}")
    find(browser, "#detail mark")
    find(browser, "#tab-pair").click()
    original = HANDBOOK[row["start"] : row["end"]]
    assert text(find(browser, ".pair .original")) == original
    dense, lexical = browser.find_elements("css selector", ".seen")
    assert [text(tag) for tag in dense.find_elements("css selector", ".tag")] == ["header", "body"]
    assert [text(tag) for tag in lexical.find_elements("css selector", ".tag")] == [
        "context, generated",
        "header",
        "body",
    ]
    assert text(dense.find_element("css selector", "p")) == row["header"] == "Leave > Pay"
    assert len(lexical.find_elements("css selector", ".model")) == 1
    find(browser, "#tab-all").click()
    find(browser, ".chunks li[aria-current]")
    chunks = browser.find_elements("css selector", ".chunks li")
    assert len(chunks) == len(corpus.rows("leave.md"))


def test_modes_stand_side_by_side_with_their_ranks_and_the_address_says_what_is_seen(
    browser: Any, address: str
) -> None:
    browser.get(f"{address}/?q=paid+in+full&k=5")
    find(browser, "a.hit")
    assert len(browser.find_elements("css selector", ".card")) == 5
    assert "fused" in text(find(browser, ".card footer"))
    browser.execute_script("document.querySelector('input[value=compare]').click()")
    find(browser, ".columns")
    assert "mode=compare" in browser.current_url
    columns = browser.find_elements("css selector", ".column")
    names = [text(column.find_element("css selector", "h2")) for column in columns]
    assert [name.split("b")[0] for name in names] == ["Hy", "Dense", "Lexical"]
    first = [column.find_element("css selector", ".card") for column in columns]
    assert "#1" in text(first[0].find_element("css selector", "footer"))
    browser.back()
    until(browser, "!document.querySelector('.columns') && document.querySelectorAll('.card').length === 5")
    assert browser.execute_script("return document.querySelector('input[value=hybrid]').checked")
    browser.forward()
    find(browser, ".columns")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_as_text(browser: Any, address: str, corpus: Corpus, name: str) -> None:
    hostile = HOSTILE[name]
    document_id = f"{name} {hostile}"
    browser.get(f"{address}/?q=zebra+{name}&mode=lexical&k=100")
    find(browser, "a.hit")
    link = browser.execute_script(
        "return [...document.querySelectorAll('a.hit')].find((link) => link.dataset.id === arguments[0])", document_id
    )
    assert link is not None
    title = corpus.document(document_id)["title"]
    assert title.startswith(f"{name} zebra")
    assert text(link) == shown(title)
    browser.execute_script("arguments[0].click()", link)
    mark = find(browser, "#detail mark")
    rows = corpus.rows(document_id)
    chunk = int(link.get_attribute("data-chunk"))
    original = corpus.original(document_id, (rows[chunk]["byte_start"], rows[chunk]["byte_end"]))
    assert text(mark) == shown(original)
    assert shown(HOSTILE["script"]) in text(find(browser, "#detail .generated"))
    assert shown(document_id) in text(find(browser, "#detail-where .id"))
    for tab in ("pair", "all"):
        find(browser, f"#tab-{tab}").click()
        find(browser, "#view .seen" if tab == "pair" else "#view .chunks li")
    foreign = (
        "document.querySelectorAll('main script, dialog script, dialog img, main img, iframe, a[href^=javascript]')"
    )
    assert browser.execute_script(f"return {foreign}.length") == 0
    assert browser.execute_script("return document.querySelectorAll('[onerror], [onmouseover], [onfocus]').length") == 0


def shown(original: str) -> str:
    """The text as the page shows it: what cannot be seen, or turns the text around it, by its number."""
    unseen = "\u0007\u001b\u200b\u200f\u202c\u202e\u2028\u2066\u2069\U000e0041"
    return "".join(f"U+{ord(c):04X}" if c in unseen else c for c in original)


def test_a_direction_mark_cannot_reach_what_stands_beside_it(browser: Any, address: str) -> None:
    browser.get(f"{address}/?q=zebra+bidi&mode=lexical&k=100")
    find(browser, "a.hit")
    left = browser.execute_script("return document.body.innerText.match(/[\u202a-\u202e\u2066-\u2069]/g)")
    assert left is None
    title = browser.execute_script(
        "return [...document.querySelectorAll('a.hit bdi')].find((name) => name.textContent.startsWith('bidi'))"
    )
    assert title.value_of_css_property("unicode-bidi") == "isolate"


@pytest.mark.skipif(not CASES.is_file(), reason="the public cases are not beside the checkout")
def test_every_public_case_can_be_opened(browser: Any, address: str, corpus: Corpus) -> None:
    ids = [f"case {json.loads(line)['case']}" for line in CASES.read_text().splitlines()]
    for document_id in ids:
        if not corpus.rows(document_id):
            continue
        browser.get(f"{address}/?{query(doc=document_id, chunk='0')}")
        find(browser, "#detail mark")
        until(browser, "document.getElementById('view').getAttribute('aria-busy') === null")


def query(**given: str) -> str:
    from urllib.parse import urlencode

    return urlencode(given)


def test_it_asks_for_the_token_and_keeps_it_out_of_the_address(browser: Any, serve: Callable[..., str]) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(serve(TOKEN) + "/?q=leave")
    for given in ("a-wrong-token-of-some-length", TOKEN):
        field = find(browser, "#token-value")
        field.send_keys(given, Keys.ENTER)
        if given != TOKEN:
            until(browser, "document.getElementById('token-wrong').textContent !== ''")
    find(browser, "a.hit")
    assert TOKEN not in browser.current_url
    assert TOKEN not in browser.page_source
    assert browser.execute_script("return [localStorage.length, document.cookie]") == [0, ""]
    assert browser.execute_script("return Object.values(sessionStorage)") == [TOKEN]
    browser.refresh()
    find(browser, "a.hit")


def test_what_the_service_refuses_is_said_on_the_page(browser: Any, address: str) -> None:
    browser.get(f"{address}/?q=leave&k=7000")
    assert "k is '7000'" in text(find(browser, "#results [role=alert]"))
    browser.get_log("browser")  # Chromium reports the 422
    browser.get(f"{address}/?q=leave&doc=nobody&chunk=0")
    assert "holds no document nobody" in text(find(browser, "#view [role=alert]"))
    browser.get_log("browser")


def test_a_phone_is_never_scrolled_sideways_and_dark_is_dark(browser: Any, address: str) -> None:
    def emulate(command: str, **given: Any) -> None:
        browser.execute_cdp_cmd(f"Emulation.{command}", given)

    emulate("setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        for view in ("?q=zebra&k=20", "?q=zebra&k=20&mode=compare", "?q=paid&doc=leave.md&chunk=1", ""):
            browser.get(f"{address}/{view}")
            find(browser, "#detail mark" if "doc" in view else "a.hit" if view else ".summary")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, view
            paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert max(int(part) for part in paper[4:-1].split(",")) < 60
    finally:
        emulate("clearDeviceMetricsOverride")
        emulate("setEmulatedMedia", features=[])


def test_a_report_of_hostile_documents_runs_and_loads_nothing(browser: Any, corpus: Corpus, tmp_path: Path) -> None:
    """P29 of the page that `situate report` writes; at two widths, and printed."""
    from jobs import report

    report.write(corpus.storage.uri, tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    text = browser.find_element("css selector", "body").text
    assert "Samples, before and after" in text and "<script>" in text
    assert browser.execute_script("return document.documentElement.dataset.ran") is None
    assert browser.execute_script("return document.querySelectorAll('script, img, iframe, a, form').length") == 0
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    for width in (1280, 390):
        browser.set_window_size(width, 900)
        overflow = browser.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, f"it scrolls sideways at {width}"
    browser.set_window_size(1280, 900)
    printed = browser.print_page()
    assert len(printed) > 10_000
