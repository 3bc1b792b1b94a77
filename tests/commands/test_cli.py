"""The command line: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny

import specllama
from specllama import cli
from specllama.backend.cpu import default_threads
from specllama.commands.terminal import harmless
from specllama.engine.samplers import SAMPLERS

if TYPE_CHECKING:
    from conftest import TinyFiles

ANSWER = ["Hello", " wor", "ld", "!"]


class FakeStats:
    num_prompt_tokens = 2
    num_tokens = 4
    summary = "4 tokens, fake"

    def to_dict(self) -> dict[str, Any]:
        return {"num_tokens": 4}

    def __str__(self) -> str:
        return "4 tokens, fake\nand more"


class FakeLlama:
    """What the command line asks of a Llama, without a model."""

    last: FakeLlama

    def __init__(self, model_path: str, **options: Any) -> None:
        type(self).last = self
        self.options = {"model": model_path, **options}
        self.call: dict[str, Any] = {}
        self.closed = False
        self.stats = FakeStats()
        self.input_ids = [7, 8, 0, 1, 2, 3, 99, 99]

    def n_ctx(self) -> int:
        return int(self.options["n_ctx"])

    def create_completion(self, prompt: str, *, stream: bool, **options: Any) -> Iterator[dict[str, Any]]:
        self.call = {"prompt": prompt, **options}
        for token in range(len(ANSWER)):
            self.before(token)
            yield {"choices": [{"text": ANSWER[token], "finish_reason": None}]}
        yield {"choices": [{"text": "", "finish_reason": "length"}]}

    def create_chat_completion(
        self, messages: list[dict[str, str]], *, stream: bool, **options: Any
    ) -> Iterator[dict[str, Any]]:
        yield {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}
        for chunk in self.create_completion("", stream=True, **options):
            choice = chunk["choices"][0]
            delta = {"content": choice["text"]} if choice["text"] else {}
            yield {"choices": [{"delta": delta, "finish_reason": choice["finish_reason"]}]}
        self.call["messages"] = messages

    def before(self, token: int) -> None:
        """Overridden to interrupt."""

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeLlama]:
    monkeypatch.setitem(vars(specllama), "Llama", FakeLlama)  # Without loading the real one.
    return FakeLlama


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    line = [sys.executable, "-m", "specllama", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120, **options)


# --- in general ------------------------------------------------------------------------------------------------------


REFUSED = ["eval", "humaneval", "-m", "a", "-md", "b", "--prompts", "c"]  # without --allow-code-execution


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *(([*words, "--help"], 0) for words in ([], ["generate"], ["eval"], ["eval", "multiply"])),
        (["pull", "--list"], 0),
        (["--version"], 0),
        (REFUSED, 2),
    ],
)
def test_light_commands_do_not_load_llama_cpp(arguments: list[str], code: int) -> None:
    script = f"""
        import sys
        from specllama.cli import main
        assert main({arguments!r}) == {code}
        heavy = {{"llama_cpp", "numpy", "huggingface_hub", "torch"}} & set(sys.modules)
        assert not heavy, heavy
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout or code


def test_errors_are_one_line(
    fake: type[FakeLlama], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: FakeLlama, model_path: str, **options: Any) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr(FakeLlama, "__init__", fail)
    assert cli.main(["generate", "-m", "x", "-p", "y"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "specllama: error: KeyError: 'two\\nlines'\n")
    monkeypatch.setenv("SPECLLAMA_DEBUG", "1")
    with pytest.raises(KeyError):
        cli.main(["generate", "-m", "x", "-p", "y"])


def test_warnings_are_one_line(
    fake: type[FakeLlama], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(self: FakeLlama, token: int) -> None:
        if token == 0:
            warnings.warn("the draft is larger", UserWarning, stacklevel=1)

    monkeypatch.setattr(FakeLlama, "before", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(["generate", "-m", "x", "-p", "y"]) == 0
    assert "specllama: warning: the draft is larger\n" in capsys.readouterr().err


# --- generate --------------------------------------------------------------------------------------------------------


def test_generate_streams_and_reports(fake: type[FakeLlama], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "-m", "target", "-md", "draft", "-p", "Hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello world!\n"
    assert err == "cut off at 4 tokens: the context of 4096 tokens is full, see --ctx-size\n4 tokens, fake\n"
    assert fake.last.closed
    threads = {"n_threads": default_threads(), "n_threads_batch": default_threads()}
    assert fake.last.options == {"model": "target", "draft_model": "draft", "n_ctx": 4096, "verbose": False, **threads}
    assert fake.last.call == {"prompt": "Hi", "max_tokens": 128}
    assert cli.main(["generate", "-m", "target", "-p", "Hi", "--stats"]) == 0
    assert capsys.readouterr().err.endswith("--ctx-size\n4 tokens, fake\nand more\n")


def test_generate_says_when_it_cut_an_answer_off(
    fake: type[FakeLlama], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", "-m", "target", "-p", "Hi", "-n", "4"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello world!\n"
    assert err == "cut off at 4 tokens: a larger --max-tokens lets the answer go on\n4 tokens, fake\n"
    ended = FakeLlama.create_completion

    def stops(self: FakeLlama, prompt: str, **options: Any) -> Iterator[dict[str, Any]]:
        for chunk in ended(self, prompt, **options):
            if chunk["choices"][0]["finish_reason"]:
                chunk["choices"][0]["finish_reason"] = "stop"
            yield chunk

    monkeypatch.setattr(FakeLlama, "create_completion", stops)
    assert cli.main(["generate", "-m", "target", "-p", "Hi", "-n", "4"]) == 0
    assert capsys.readouterr().err == "4 tokens, fake\n"


def test_generate_passes_every_option(
    fake: type[FakeLlama], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "generate --model a --draft-model b --num-draft-tokens 0 --prompt c --max-tokens 7 --temp 0 --top-p 0.5"
    line += " --min-p 0 --top-k 3 --seed 0 --verify coupled --ctx-size 99 --threads 3 --n-gpu-layers -1"
    line += " --repeat-penalty 1.1 --max-draft-tokens 9 --draft-of-draft d"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\ufeffThe cät.\n", encoding="utf-8")
    assert cli.main([*line.split(), "--lookup-corpus", str(corpus)]) == 0
    assert fake.last.options == {
        "model": "a",
        "draft_model": "b",
        "draft_kwargs": {"draft_model": "d"},
        "lookup_corpus": "The cät.\n",
        "num_draft_tokens": 0,
        "max_draft_tokens": 9,
        "verify": "coupled",
        "n_ctx": 99,
        "n_threads": 3,
        "n_threads_batch": 3,
        "n_gpu_layers": -1,
        "verbose": False,
    }
    assert fake.last.call == {
        "prompt": "c",
        "max_tokens": 7,
        "temperature": 0.0,
        "top_p": 0.5,
        "min_p": 0.0,
        "top_k": 3,
        "seed": 0,
        "repeat_penalty": 1.1,
    }


def test_generate_passes_llama_servers_samplers(fake: type[FakeLlama], capsys: pytest.CaptureFixture[str]) -> None:
    line = "generate -m a -p c --dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 64"
    line += " --dry-sequence-breaker ; --dry-sequence-breaker . --xtc-probability 0.5 --xtc-threshold 0.2"
    assert cli.main([*line.split(), *"--top-nsigma 1.5 --dynatemp-range 0.3 --dynatemp-exp 1.2".split()]) == 0
    assert fake.last.call == {
        "prompt": "c",
        "max_tokens": 128,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": [";", "."],
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "top_n_sigma": 1.5,
        "dynatemp_range": 0.3,
        "dynatemp_exponent": 1.2,
    }
    assert set(fake.last.call) - {"prompt", "max_tokens"} == set(SAMPLERS)


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_generate_json(fake: type[FakeLlama], capsys: pytest.CaptureFixture[str], chat: list[str]) -> None:
    assert cli.main(["generate", "-m", "x", "-p", "Hi", "--json", *chat]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "text": "Hello world!",
        "tokens": [0, 1, 2, 3],
        "finish_reason": "length",
        "stats": {"num_tokens": 4},
    }
    if chat:
        assert fake.last.call["messages"] == [{"role": "user", "content": "Hi"}]


def test_generate_reads_stdin(fake: type[FakeLlama], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    assert cli.main(["generate", "-m", "x", "-p", "-"]) == 0
    assert fake.last.call["prompt"] == "two\nlines"


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("ending", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_interrupt_keeps_the_text(
    fake: type[FakeLlama],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
    ending: str,
    code: int,
    word: str,
) -> None:
    def interrupt(self: FakeLlama, token: int) -> None:
        if token == 2 and ending == "SIGINT":
            raise KeyboardInterrupt
        if token == 2:
            assert callable(signal.getsignal(signal.SIGTERM))
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(FakeLlama, "before", interrupt)
    assert cli.main(["generate", "-m", "x", "-p", "y", *(["--json"] if as_json else [])]) == code
    out, err = capsys.readouterr()
    assert fake.last.closed
    if as_json:
        found = json.loads(out)
        assert (found["text"], found["finish_reason"]) == ("Hello wor", "interrupted")
    else:
        assert out == "Hello wor\n"
        assert "4 tokens, fake\n" in err
    assert err.endswith(f"specllama: {word}\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_escape_sequences_do_not_reach_a_terminal(
    fake: type[FakeLlama], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """Elsewhere the text is what the model wrote, byte for byte."""
    said = "\x1b]0;title\x07[b]\tä\r\n\x08" + "long " * 40
    monkeypatch.setattr(sys.modules[__name__], "ANSWER", [said, "\x1b[2J", "x\x9by", "z"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["generate", "-m", "x", "-p", "y"]) == 0
    out = capsys.readouterr().out
    assert out == (harmless(said + "\x1b[2Jx\x9byz") if terminal else said + "\x1b[2Jx\x9byz") + "\n"


def test_generate_end_to_end(tiny_files: TinyFiles) -> None:
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256"]
    prompt = ["-p", "the cat", "-n", "20", "--temp", "0", "--num-draft-tokens", "4"]
    streamed = command("generate", *models, *prompt)
    assert streamed.returncode == 0, streamed.stderr
    assert "Traceback" not in streamed.stderr
    assert "accepted" in streamed.stderr
    found = json.loads(command("generate", *models, *prompt, "--json").stdout)
    assert found["text"] + "\n" == streamed.stdout
    assert set(found) == {"text", "tokens", "finish_reason", "stats"}
    assert found["stats"]["num_tokens"] == len(found["tokens"])
    assert found["stats"]["num_draft_tokens"] > 0
    plain = json.loads(command("generate", *models, *prompt, "--json", "--num-draft-tokens", "0").stdout)
    assert plain["tokens"] == found["tokens"]
    assert plain["stats"]["num_drafts"] == 0


@pytest.mark.parametrize("verbose", [False, True])
def test_a_warning_of_llama_cpp_is_shown_if_asked_for(
    tiny_files: TinyFiles, capfd: pytest.CaptureFixture[str], verbose: bool
) -> None:
    """Such as for a context that is larger than that of the training. llama-cpp-python takes it for an error."""
    specllama.Llama(str(tiny_files.target), n_ctx=4 * tiny.N_CTX_TRAIN, n_threads=1, verbose=verbose).close()
    assert ("possible training context overflow" in capfd.readouterr().err) == verbose


def test_chat_end_to_end(tiny_files: TinyFiles) -> None:
    options = ["-p", "the cat", "-n", "8", "--seed", "3", "-t", "1", "-c", "256", "--chat", "--json"]
    done = command("generate", "-m", str(tiny_files.target), *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < len(found["tokens"]) <= 8


@pytest.mark.parametrize("name", ["not_gguf", "truncated", "lora"])
def test_bad_model_end_to_end(tiny_files: TinyFiles, name: str) -> None:
    done = command("generate", "-m", str(getattr(tiny_files, name)), "-p", "x")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("specllama: error: ")
    assert done.stderr.count("\n") == 1
    assert name in done.stderr


def test_missing_model_end_to_end(cache: Path) -> None:
    for model, message in (
        ("absent.gguf", "absent.gguf"),
        ("smollm2-135m", "specllama pull smollm2-135m"),
        ("", "error: '' does not exist"),
    ):
        done = command("generate", "-m", model, "-p", "x")
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_closed_pipe_ends_it(tiny_files: TinyFiles) -> None:
    line = [sys.executable, "-m", "specllama.cli", "generate", "-m", str(tiny_files.target), "-md", str(tiny_files.bad)]
    line += ["-p", "the cat", "-n", "100000", "-t", "1", "-c", "4096", "--temp", "1.5"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(line, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(timeout=60) == cli.BROKEN_PIPE, err
    assert "Traceback" not in err


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_signal_that_an_import_wraps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    """As pybind11 does where a module is initialised, and Python where a class is made."""

    def run(arguments: object) -> int:
        try:
            raise raised
        except BaseException as error:
            raise ImportError("initialization failed") from error

    monkeypatch.setattr("specllama.commands.pull.run", run)
    assert cli.main(["pull", "--list"]) == code
    assert capsys.readouterr().err == f"specllama: {'interrupted' if code == 130 else 'terminated'}\n"


@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes the stream")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_as_good_as_nobody_reading(tiny_files: TinyFiles, closed: str) -> None:
    line = f"exec {sys.executable} -m specllama.cli generate -m {tiny_files.target} -p 'the cat' -n 4 {closed}"
    run = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert run.returncode == 0
    assert "Traceback" not in run.stdout + run.stderr
    assert bool(run.stdout) == (closed in ("2>&-", "<&-"))
