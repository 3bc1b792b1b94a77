"""The page at /, in a headless Chromium."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from needed import CHROMIUM, imported, missing

imported("fastapi")
playwright = imported("playwright.sync_api")

from images import png
from served import Served, serving  # needs the extra

import specllama.server
from specllama.drop_in.images import give_image_handler
from specllama.engine.generation import Generation

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.long

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def served(
    request: pytest.FixtureRequest, make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path
) -> Iterator[Served]:
    llm = make_llama(draft=tiny_files.good, n_ctx=1024, num_draft_tokens="auto")
    if getattr(request, "param", None) == "seeing":
        give_image_handler(llm, tiny.write_clip(tmp_path / "mmproj.gguf", seed=1))
    with serving(llm) as running:
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
            generation._request.listener.poll()
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
    assert page.locator("article small").inner_text() == "cut off after 10 tokens, the most that the settings allow"
    page.fill("#max_tokens", "")
    page.fill("#message", "a dog")
    page.press("#message", "Enter")
    wait_until_answered(page)
    assert (
        page.locator("article small").nth(1).inner_text().startswith("cut off: the conversation fills the 1024 tokens")
    )


def test_a_reader_who_has_scrolled_up_stays_there(page: Any, gate: threading.Event) -> None:
    page.set_viewport_size({"width": 800, "height": 420})
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
    alert = page.locator("[role=alert]").inner_text()
    assert alert.startswith("This conversation has become too long for the model, which reads 1024 tokens at once")
    assert "Shorten the message." in alert, "there is nothing else to leave out"
    page.fill("#num_draft_tokens", "many")
    page.fill("#message", "hi")
    page.press("#message", "Enter")
    assert page.locator("article").count() == 1  # what is no number is not sent
    page.set_viewport_size({"width": 400, "height": 800})
    page.press("#message", "Enter")
    assert page.locator("#num_draft_tokens").is_visible(), "what is wrong is shown"


def test_every_control_is_reached_by_tab(page: Any) -> None:
    page.focus("#log")
    reached = []
    for _ in range(18):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    controls = page.locator(":is(input, select, textarea, button:enabled):visible").evaluate_all(
        "found => found.map(one => one.id)"
    )
    assert set(controls) <= set(reached)


def test_a_narrow_window(page: Any) -> None:
    page.fill("#max_tokens", "300")
    page.set_viewport_size({"width": 400, "height": 800})
    page.fill("#message", "the cat")
    page.press("#message", "Enter")
    wait_until_answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("#log").bounding_box()["height"] > 0.6 * 800, "the conversation has most of a phone"
    assert re.fullmatch(r"[\d.]+ tokens/s, \S+( ×)? plain, \d+ % accepted", page.inner_text("#brief"))
    photograph(page, "narrow")
    page.click("#more")
    for name in ("#colours", "#temperature", "#coloured"):
        assert_is_seen(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    photograph(page, "narrow-settings")
    page.click("#more")
    assert not page.locator("#colours").is_visible()


def assert_is_seen(page: Any, name: str) -> None:
    """Nothing lies before it, once it is scrolled to."""
    page.locator(name).scroll_into_view_if_needed()
    box = page.locator(name).bounding_box()
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).id", [box["x"] + 3, box["y"] + 3]) == name[1:]


def test_the_figures_do_not_cover_the_legend(page: Any) -> None:
    for height in (720, 560):
        page.set_viewport_size({"width": 1100, "height": height})
        for name in ("#colours", "#coloured"):
            assert_is_seen(page, name)


# --- what stays, and what can be done with it ------------------------------------------------------------------------


@pytest.fixture
def asked(page: Any) -> list[dict[str, Any]]:
    """The bodies of what the page asks to be answered."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda it: bodies.append(it.post_data_json) if it.url.endswith("completions") else None)
    return bodies


def say(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")
    wait_until_answered(page)


def tool(page: Any, number: int, name: str) -> Any:
    """A button of a message."""
    return page.locator("article").nth(number).get_by_role("button", name=name, exact=True)


def texts(page: Any) -> list[str]:
    return [str(text) for text in page.locator("article > div").all_inner_texts()]


def test_conversation_and_settings_survive_a_reload(page: Any, served: Served, asked: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "40")
    page.fill("#num_draft_tokens", "4")
    page.fill("#system", "Be brief.")
    page.select_option("#verify", "block")
    page.check("#compare")
    say(page, "the cat")
    origins = "found => found.map(one => [one.textContent, one.dataset.origin])"
    coloured = page.locator("article [data-origin]").evaluate_all(origins)
    before, answer = texts(page), page.evaluate("turns[1].text")
    notes = page.locator("article > p").all_inner_texts()
    page.fill("#message", "not sent yet")
    page.reload()
    page.get_by_text("tiny", exact=True).first.wait_for()
    assert texts(page) == before and len(before) == 2
    assert page.locator("article > p").all_inner_texts() == notes
    again = page.locator("article [data-origin]").evaluate_all(origins)
    assert {origin for _, origin in again} == {origin for _, origin in coloured} > {"draft"}
    assert "".join(text for text, _ in again) == "".join(text for text, _ in coloured)
    values = {name: page.input_value(f"#{name}") for name in ("max_tokens", "num_draft_tokens", "system", "verify")}
    assert values == {"max_tokens": "40", "num_draft_tokens": "4", "system": "Be brief.", "verify": "block"}
    assert page.is_checked("#compare")
    assert page.input_value("#message") == "not sent yet"
    page.uncheck("#compare")
    asked.clear()
    say(page, "a dog")
    roles = [(message["role"], message["content"]) for message in asked[0]["messages"]]
    assert roles == [("system", "Be brief."), ("user", "the cat"), ("assistant", answer), ("user", "a dog")]
    page.click("#clear")
    page.reload()
    page.get_by_text("tiny", exact=True).first.wait_for()
    assert page.locator("article").count() == 0
    assert page.input_value("#max_tokens") == "40", "the settings stay"


def test_an_answer_that_a_reload_has_ended(page: Any, served: Served, gate: threading.Event) -> None:
    begin_long_answer(page)
    page.reload()
    page.get_by_text("ended by a reload").wait_for()
    assert len(texts(page)[1]) > 100
    assert tool(page, 1, "Continue").is_visible()
    served.wait_until_idle()


def test_what_was_kept_by_something_else_is_no_harm(page: Any) -> None:
    for kept, count in (
        ("{", 0),
        ("null", 0),
        ("[]", 0),
        ('{"turns": 3}', 0),
        ('{"turns": [null, {"role": "system"}, {"role": "user", "text": "hi"}], "settings": {"log": 1, "seed": 3}}', 1),
    ):
        page.add_init_script(f"localStorage.setItem('specllama', {json.dumps(kept)})")  # behind what the page keeps
        page.reload()
        page.get_by_text("tiny", exact=True).first.wait_for()
        assert page.locator("article").count() == count
    assert page.input_value("#seed") == "3"


def test_regenerate(page: Any, asked: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "20")
    page.fill("#seed", "7")
    say(page, "the cat")
    first = texts(page)
    say(page, "a dog")
    page.fill("#seed", "8")
    tool(page, 1, "Regenerate").click()
    wait_until_answered(page)
    assert len(texts(page)) == 2 and texts(page)[0] == first[0] and texts(page)[1] != first[1]
    assert asked[2] == {**asked[0], "seed": 8}
    page.fill("#seed", "7")
    tool(page, 1, "Regenerate").click()
    wait_until_answered(page)
    assert texts(page) == first


def test_edit(page: Any, asked: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "20")
    say(page, "the cat")
    say(page, "a dog")
    before, answer = texts(page), page.evaluate("turns[3].text")
    tool(page, 0, "Edit").click()
    page.get_by_role("button", name="Cancel").click()
    assert texts(page) == before
    tool(page, 1, "Edit").click()
    page.get_by_label("Text", exact=True).fill("I am no cat.")
    page.get_by_role("button", name="Save").click()
    assert texts(page) == [before[0], "I am no cat.", *before[2:]]
    say(page, "no?")
    assert [one["content"] for one in asked[-1]["messages"]] == ["the cat", "I am no cat.", "a dog", answer, "no?"]
    tool(page, 2, "Edit").click()
    page.get_by_label("Text", exact=True).fill("a fox")
    page.get_by_role("button", name="Send", exact=True).first.click()
    wait_until_answered(page)
    assert [one["content"] for one in asked[-1]["messages"]] == ["the cat", "I am no cat.", "a fox"]
    assert len(texts(page)) == 4 and texts(page)[2] == "a fox"


def test_continue(page: Any, served: Served, asked: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "12")
    page.fill("#temperature", "0")
    say(page, "the cat")
    first = page.evaluate("turns[1].text")
    assert not tool(page, 0, "Continue").is_visible()
    tool(page, 1, "Continue").click()
    wait_until_answered(page)
    prompt = asked[1]["prompt"]
    assert served.llm.detokenize(prompt, special=True).decode().endswith(first)
    expected = served.post("/v1/completions", prompt=prompt, max_tokens=12, temperature=0.0).json()
    assert page.evaluate("turns[1].text") == first + expected["choices"][0]["text"]
    assert len(texts(page)) == 2
    assert page.locator("article small").inner_text() == "cut off after 12 tokens, the most that the settings allow"
    assert page.locator("article [data-origin]").evaluate_all("all => all.map(one => one.textContent).join('')") != ""


def test_colours_can_be_switched_off(page: Any) -> None:
    page.fill("#num_draft_tokens", "4")
    page.fill("#max_tokens", "60")
    say(page, "the cat")
    grounds = "found => new Set(found.map(one => getComputedStyle(one).backgroundColor)).size"
    assert page.locator("article [data-origin]").evaluate_all(grounds) > 1
    page.uncheck("#coloured")
    assert page.locator("article [data-origin]").evaluate_all(grounds) == 1
    page.reload()
    page.get_by_text("tiny", exact=True).first.wait_for()
    assert page.locator("article [data-origin]").evaluate_all(grounds) == 1
    assert page.locator("aside li [data-origin]").evaluate_all(grounds) > 1, "the legend keeps them"


def tokens_long(served: Served, count: int) -> str:
    """A text of about so many tokens."""
    return "a " * (100 * count // len(served.llm.tokenize(b"a " * 100, add_bos=False)))


def test_progress_while_a_long_prompt_is_read(page: Any, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    look, opened = Generation._look_at_loop, threading.Event()

    def waiting(generation: Generation) -> None:
        look(generation)
        while generation._counters.num_target_tokens_decoded >= 512 and not opened.wait(0.005):
            generation._request.listener.poll()

    monkeypatch.setattr(Generation, "_look_at_loop", waiting)
    page.fill("#max_tokens", "10")
    page.fill("#message", tokens_long(served, 700))
    page.press("#message", "Enter")
    page.get_by_text(re.compile(r"^reading 512 of [67]\d\d tokens$")).wait_for()
    assert page.locator("progress").evaluate("bar => bar.value") == 512
    photograph(page, "reading")
    page.click("#stop")
    wait_until_answered(page)
    assert page.locator(".reading").count() == 0
    assert page.locator("article").count() == 1 and page.locator("article > p").inner_text() == "stopped"
    opened.set()
    tool(page, 0, "Send again").click()
    wait_until_answered(page)
    assert page.locator(".reading").count() == 0
    assert page.locator("article").count() == 2 and page.locator("article > p").count() == 0


def test_a_message_that_failed_stays(page: Any, asked: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "10")
    say(page, "the cat")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    say(page, "a dog")
    assert page.locator("[role=alert]").inner_text() == "the server does not answer: has it been ended?"
    assert len(texts(page)) == 3 and texts(page)[2] == "a dog"
    photograph(page, "failed")
    page.reload()
    tool(page, 2, "Send again").wait_for()
    page.unroute("**/v1/chat/completions")
    tool(page, 2, "Send again").click()
    wait_until_answered(page)
    assert page.locator("[role=alert]").count() == 0 and len(texts(page)) == 4
    # Who writes another message instead has the first one left out.
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, body="busy"))
    say(page, "lost")
    assert page.locator("[role=alert]").inner_text() == "the server answered 503"
    page.unroute("**/v1/chat/completions")
    say(page, "no fox")
    assert [one["content"] for one in asked[-1]["messages"]][::2] == ["the cat", "a dog", "no fox"]
    assert page.locator("article").nth(4).locator("small").inner_text() == "not answered, and not sent again"


def test_a_full_context_in_words(page: Any, served: Served, asked: list[dict[str, Any]]) -> None:
    page.fill("#max_tokens", "10")
    long = tokens_long(served, 600)
    say(page, long)
    say(page, long)
    alert = page.locator("[role=alert]").inner_text()
    assert alert.startswith("This conversation has become too long for the model, which reads 1024 tokens at once")
    assert "Leave out its oldest turn" in alert
    photograph(page, "full")
    tool(page, 2, "Leave out the oldest turn, and send again").click()
    wait_until_answered(page)
    assert page.locator("[role=alert]").count() == 0
    assert [one["role"] for one in asked[-1]["messages"]] == ["user"]
    assert page.locator("article.left").count() == 2 and page.locator("article").count() == 4


def test_speed_over_plain_speed_is_the_speedup(page: Any) -> None:
    page.fill("#num_draft_tokens", "auto")
    page.fill("#max_tokens", "200")
    say(page, "the cat")
    speed, plain, speedup = (page.inner_text(f"#{name}") for name in ("speed", "plain", "speedup"))
    assert float(speedup.removesuffix(" ×")) == pytest.approx(float(speed) / float(plain), abs=0.02)
    page.check("#compare")
    tool(page, 1, "Regenerate").click()
    wait_until_answered(page)
    speed, plain, speedup = (page.inner_text(f"#{name}") for name in ("speed", "plain", "speedup"))
    assert float(speedup.removesuffix(" ×")) == pytest.approx(float(speed) / float(plain), abs=0.02)
    assert (
        f"plainly {plain} tokens/s: the draft made it {speedup[:-2]} times as fast"
        in page.locator("article > p").inner_text()
    )


BMP = b"BM" + struct.pack("<IHHIIiiHHIIiiII", 58, 0, 0, 54, 40, 1, 1, 1, 24, 0, 4, 2835, 2835, 0, 0) + b"\0\0\xff\0"


@pytest.mark.parametrize("served", ["seeing"], indirect=True)
def test_images(page: Any, asked: list[dict[str, Any]]) -> None:
    picture = base64.b64decode(png(1).partition(",")[2])
    page.fill("#max_tokens", "10")
    files = [("cat.png", "image/png", picture), ("dot.bmp", "image/bmp", BMP), ("x.png", "image/png", b"no image")]
    page.locator("#image").wait_for()
    for name, kind, content in files:
        page.set_input_files("#files", {"name": name, "mimeType": kind, "buffer": content})
    page.get_by_text("x.png is no image that this browser reads").wait_for()
    assert page.locator("#chosen button").count() == 2
    photograph(page, "images")
    say(page, "What is this?")
    assert page.locator("[role=alert]").count() == 0 and page.locator("#chosen button").count() == 0
    text, *images = asked[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    addresses = [image["image_url"]["url"] for image in images]
    assert addresses[0] == png(1)
    assert addresses[1].startswith("data:image/jpeg;base64,") and len(addresses) == 2
    assert len(texts(page)[1]) > 0
    assert not tool(page, 1, "Continue").is_visible(), "it would lack the images"
    page.reload()
    page.get_by_text("tiny", exact=True).first.wait_for()
    assert page.locator("article img").count() == 2
    assert page.locator("article img").first.evaluate("image => image.naturalWidth") > 0


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (None, "A draft learns from the answers: it begins when there are enough."),
        (
            {"greedy": [0.5, 0.25], "num_tokens": 30_000, "at": 1e9, "gain": 1.25},
            "A draft has learned from 30000 tokens of answers: right at 50 / 25 % of the places, 1.25 times as fast as "
            "plain decoding.",
        ),
    ],
)
def test_what_a_draft_has_learned(page: Any, draft: dict[str, Any] | None, said: str) -> None:
    assert not page.locator("#learned").is_visible()

    def learning(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "learning": {"draft": draft}})

    page.route("**/props", learning)
    page.reload()
    page.locator("#learned", has_text=said).wait_for()


def test_a_model_that_reads_no_images(page: Any) -> None:
    assert not page.locator("#image").is_visible()
    page.evaluate("choose([new File(['x'], 'x.png', { type: 'image/png' })])")
    assert page.locator("#chosen button").count() == 0


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
    clipboard = "Navigator.prototype.__lookupGetter__('clipboard').call(navigator)"
    code, whole = page.locator("figure button"), page.locator("article").nth(1).locator(".tools button", has_text="Cop")
    for is_there in (True, False):
        if not is_there:  # as over plain HTTP
            page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        for button, text in ((code, 'def f(a):\n    return "<b>" * a\n'), (whole, MARKDOWN)):
            page.evaluate(f"{clipboard}.writeText('')")
            button.click()
            page.get_by_text("Copied").wait_for()
            assert page.evaluate(f"{clipboard}.readText()") == text
            page.get_by_text("Copied").wait_for(state="detached")


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
