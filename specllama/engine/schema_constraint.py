"""Constraints over the tokens of a model: of schemas, of tool calls, and of answers that follow a thought."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, cast

import llama_cpp

from specllama import _core
from specllama.grammars.begun_calls import BegunCalls, BegunMatcher
from specllama.grammars.behind_thought import BehindThought, Matcher, Thought
from specllama.grammars.schema_matcher import SchemaVocabulary

from .model import Model


def schema_vocabulary(model: Model) -> SchemaVocabulary:
    """A model's vocabulary in the form that schemas need. It takes a while: use ``model.once(schema_vocabulary)``."""
    return SchemaVocabulary(model.vocab, model.tokenizer, int(llama_cpp.llama_vocab_eos(cast(Any, model.vocab))))


@dataclasses.dataclass(frozen=True)
class Schema:
    """A JSON schema that a text must follow.

    Attributes:
        matched: llguidance's grammar of the schema, as ``matched_schema`` makes it.
    """

    matched: str

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over the tokens of a model, at the beginning of the text.

        Raises:
            ValueError: llguidance cannot follow the schema.
        """
        return model.once(schema_vocabulary).constraint(self.matched)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A text must follow one of several grammars.

    Attributes:
        grammars: the grammars, for llguidance.
    """

    grammars: tuple[str, ...]

    is_required: ClassVar[bool] = True

    def matcher(self, vocabulary: SchemaVocabulary) -> Matcher:
        """The matcher at the beginning of the text."""
        return vocabulary.matcher(*self.grammars)

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over the tokens of a model, at the beginning of the text."""
        return _constraint(self, model)


@dataclasses.dataclass(frozen=True)
class Begun:
    """A text may contain tool calls. Once the text has begun a call, it must complete the call.

    Attributes:
        calls: the beginnings of the calls, and their grammars.
    """

    calls: BegunCalls

    is_required: ClassVar[bool] = False

    def matcher(self, vocabulary: SchemaVocabulary) -> Matcher:
        """The matcher at the beginning of an answer."""
        return BegunMatcher(vocabulary, self.calls)

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over the tokens of a model, at the beginning of an answer."""
        return _constraint(self, model)


@dataclasses.dataclass(frozen=True)
class Behind:
    """An answer that follows a grammar, behind a thought, which may be any text.

    Attributes:
        thought: the marks of the thought.
        at_once: the answer if there is no thought. It must also allow the mark that begins a thought.
        answer: the answer behind the thought.
    """

    thought: Thought
    at_once: OneOf | Begun
    answer: OneOf | Begun

    @property
    def is_required(self) -> bool:
        """Whether the text may not end before the answer does."""
        return self.answer.is_required

    def matcher(self, vocabulary: SchemaVocabulary) -> BehindThought:
        """The matcher at the beginning of a text."""
        at_once, behind = (functools.partial(each.matcher, vocabulary) for each in (self.at_once, self.answer))
        return BehindThought(vocabulary, self.thought, at_once, behind, is_required=self.is_required)

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over the tokens of a model, at the beginning of a text."""
        return _constraint(self, model)


def _constraint(rule: OneOf | Begun | Behind, model: Model) -> _core.MaskConstraint:
    vocabulary = model.once(schema_vocabulary)
    return _core.MaskConstraint(vocabulary.ends, rule.matcher(vocabulary))
