"""Parses a command line. Options may also have the names of Python's parameters, and an error is one line."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """The parser of a command.

    Every option is understood with the name of its parameter in Python, too, which is its ``dest``, and with ``_`` or
    ``-`` between words. ``--help`` shows one name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands: Any = None

    def add_subparsers(self, **kwargs: Any) -> Any:
        """See the base class. The parsers of commands are of this class, too."""
        self._commands = super().add_subparsers(**kwargs)
        return self._commands

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """See the base class. An unknown argument is an error at once, of the command that it was given to.

        The result has the parser of the command as ``parser``; this parser if there is no command.
        """
        found, rest = super().parse_known_args(self._renamed(sys.argv[1:] if args is None else args), namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        found.parser = getattr(found, "parser", self)
        return found, rest

    def error(self, message: str) -> Any:
        """Print one line, and end with the exit code 2."""
        self.exit(2, f"{self.wrong(message)}\n")

    def wrong(self, message: str) -> str:
        """The line for wrong usage: what is wrong, and where help is."""
        return f"{self.prog}: error: {' '.join(message.split())} (help: {self.prog} --help)"

    def _renamed(self, words: Sequence[str]) -> list[str]:
        """The words, with options renamed to the names that the base class knows."""
        known = self.names()
        renamed = list(words)
        for place, word in enumerate(words):
            if word == "--":
                break
            if self._commands is not None and not word.startswith("-"):  # the words after it are for this command
                if word not in self._commands.choices:
                    self._suggest(word, self._commands.choices)
                break
            renamed[place] = self._by_its_name(word, known)
        return renamed

    def names(self) -> dict[str, str]:
        """All long options, by each name that is understood for them. The names have hyphens between words."""
        known: dict[str, str] = {}
        for action in self._actions:
            names = [name for name in action.option_strings if name.startswith("--")]
            known |= {name: name for name in names}
            if names:
                known.setdefault("--" + action.dest.replace("_", "-"), names[0])
        return known

    def _by_its_name(self, word: str, known: dict[str, str]) -> str:
        given, equals, value = word.partition("=")
        if not given.startswith("--") or " " in given:  # not a long option: a prompt, perhaps
            return word
        name = given.replace("_", "-")
        if name in known:
            return known[name] + equals + value
        # An abbreviated option, which the base class understands.
        if any(option.startswith(name) for option in known.values()):
            return name + equals + value
        self._suggest(given, known, name)
        return word

    def _suggest(self, given: str, known: Any, name: str = "") -> None:
        """End with an error that names what the user may have meant, if a known name is similar."""
        near = difflib.get_close_matches(name or given, known, 1)
        if near:
            self.error(f"{given} is not known: did you mean {near[0]}?")
