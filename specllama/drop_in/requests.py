"""Makes an engine's request of the arguments of llama_cpp's methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_grammar import LlamaGrammar

from specllama.engine.learning import checked_learn
from specllama.engine.request import Constraint, Request, checked_callables
from specllama.engine.samplers import taken_from
from specllama.engine.schema_constraint import Begun, Behind, OneOf, Schema
from specllama.engine.vocabulary import Gbnf
from specllama.grammars.schema import SchemaGrammar

from .arguments import chain_of, sampling_of
from .min_tokens import MinTokens, checked_min_tokens
from .mirostat import chooser_of
from .prediction import checked_prediction, corpus_of
from .view import Call, EngineLlama, call_on


def call_of(llama: EngineLlama, kwargs: dict[str, Any], num_draft_tokens: Any = None, verify: Any = None) -> Call:
    """Make the `Call` of a method from our own arguments, which are removed from `kwargs`.

    Our own code passes a ``call`` among them. A chat handler of llama_cpp's cannot pass one, so it is given a `View` of
    the Llama, which holds the call.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of range.
    """
    call = kwargs.pop("call") if isinstance(kwargs.get("call"), Call) else call_on(llama)
    speculation = kwargs.pop("num_draft_tokens", num_draft_tokens), kwargs.pop("verify", verify)
    options = call.options.overridden(*speculation, taken_from(kwargs))
    least = checked_min_tokens(kwargs.pop("min_tokens")) if "min_tokens" in kwargs else call.min_tokens
    if "prediction" in kwargs:
        call = dataclasses.replace(call, prediction=checked_prediction(kwargs.pop("prediction")))
    learns = checked_learn(kwargs.pop("learn")) if "learn" in kwargs else call.learns
    return dataclasses.replace(call, options=options, min_tokens=least, learns=learns)


def request_of(
    llama: EngineLlama,
    call: Call,
    arguments: dict[str, Any],
    seed: tuple[int, bool],
    *,
    logit_bias: Mapping[int, float] | None = None,
    **known: Any,
) -> Request:
    """The request of a call of ``generate`` or ``create_completion``.

    Args:
        llama: the Llama that was called.
        call: the options of the call besides the method's arguments.
        arguments: the method's arguments, by name.
        seed: the seed, and whether the user chose it.
        logit_bias: for each token id, the number that is added to its logit.
        known: further fields of the request.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of range, or two arguments exclude each other.
    """
    sampling, bias = sampling_of(arguments), logit_bias or {}
    last_n = llama.last_n_tokens_size if call.penalty_last_n is None else call.penalty_last_n
    grammar, processors = arguments["grammar"], arguments["logits_processor"]
    if call.min_tokens:
        if grammar is not None and getattr(grammar, "is_required", True):
            raise ValueError(
                f"min_tokens={call.min_tokens} and a grammar, a schema or a tool that must be called both say where "
                "the answer ends: leave min_tokens out, and have the schema ask for more (minLength, minItems)"
            )
        held_back = MinTokens(llama.engine.model, call.min_tokens)
        processors = [*checked_callables("logits_processor", processors), held_back]
    constraint = constraint_of(grammar)
    return Request(
        options=call.options,
        seed=seed[0],
        seed_given=seed[1],
        sampling={**chain_of(sampling), "penalty_last_n": last_n},
        logit_bias=bias,
        logits_processor=processors,
        stopping_criteria=arguments["stopping_criteria"],
        constraint=constraint,
        chooser=chooser_of(
            llama,
            sampling,
            seed=seed[0],
            penalty_last_n=last_n,
            options=call.options,
            logit_bias=bias,
            constraint=constraint,
        ),
        listener=call.listener,
        learns=call.learns,
        lookup_corpus=corpus_of(llama, call, known["tokens"]),
        **known,
    )


def constraint_of(grammar: Any) -> Constraint | None:
    """The engine's constraint for the argument ``grammar``. Our chats pass a constraint of the engine's already.

    Raises:
        TypeError: the grammar is neither None nor a LlamaGrammar.
    """
    if grammar is None or isinstance(grammar, (Begun, Behind, Gbnf, OneOf)):
        return grammar
    if isinstance(grammar, SchemaGrammar):
        return Schema(grammar.matched)
    if not isinstance(grammar, LlamaGrammar):
        raise TypeError(f"grammar={grammar!r} must be a llama_cpp.LlamaGrammar: make one by LlamaGrammar.from_string")
    return Gbnf(grammar._grammar, grammar._root)
