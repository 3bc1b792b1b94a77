"""Downloads from the hub: from one on this machine that fails in several ways."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import faults
import pytest
from fake_hub import Hub, hub_model

from specllama.models.catalog import Model, partial_dir


@pytest.fixture
def pull(tmp_path: Path) -> Pull:
    return Pull(tmp_path)


class Pull:
    """The command in a process of its own: the hub's library reads HF_ENDPOINT when it is imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def line(self, model: Model) -> list[str]:
        return faults.with_catalog(self._folder, model, "pull", model.name)

    def __call__(self, model: Model) -> subprocess.CompletedProcess[str]:
        return faults.finished(self.line(model))


def test_a_download(hub: type[Hub], pull: Pull) -> None:
    hub.content = b"weights" * 1000
    model = hub_model(hub.content)
    done = pull(model)
    assert (done.returncode, done.stdout) == (0, f"{model.path}\n"), done.stderr
    assert model.path.read_bytes() == hub.content
    assert faults.files_below(partial_dir()) == ["fake-model.lock"]
    hub.requests.clear()
    assert pull(model).stdout == f"{model.path}\n"
    assert hub.requests == []  # what is here is not asked for


def test_a_truncated_model_is_replaced(hub: type[Hub], pull: Pull) -> None:
    hub.content = b"weights" * 1000
    model = hub_model(hub.content)
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(b"half")
    assert pull(model).returncode == 0
    assert model.path.read_bytes() == hub.content


def test_a_connection_that_breaks_is_taken_up_again(hub: type[Hub], pull: Pull) -> None:
    hub.content = bytes(range(256)) * (12 << 12)  # The hub's library keeps pieces of 10 MiB.
    hub.cut_once = True
    model = hub_model(hub.content)
    done = pull(model)
    assert model.path.read_bytes() == hub.content, done.stderr
    assert f"GET bytes={10 << 20}-" in hub.requests


@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("sent", "code"), [("SIGKILL", -9), ("SIGTERM", 143), ("SIGINT", 130)])
def test_a_download_that_is_ended_leaves_nothing_by_the_models_name(
    hub: type[Hub], pull: Pull, sent: str, code: int
) -> None:
    import signal

    hub.content = bytes(range(256)) * (12 << 12)
    hub.stall = gone = threading.Event()
    model = hub_model(hub.content)
    with subprocess.Popen(pull.line(model), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not any(path.stat().st_size for path in partial_dir().rglob("*.incomplete")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(getattr(signal, sent))
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            gone.set()
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert not model.path.exists()
    again = pull(model)
    assert (again.returncode, again.stdout) == (0, f"{model.path}\n"), again.stderr
    assert model.path.read_bytes() == hub.content
    assert faults.files_below(partial_dir()) == ["fake-model.lock"]


def test_two_at_once(hub: type[Hub], pull: Pull) -> None:
    hub.content = bytes(range(256)) * (12 << 12)
    model = hub_model(hub.content)
    line = pull.line(model)
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in both] == [f"{model.path}\n"] * 2
    assert model.path.read_bytes() == hub.content
    assert hub.requests.count("GET") == 1


def test_another_file(hub: type[Hub], pull: Pull) -> None:
    hub.content = b"someone replaced it"
    model = hub_model(b"the model")
    done = pull(model)
    faults.assert_one_line_error(done, f"and the catalog expects {model.sha256}; it was removed")
    assert not model.path.exists()
    assert not any(path.name == model.file for path in partial_dir().rglob("*"))


def test_a_repository_that_is_not_there(hub: type[Hub], pull: Pull) -> None:
    done = pull(hub_model(b"weights", repo="someone/else"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("specllama: error: fake-model could not be downloaded from someone/else: ")
    assert "404" in last


def test_no_hub(hub: type[Hub], pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = pull(hub_model(b"weights"))
    faults.assert_one_line_error(done, "could not be downloaded", "HF_HUB_OFFLINE", "python models/fetch.py fake-model")
    assert hub.requests == []
