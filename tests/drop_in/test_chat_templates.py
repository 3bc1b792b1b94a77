"""A chat template that jinja cannot read: only the chats that need it fail, and say why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from fresh import text_of

import specllama
from specllama import cli

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

MESSAGES: Any = [{"role": "user", "content": "the cat"}]
UNREADABLE = {
    "Go's": ("{{ .System }}", "TemplateSyntaxError: unexpected '.'"),
    "an unknown filter": ("{{ messages | nofilter }}", "TemplateAssertionError: No filter named 'nofilter'"),
    "too many blocks for Python": ("{% for a in b %}" * 25 + "{% endfor %}" * 25, "SyntaxError: too many"),
    "brackets without end": ("{{" + "(" * 2000 + "1" + ")" * 2000 + "}}", "RecursionError"),
}


@pytest.fixture(params=UNREADABLE)
def unreadable(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """The model of `tiny_files.target` with another template, and why that cannot be read."""
    template, why = UNREADABLE[request.param]
    words = dataclasses.replace(tiny.word_vocabulary(), chat_template=template)
    return tiny.write_llama(tmp_path / "unreadable.gguf", words, tiny.llama_weights(words, seed=1)), why


def test_what_needs_no_template_works(
    make_llama: MakeLlama, tiny_files: TinyFiles, unreadable: tuple[Path, str]
) -> None:
    path, _ = unreadable
    llm = make_llama(path)
    assert text_of(llm) == text_of(make_llama())
    assert llm.metadata["tokenizer.chat_template"] != tiny.CHAT_TEMPLATE
    chat: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "temperature": 0.0}
    expected = make_llama(chat_format="chatml").create_chat_completion(**chat)["choices"]
    assert make_llama(path, chat_format="chatml").create_chat_completion(**chat)["choices"] == expected
    handled = make_llama(
        path, chat_handler=lambda *, llama, messages, **_: llama.create_completion("the", max_tokens=2)
    )
    assert handled.create_chat_completion(MESSAGES)["usage"]["completion_tokens"] == 2
    assert len(make_llama(path, embedding=True).embed("the cat")) > 0
    assert make_llama(path, vocab_only=True).tokenize(b"the cat") == llm.tokenize(b"the cat")
    drafted = make_llama(draft=path)
    assert text_of(drafted) == text_of(make_llama(draft=tiny_files.identical))
    assert drafted.stats.num_accepted_tokens > 0


def test_chats_say_why(make_llama: MakeLlama, unreadable: tuple[Path, str]) -> None:
    path, why = unreadable
    llm = make_llama(path)
    for chat in (
        lambda: llm.create_chat_completion(MESSAGES, max_tokens=2),
        lambda: list(specllama.Conversation(llm).say("the cat", max_tokens=2)),
    ):
        with pytest.raises(
            ValueError, match=r"unreadable\.gguf cannot be read .*: create the Llama with a chat_format"
        ) as e:
            chat()
        assert why in str(e.value)
    [outcome] = llm.create_chat_completions([MESSAGES], max_tokens=2)
    assert isinstance(outcome.error, ValueError)


def test_one_of_several_templates_is_readable(
    make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chat format that names the readable one works; the file's first one is the unreadable one, or that is."""
    words, finish = tiny.word_vocabulary(), tiny._finish

    def with_another(text: str) -> Any:
        def write(writer: Any, *args: Any) -> None:
            writer.add_string("tokenizer.chat_template.other", text)
            finish(writer, *args)

        return write

    chats = []
    for first, second in (("{{ .System }}", tiny.CHAT_TEMPLATE), (tiny.CHAT_TEMPLATE, "{{ .System }}")):
        monkeypatch.setattr(tiny, "_finish", with_another(second))
        vocabulary = dataclasses.replace(words, chat_template=first)
        path = tiny.write_llama(tmp_path / f"{len(chats)}.gguf", vocabulary, tiny.llama_weights(words, seed=1))
        formats = {None: first, "chat_template.other": second}
        for name, template in formats.items():
            llm = make_llama(path, chat_format=name)
            if template == tiny.CHAT_TEMPLATE:
                chats.append(llm.create_chat_completion(MESSAGES, max_tokens=4, temperature=0.0)["choices"])
            else:
                with pytest.raises(ValueError, match=r"the chat template of .* cannot be read"):
                    llm.create_chat_completion(MESSAGES, max_tokens=4)
    assert len(chats) == 2
    assert chats[0] == chats[1]


def test_on_the_command_line(
    tmp_path: Path, unreadable: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["generate", "-m", str(unreadable[0]), "-t", "1", "-c", "256", "-n", "2", "-p", "the cat"]
    assert cli.main(line) == 0
    capsys.readouterr()
    assert cli.main([*line, "--chat"]) == 1
    assert "cannot be read" in capsys.readouterr().err
