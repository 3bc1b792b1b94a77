"""The page at /, in a headless Chromium."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import CHROMIUM, imported, missing

imported("fastapi")
playwright = imported("playwright.sync_api")

from served import Served, serving  # needs the extra

import specllama.server
from specllama.engine.generation import Generation

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.long

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def served(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good, n_ctx=1024, num_draft_tokens="auto")) as running:
        yield running


@pytest.fixture
def page(served: Served) -> Iterator[Any]:
    """The page, loaded. Whatever it asks of others, and every error in its script, fails the test."""
    if BROWSER is None:
        missing("there is no Chromium on PATH (Debian: apt-get install chromium)", CHROMIUM)
    wrong: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 720})
        page.on("request", lambda asked: asked.url.startswith((served.url, "data:")) or wrong.append(asked.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(served.url)
        page.get_by_text("tiny", exact=True).wait_for()
        yield page
        browser.close()
    assert wrong == []


def photograph(page: Any, name: str) -> None:
    """Keeps a picture for somebody to look at, where SPECLLAMA_SCREENSHOTS says."""
    folder = os.environ.get("SPECLLAMA_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{name}.png")


def wait_until_answered(page: Any) -> None:
    page.locator("#send:enabled").wait_for()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, or they are stopped, answers wait behind about 480 tokens.

    A tiny model could be done with all of them before the page shows the first ones.
    """
    a_round, opened = Generation._round, threading.Event()

    def waiting(generation: Generation) -> Any:
        while generation._end > 500 and not opened.wait(0.005):
            generation._request.listener.heed()
        return a_round(generation)

    monkeypatch.setattr(Generation, "_round", waiting)
    yield opened
    opened.set()


def begin_long_answer(page: Any, num_draft_tokens: str = "4") -> None:
    """Returns when the page shows that it has come as far as the gate."""
    page.fill("#num_draft_tokens", num_draft_tokens)
    page.fill("#max_tokens", "900")
    page.fill("#message", "the cat")
    page.press("#message", "Enter")
    page.locator("#tokens", has_text=re.compile(r"^[4-9]\d\d$")).wait_for()
    assert page.locator("#send:disabled").count() == 1


FIGURES = ("speed", "accepted", "length", "tokens", "rule")


def figures(page: Any) -> dict[str, str]:
    return {name: page.inner_text(f"#{name}") for name in FIGURES}


def test_a_chat_by_keyboard_alone(page: Any, served: Served) -> None:
    page.fill("#seed", "7")
    page.fill("#num_draft_tokens", "4")
    page.fill("#max_tokens", "120")
    page.focus("#message")
    page.keyboard.type("the cat")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("sat")
    page.keyboard.press("Enter")
    wait_until_answered(page)
    answer = page.locator("article").nth(1).locator("div").inner_text()
    expected = served.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "the cat\nsat"}],
        seed=7,
        max_tokens=120,
        temperature=0.8,  # the page's, where anybody sees it
    ).json()
    assert answer == expected["choices"][0]["message"]["content"]
    origins = page.locator("article [data-origin]").evaluate_all("spans => spans.map(span => span.dataset.origin)")
    assert {"draft", "correction"} <= set(origins) <= {"draft", "lookup", "correction", "bonus", "plain"}
    assert page.inner_text("#tokens") == str(expected["timings"]["predicted_n"])
    assert page.inner_text("#accepted").endswith("%")
    assert page.inner_text("#rule") == "coupled"
    assert float(page.inner_text("#speed")) > 0
    assert page.locator("#positions span").count() == 4
    assert page.evaluate("document.activeElement.id") == "message"
    photograph(page, "light")


def test_the_next_message_has_the_first_ones_before_it(page: Any, served: Served) -> None:
    page.fill("#max_tokens", "10")
    for text in ("the cat", "a dog"):
        page.fill("#message", text)
        page.press("#message", "Enter")
        wait_until_answered(page)
    served.wait_until_idle()
    assert served.llm.stats.num_prompt_tokens_reused > 10
    page.click("#clear")
    assert page.locator("article").count() == 0


def test_escape_stops_an_answer(page: Any, served: Served, gate: threading.Event) -> None:
    begin_long_answer(page)
    page.keyboard.press("Escape")
    wait_until_answered(page)
    assert page.locator("article > p").inner_text() == "stopped"
    served.wait_until_idle()
    assert served.app.state.worker.outcomes["stopped"] == 1


def test_figures_while_an_answer_is_under_way(page: Any, gate: threading.Event) -> None:
    begin_long_answer(page)
    early = figures(page)
    assert float(early["speed"]) > 0
    assert early["accepted"].endswith("%")
    assert float(early["length"]) >= 1
    assert early["rule"] == "block"
    assert page.locator("#positions span").count() == 4
    assert page.locator("article [data-origin]").count() > 100
    gate.set()
    wait_until_answered(page)
    assert int(page.inner_text("#tokens")) == 900


def test_plain_decodings_speed_while_an_answer_is_under_way(page: Any, gate: threading.Event) -> None:
    begin_long_answer(page, "auto")
    assert float(page.inner_text("#plain")) > 0
    assert float(page.inner_text("#speed")) > 0


def test_clear_in_the_middle_of_an_answer(page: Any, served: Served, gate: threading.Event) -> None:
    begin_long_answer(page)
    page.click("#clear")
    wait_until_answered(page)
    assert figures(page) == dict.fromkeys(FIGURES, "–")
    assert page.locator("#positions span").count() == 0
    assert page.locator("article").count() == 0
    served.wait_until_idle()
    assert served.app.state.worker.outcomes["stopped"] == 1


def test_plain_decoding_beside_it_in_the_dark(page: Any) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.check("#compare")
    page.fill("#max_tokens", "60")
    page.fill("#message", "the cat")
    page.press("#message", "Enter")
    wait_until_answered(page)
    assert "the same text" in page.locator("article > p").inner_text()
    assert float(page.inner_text("#plain")) > 0
    photograph(page, "dark")


def test_an_answer_that_was_cut_off_says_so(page: Any) -> None:
    page.fill("#max_tokens", "10")
    page.fill("#message", "the cat")
    page.press("#message", "Enter")
    wait_until_answered(page)
    assert page.locator("article small").inner_text().startswith("cut off: ")


def test_a_reader_who_has_scrolled_up_stays_there(page: Any, gate: threading.Event) -> None:
    page.set_viewport_size({"width": 500, "height": 420})
    begin_long_answer(page)
    where = "document.getElementById('log').scrollTop"
    page.evaluate(f"{where} = 0")
    gate.set()
    wait_until_answered(page)
    assert page.evaluate(where) == 0
    page.evaluate(f"{where} = 1e9")
    end = page.evaluate(where)
    assert end > 100
    page.fill("#max_tokens", "300")
    page.fill("#message", "the cat")
    page.press("#message", "Enter")
    wait_until_answered(page)
    assert page.evaluate(where) > end


def test_errors_are_shown(page: Any) -> None:
    page.fill("#message", "a " * 2000)
    page.press("#message", "Enter")
    wait_until_answered(page)
    assert "exceed context window" in page.locator("[role=alert]").inner_text()
    page.fill("#num_draft_tokens", "many")
    page.fill("#message", "hi")
    page.press("#message", "Enter")
    assert page.locator("article").count() == 2  # what is no number is not sent


def test_every_control_is_reached_by_tab(page: Any) -> None:
    page.focus("#log")
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    controls = page.locator("input, select, textarea, button:enabled").evaluate_all("found => found.map(one => one.id)")
    assert set(controls) <= set(reached)


def test_a_narrow_window(page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    photograph(page, "narrow")


MARKDOWN = """# A title

Some *soft* and **loud** text with `code()` in it,
and [a link](https://example.com/x).

```python
def f(a):
    return "<b>" * a
```

- one
- two

| a | b |
|---|--:|
| 1 | 2 |
"""

HOSTILE = """<img src=x onerror="window.hit = 1"> <script>window.hit = 2</script>

<iframe srcdoc="<script>parent.hit = 3</script>"></iframe>

[one](javascript:window.hit=4) [two](JaVaScRiPt&#58;window.hit=5) [three](data:text/html,<script>window.hit=6</script>)

![picture](http://127.0.0.2:9/leak?x) [four](https://example.com/"onmouseover="window.hit=7)

```"><script>window.hit=8</script>
</code></pre><svg onload="window.hit=9">
```

<style>body { display: none }</style>
"""


def answer_with(page: Any, text: str, size: int = 7) -> None:
    """Have the page show this text, in pieces of which every other one was drafted."""
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    answer_with_deltas(page, [{"content": piece} for piece in pieces])


def answer_with_deltas(page: Any, deltas: list[dict[str, Any]]) -> None:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"delta": delta}], "tokens": [{"id": 1, "origin": ("draft", "bonus")[i % 2]}]}
        for i, delta in enumerate(deltas)
    ]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
    page.fill("#message", "go")
    page.press("#message", "Enter")
    wait_until_answered(page)


def test_markdown_is_rendered(page: Any) -> None:
    answer_with(page, MARKDOWN)
    body = page.locator("article .markdown")
    assert body.locator("h1").inner_text() == "A title"
    assert body.locator("em").inner_text() == "soft" and body.locator("strong").inner_text() == "loud"
    assert body.locator("li").all_inner_texts() == ["one", "two"]
    assert body.locator("p a").get_attribute("href") == "https://example.com/x"
    assert set(body.locator("p a").get_attribute("rel").split()) == {"noopener", "noreferrer", "nofollow"}
    aligned = body.locator("td").evaluate_all("cells => cells.map(cell => getComputedStyle(cell).textAlign)")
    assert aligned == ["left", "right"]
    code = body.locator("pre code")
    assert code.inner_text() == 'def f(a):\n    return "<b>" * a\n'
    assert "mono" in code.evaluate("element => getComputedStyle(element).fontFamily")
    photograph(page, "markdown")


def test_thoughts_are_folded(page: Any) -> None:
    pieces = [
        {"role": "assistant"},
        {"reasoning_content": "So <b>"},
        {"reasoning_content": "it is."},
        {"content": "Hi."},
    ]
    answer_with_deltas(page, pieces)
    details = page.locator("article details")
    assert details.locator("summary").inner_text() == "thoughts" and not details.locator("p").is_visible()
    details.locator("summary").click()
    assert details.locator("p").inner_text() == "So <b>it is."
    assert page.locator("article .markdown").inner_text() == "Hi."


def test_code_is_copied(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer_with(page, MARKDOWN)
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == 'def f(a):\n    return "<b>" * a\n'
    page.evaluate("navigator.clipboard.writeText('')")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as over plain HTTP
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("getSelection().toString()").startswith("def f(a):")


def test_every_piece_has_its_colour_in_markdown_too(page: Any) -> None:
    text = "aaaa bbbb\n\n- cccc dddd\n\n```\neeee\n```\n\n|ffff|gggg|\n|--|--|\n|hhhh|iiii|\n"
    answer_with(page, text, size=5)
    found = page.locator("article .markdown [data-origin]").evaluate_all(
        "spans => spans.map(span => [span.textContent, span.dataset.origin])"
    )
    origins = [("draft", "bonus")[i // 5 % 2] for i in range(len(text))]
    shown, at = [], 0
    for part, origin in found:
        at = text.index(part, at)
        assert {origin} == set(origins[at : at + len(part)])
        at += len(part)
        shown.append(part)
    assert "".join(shown).split() == ["aaaa", "bbbbcccc", "ddddeeee", "ffffgggghhhhiiii"]


def test_markup_in_an_answer_is_text(page: Any) -> None:
    answer_with(page, HOSTILE)
    body = page.locator("article .markdown")
    assert body.locator("img, script, iframe, svg, style, [onerror], [onload], [onmouseover], [style]").count() == 0
    links = body.locator("a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(links) <= {"https:", "http:"}
    assert "<script>window.hit = 2</script>" in body.inner_text() and "<style>" in body.inner_text()
    for link in body.locator("a").all():
        link.hover()
    assert page.evaluate("window.hit") is None
    assert page.evaluate("getComputedStyle(document.body).display") != "none"


def test_the_policy_stops_what_comes_past_the_renderer(page: Any, served: Served) -> None:
    policy = served.client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    page.evaluate("""document.getElementById("log").innerHTML = '<img src="data:," onerror="window.hit = 1">'""")
    page.evaluate("""
        const script = document.createElement("script");
        script.textContent = "window.hit = 2";
        document.body.append(script);
    """)
    page.wait_for_timeout(100)
    assert page.evaluate("window.hit") is None


def test_what_is_selected_stays_selected_while_the_answer_grows(page: Any, served: Served) -> None:
    page.evaluate(
        """() => {
        window.answer = new Answer(document.createElement("div"));
        document.getElementById("log").append(answer.body);
        answer.add("first\\n\\nsecond", []);
        answer.draw();
        window.first = answer.body.firstElementChild;
        answer.add(" goes on\\n\\nthird", []);
        answer.draw();
    }"""
    )
    assert page.evaluate("answer.body.firstElementChild === first")
    assert page.evaluate("[...answer.body.children].map(one => one.textContent)") == [
        "first",
        "second goes on",
        "third",
    ]


def test_the_library_is_the_published_one() -> None:
    folder = Path(specllama.server.__file__).parent / "vendored"
    comment, _, library = (folder / "markdown-it.js").read_text(encoding="utf-8").partition("*/\n")
    assert hashlib.sha256(library.encode("utf-8")).hexdigest() in comment
    assert "Vitaly Puzrin" in (folder / "markdown-it.LICENSE").read_text(encoding="utf-8")
