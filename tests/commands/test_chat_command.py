"""`specllama chat`: scripts on stdin, a real terminal, and what may not end it."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import hypothesis
import hypothesis.strategies as st
import pytest

from specllama import cli
from specllama.commands import terminal
from specllama.commands.chat import Chat, read_message
from specllama.conversation import Conversation

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.usefixtures("cache")

MESSAGE = "the cat sat on the dog and"


@pytest.fixture
def chat(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a script: exit code, stdout and stderr."""

    def run(script: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(script))
        line = ["chat", "-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256", "-n", "12"]
        code = cli.main([*line, "--seed", "3", *options])
        return code, *capsys.readouterr()

    return run


Run = Callable[..., tuple[int, str, str]]


def test_a_script_of_messages(chat: Run, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    conversation = Conversation(make_llama(draft=tiny_files.good, n_ctx=256), "a dog", seed=3, max_tokens=12)
    expected = "".join(
        "".join(token.text for token in conversation.say(message)) + "\n" for message in (MESSAGE, "no\nfox", "the dog")
    )
    code, out, err = chat(f'{MESSAGE}\n\n"""no\nfox"""\nthe dog', "--system", "a dog")
    assert (code, out, err) == (0, expected, "")


def test_statistics_show_what_was_reused(chat: Run) -> None:
    code, out, _ = chat(f"{MESSAGE}\n/stats\nno fox\n/stats\n/exit\nnot reached")
    assert code == 0
    reused = [line.split("(")[1] for line in out.splitlines() if "after a prompt of" in line]
    sizes = [int(line.split()[2]) for line in out.splitlines() if line.endswith("of the context")]
    assert reused == ["0 reused)", f"{sizes[0] - 1} reused)"]
    assert "2 turns, " in out


def test_commands(chat: Run, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    script = f"""
        /help
        /system be a cat
        {MESSAGE}
        /draft off
        {MESSAGE}
        /stats
        /draft on
        {MESSAGE}
        /stats
        /save {file}
        /save {file}
        /drop 2
        /save {tmp_path / "short.json"}
        /reset
        /system
        /load {file}
    """
    code, out, err = chat("\n".join(line.strip() for line in script.splitlines()))
    assert (code, "error" in err) == (0, False), err
    assert "/draft on|off" in out
    plain, drafted = out.split(" tokens in ")[1:]
    assert "drafted" not in plain
    assert "drafted" in drafted
    saved = json.loads(file.read_text(encoding="utf-8"))["messages"]
    assert [message["content"] for message in saved[1::2]] == [MESSAGE] * 3
    assert saved[0] == {"role": "system", "content": "be a cat"}
    assert json.loads((tmp_path / "short.json").read_text())["messages"] == [saved[0], *saved[5:]]
    assert err.splitlines() == [
        "The system message is set.",
        "Drafting is off.",
        "Drafting is on.",
        "3 turns saved.",
        "3 turns saved.",
        "1 turn left.",
        "1 turn saved.",
        "All turns are forgotten.",
        "There is no system message.",
        "3 turns loaded.",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nonsense", "no command /nonsense: /help lists them"),
        ("/usr/bin/x", "put a space before a message that begins with /"),
        ("/draft", "/draft takes on or off"),
        ("/drop", "cannot forget 1 turns: the conversation has 0"),
        ("/drop many", "/drop takes a number of turns, not 'many'"),
        ("/save", "/save needs the name of a file"),
        ("/save /", "/ exists"),
        ("/save ~nouser/x", "there is no home folder for ~nouser/x: give the whole path"),
        ("/load absent.json", "absent.json"),
        ("cat " * 300, "the message alone is too long"),
    ],
)
def test_an_error_does_not_end_the_chat(chat: Run, line: str, message: str) -> None:
    code, out, err = chat(f"{line}\n{MESSAGE}")
    assert code == 1
    assert len(out) > 5
    assert err.startswith("error: ")
    assert message in err


def test_a_message_that_begins_with_a_slash(chat: Run) -> None:
    assert chat(" /usr/bin")[0] == 0


def test_without_a_draft(tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/draft on"))
    assert cli.main(["chat", "-m", str(tiny_files.target), "-t", "1"]) == 1
    assert "there is no draft: start the chat with --draft-model/-md" in capsys.readouterr().err


def test_a_full_context_is_said_and_left(chat: Run) -> None:
    code, out, err = chat(f"{MESSAGE}\n" * 3 + "/drop 2\n/stats", "-n", "100")
    assert code == 1
    assert "error: the context is full: with this message the conversation has" in err
    assert "/drop forgets the oldest turn, /reset all; then this message is answered" in err
    assert "0 turns left." in err
    assert "1 turn, " in out.splitlines()[-1]
    assert len(out.splitlines()) > 3


def test_an_answer_that_fills_the_context(chat: Run) -> None:
    _, out, err = chat(f"{MESSAGE}\n/stats", "-n", "1000")
    assert out.endswith("1 turn, 256 of 256 tokens of the context\n")
    assert "the context is full, which ended the answer" in err


def test_ctrl_c_stops_the_answer_and_not_the_chat(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(make_llama(draft=tiny_files.good), seed=3, max_tokens=12)
    session = Chat(conversation)
    show, shown = terminal.print_piece, []

    def interrupted(out: Any, piece: str, style: str) -> None:
        show(out, piece, style)
        shown.append(piece)
        if len(shown) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "print_piece", interrupted)
    session.run([MESSAGE, "no fox"])
    out, err = capsys.readouterr()
    assert conversation.messages[1]["content"] == "".join(shown[:5]) == out.splitlines()[0]
    assert len(conversation.messages[3]["content"]) > 5
    assert err == "(stopped)\n"

    def before_a_word(message: str) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(conversation, "say", before_a_word)
    session.run([MESSAGE])
    assert capsys.readouterr().err == "(your message was taken back: nothing was said)\n(stopped)\n"
    assert not session.failed


# --- a terminal ------------------------------------------------------------------------------------------------------


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        import pty

        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        environment.pop("NO_COLOR", None)
        line = faults.line("chat", *arguments, under=faults.PERMISSIONS)

        def take_terminal() -> None:
            import fcntl
            import termios

            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            line, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, preexec_fn=take_terminal
        )
        os.close(theirs)
        self._ours = ours
        self._read = ""

    def write(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, end: str, key: str = "") -> str:
        """What was printed up to `end`. A key is pressed for it, and again when nothing comes."""
        limit = time.monotonic() + 60
        self.write(key)
        while end not in self._read:
            assert time.monotonic() < limit, self._read
            if select.select([self._ours], [], [], 1)[0]:
                try:
                    self._read += os.read(self._ours, 65536).decode(errors="replace")
                except OSError as closed:
                    raise AssertionError(f"it ended ({self.process.wait(60)}) behind {self._read!r}") from closed
            else:
                self.write(key)
        found, _, self._read = self._read.partition(end)
        return found

    def read_the_rest(self) -> None:
        """Whatever is printed until nothing is for two seconds."""
        while select.select([self._ours], [], [], 2)[0]:
            os.read(self._ours, 65536)
        self._read = ""

    def close(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self._ours)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
@pytest.mark.long
def test_in_a_terminal(tiny_files: TinyFiles, tmp_path: Path) -> None:
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "1024", "--temp", "1.5"]
    terminal = Terminal(*models, "--origins", "--seed", "3", "--num-draft-tokens", "4")
    try:
        assert "Ctrl-C stops an answer" in terminal.read_until("> ")
        terminal.write(f"{MESSAGE}\r")
        terminal.read_until(MESSAGE)
        terminal.read_until("\x1b[32m")  # a drafted token
        terminal.write("\x03")
        assert "Traceback" not in terminal.read_until("(stopped)")
        terminal.read_until("> ")
        # Python looks at signals once its input waits, which is some time behind the prompt: one before is seen later.
        terminal.read_until("Ctrl-D or /exit leaves", key="\x03")
        terminal.read_the_rest()
        terminal.write("/stats\r")
        assert "1 turn, " in terminal.read_until("of the context")
        terminal.read_until("> ")  # what is typed before it may be lost
        terminal.write("\x04")
    except BaseException:
        terminal.process.kill()
        raise
    finally:
        code = terminal.close()
    assert code == 0
    history = tmp_path / "cache" / "chat-history"
    if history.exists():  # Python may have no readline
        assert [line for line in history.read_text().splitlines() if line in (MESSAGE, "/stats")] == [MESSAGE, "/stats"]


@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
@pytest.mark.parametrize("before", ["nothing", "rubbish", "a folder", "unreadable"])
def test_the_history_of_a_chat_that_is_terminated(tiny_files: TinyFiles, tmp_path: Path, before: str) -> None:
    pytest.importorskip("readline", reason="this Python has no readline")
    history = tmp_path / "cache" / "chat-history"
    history.parent.mkdir()
    rubbish = b"\xff\xfe\x00no text\x9b\n" * 100
    if before == "a folder":
        history.mkdir()
    elif before != "nothing":
        history.write_bytes(rubbish)
        history.chmod(0o000 if before == "unreadable" else 0o600)
    terminal = Terminal("-m", str(tiny_files.target), "-t", "1", "-c", "1024", "--temp", "0")
    try:
        shown = terminal.read_until("> ")
        terminal.write(f"{MESSAGE}\r")
        terminal.read_until(MESSAGE)
        terminal.process.terminate()
        shown += terminal.read_until("specllama: terminated")
    finally:
        code = terminal.close()
    assert code == 143
    assert "Traceback" not in shown
    if before == "nothing":
        assert MESSAGE in history.read_text().splitlines()
    elif before == "rubbish":
        assert history.read_bytes().endswith(f"{MESSAGE}\n".encode())
    else:
        assert "warning: the history" in shown
        assert "cannot be read, and nothing is added to it" in shown
        assert history.is_dir() or history.read_bytes() == rubbish


def test_control_characters_are_shown() -> None:
    assert terminal.harmless("a\tb\nä\x1b[31m\x07\x9b\r") == "a\tb\nä␛[31m␇\ufffd␍"


# --- messages of several lines ---------------------------------------------------------------------------------------

LINES = st.lists(st.text(st.characters(exclude_characters='\n"', exclude_categories=["Cs"])), max_size=4)


def reader(lines: list[str]) -> Callable[[str], str | None]:
    """Gives the lines, then None."""
    left = iter(lines)
    return lambda prompt: next(left, None)


@hypothesis.given(LINES, st.booleans())
def test_quoted_messages(lines: list[str], apart: bool) -> None:
    quoted = ['"""', *lines, '"""'] if apart or not lines else [f'"""{lines[0]}', *lines[1:], '"""']
    read = reader([*quoted, "next"])
    assert read_message(read) == "\n".join(lines).strip("\n")
    assert [read_message(read), read_message(read)] == ["next", None]


def test_a_quoted_message_that_does_not_end() -> None:
    assert read_message(reader(['"""the', "cat"])) == "the\ncat"
    assert read_message(reader(['"""the cat"""  '])) == "the cat"
