"""Measures what a user gains by replacing llama_cpp.Llama by specllama.Llama, over whole calls with their prompts.

Each class has a process of its own, with the same file and threads, and they answer the same prompts in turn. specllama
answers in each mode: `plain` shows what its kernels gain, `auto` what kernels and draft gain together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from specllama.backend.child import python_command
from specllama.evidence.neighbours import Neighbours
from specllama.prompts import Prompt

from .benchmark import distinct
from .gains import THEIRS, AgainstResult, Call, gains
from .plan import Mode, Plan

OnCall = Callable[[Call, int, int], None]
"""Called with each call, how many are done, and how many there will be."""
_WORKER = Path(__file__).with_name("_side_worker.py")
_CHILD = "import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"  # runs the worker by its path
_WARM_UP_TOKENS = 8
_PAUSE = 0.1  # seconds, until the threads of the other process have stopped spinning


class SideError(RuntimeError):
    """Raised if a process cannot open its models, or has ended."""


class Against:
    """A comparison of both classes. If `run` is interrupted, the measured calls stay.

    Args:
        prompts: the prompts to answer.
        plan: modes, lengths, sampling.
        theirs: the arguments of llama_cpp.Llama: the model, its context and threads.
        ours: the arguments of specllama.Llama: `theirs`, and the draft with its arguments.
    """

    def __init__(
        self, prompts: Iterable[Prompt], plan: Plan, *, theirs: Mapping[str, Any], ours: Mapping[str, Any]
    ) -> None:
        self._prompts = distinct(prompts)
        self._plan = dataclasses.replace(plan, modes=(Mode(THEIRS), *plan.modes))
        self._theirs, self._ours = theirs, ours
        self._machine: dict[str, Any] = {}
        self._notes: list[str] = []
        self._total = len(self._prompts) * len(self._plan.modes) * plan.repeat
        self._done = 0
        self.calls: list[Call] = []

    def run(self, on_call: OnCall, on_note: Callable[[str], None]) -> AgainstResult:
        """Open both classes, warm them up, and do all calls.

        Raises:
            SideError: a process cannot open its models, or has ended.
            ValueError: no prompt could be answered.
        """
        modes = self._plan.modes
        neighbours = Neighbours()
        with _Side(THEIRS, self._theirs) as theirs, _Side("specllama", self._ours) as ours:
            self._machine = ours.about
            sides = {mode.name: theirs if mode.name == THEIRS else ours for mode in modes}
            on_note("warming up")
            for mode in modes:
                warm_up = {**self._plan.options(mode, 0), "max_tokens": min(_WARM_UP_TOKENS, self._plan.max_tokens)}
                sides[mode.name].called(self._prompts[0], warm_up)
            on_note(f"{self._total} calls")
            for repeat, index, turn in self._plan.turns(len(self._prompts)):
                prompt = self._prompts[index]
                for mode in turn:
                    answer = sides[mode.name].called(prompt, self._plan.options(mode, repeat))
                    self._done += 1
                    if "error" in answer:
                        self._notes.append(f"left out {prompt.id}: {mode.name} says: {answer['error']}")
                        on_note(self._notes[-1])
                        continue
                    self.calls.append(Call(prompt.id, prompt.category, mode.name, repeat, **answer))
                    on_call(self.calls[-1], self._done, self._total)
            if (remark := neighbours.remark(self._machine["target"]["n_threads"])) is not None:
                self._notes.append(remark)
        if not self.calls:
            raise ValueError(f"no prompt could be answered: {self._notes[0]}")
        return self.result()

    def result(self) -> AgainstResult:
        """The result so far."""
        missing = self._total - self._done
        notes = [f"interrupted: {missing} of {self._total} calls are missing"] if missing else []
        return AgainstResult(
            calls=self.calls,
            gains=gains(self.calls, greedy=self._plan.temperature == 0),
            notes=[*self._notes, *notes],
            settings=self._plan.settings(self._prompts),
            machine=self._machine,
            interrupted=missing > 0,
        )


class _Side:
    """A process that has one of the classes and its models open. Use it as a context manager."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        # The process has a group of its own, so that Ctrl-C reaches only the parent. It ends when its stdin ends.
        self._process = subprocess.Popen(
            python_command(_CHILD, str(_WORKER), name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        self.about = self._asked(options)
        if "error" in self.about:
            self.__exit__()
            raise SideError(f"the process with {name} cannot open its models: {self.about['error']}")

    def called(self, prompt: Prompt, options: dict[str, Any]) -> dict[str, Any]:
        """Have the process do one whole call. Returns the fields of a `Call`, or ``error``."""
        time.sleep(_PAUSE)
        return self._asked({"text": prompt.text, "chat": prompt.chat, "before": prompt.before, "options": options})

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise SideError(f"the process with {self._name} has ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> _Side:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
