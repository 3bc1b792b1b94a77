"""Llama: llama_cpp.Llama with a draft."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Union

import llama_cpp
import numpy as np
import numpy.typing as npt

from . import _core
from .backend.cpu import llama_threads
from .backend.kernel_use import checked_kernels, loading
from .backend.streams import has_stderr
from .drop_in.arguments import (
    bound,
    check_constructor,
    check_draft_kwargs,
    declared_as,
    given_to,
    with_options,
)
from .drop_in.base_class import BaseLlama
from .drop_in.chat_answers import ChatAnswer
from .drop_in.chat_arguments import checked_chat, left_out_by_handlers, with_left_out
from .drop_in.chat_templates import ChatTemplates
from .drop_in.closed import close_for_good
from .drop_in.completion import Completion
from .drop_in.context_params import ContextParams
from .drop_in.continued import with_continued
from .drop_in.draft_loading import DraftLoader
from .drop_in.embedding import as_inputs, batches, embeddings
from .drop_in.forced_calls import with_forced_calls
from .drop_in.lending import lent
from .drop_in.logprobs import with_bytes
from .drop_in.messages import template_errors
from .drop_in.min_tokens import checked_min_tokens
from .drop_in.prediction import checked_prediction
from .drop_in.requests import request_of
from .drop_in.sampling import sampled
from .drop_in.saved_state import fitted, marked, origin_of, raise_refused, require_loaded
from .drop_in.seeds import seed_for_generate
from .drop_in.template_fields import given_fields, handler_giving, warn_of_fields
from .drop_in.tokenizing import Tokenizing
from .drop_in.view import Call, EngineLlama, View, call_on, llama_of, run
from .engine.drafts.automatic import Automatic, Room
from .engine.drafts.draft_options import DraftOptions
from .engine.drafts.kinds import understood
from .engine.drafts.vocabulary import DraftVocabularySize
from .engine.engine import Engine
from .engine.forks import told_of_forks
from .engine.generation import Generation
from .engine.going import ClosedWhenGone
from .engine.kept_texts import checked_cache_ram
from .engine.model import token_ids
from .engine.options import (
    NumDraftTokens,
    Options,
    checked_max_draft_tokens,
    checked_seed,
)
from .engine.position import Position
from .engine.samplers import taken_from
from .engine.slot import raise_busy
from .engine.texts import checked_cache_tokens, checked_max_parallel
from .grammars.schemas import schemas_by_grammar, warn_of_schemas, with_grammar_of_format
from .many.completions import ParallelCompletions
from .models import catalog
from .models.loading import captured_errors, explained
from .models.opening_checks import check_opening, n_ctx_with_positions
from .stats import Stats
from .token import Token

_OneDraft = Union[str, "os.PathLike[str]", BaseLlama, Callable[..., Any]]
DraftModel = Union[_OneDraft, "Sequence[_OneDraft]"]

_SIZE = 512  # llama_cpp's default of n_ctx, n_batch and n_ubatch
_SOON = 0.0005  # seconds, about what one text takes that is tokenized


class Llama(ClosedWhenGone, ParallelCompletions, ContextParams, ChatTemplates, Tokenizing, EngineLlama):
    """A ``llama_cpp.Llama`` that decodes speculatively. The text stays what the target alone would have said.

    Every method of ``llama_cpp.Llama`` works as documented there. ``create_completion``, ``__call__``,
    ``create_chat_completion`` and ``generate`` also take ``num_draft_tokens`` and ``verify`` for one call, and the
    samplers of ``specllama.engine.samplers.Samplers`` (DRY, XTC, top-n-sigma, dynamic temperature). Logits processors
    are called as without a draft: once for each token of the text, in order. ``prediction`` is what a text is expected
    to be, which is looked up for this one. ``create_chat_completion`` also takes
    ``parallel_tool_calls``, ``chat_template_kwargs`` and ``reasoning_effort``, as OpenAI-compatible servers do.

    Args:
        model_path: the target, a path or a name from ``specllama pull --list``.
        draft_model: the draft: a path or name or another ``llama_cpp.Llama``, which must have the target's vocabulary;
            the path of a head for the target (EAGLE-3, DFlash, DSpark); ``"mtp"`` for the MTP layer in the target's own
            file; ``"lookup"`` to draft what followed when the end of the text occurred before; ``"lookahead"`` to draft
            what the target says in rows beside the text (Fu et al. 2024), which pays where large batches are cheap;
            ``"auto"`` for what pays of that which is on this machine: a head beside the file, such as ``eagle3-NAME``,
            else the MTP layer in it, else a smaller model, else lookup (it is decided once and remembered, and goes by
            what ``specllama drafts --measure`` has found); a list of a head and a model, of which each round has the
            one that promises most (in it ``"auto"`` is the head); a llama_cpp ``LlamaDraftModel``; or None for plain
            decoding.
        draft_kwargs: constructor arguments of a draft given by path. Unless given here it takes the target's context
            size, threads and GPU settings. ``{"draft_model": ...}``, with ``"lookup"`` or a still smaller model's path:
            what this guesses is tried on the draft model first, several tokens in one decode of it. Of
            ``"lookahead"``: ``window``, ``n_gram`` and ``guesses``.
        lookup_corpus: a text, or token ids, to look up besides prompt and output, such as one that is edited or
            summarised. With a draft model it is looked up by ``num_draft_tokens="auto"`` only.
        draft_vocabulary: how many tokens a draft model chooses among where our kernels multiply its output matrix: they
            compute no others. ``"auto"``: 32,768 of a vocabulary of more than 65,536, else all. None: all. Which ones:
            those that the target was seen to write, the vocabulary's first ones, and every token of the text.
        draft_mask_token: the draft is a parallel one (PARD): it was trained to say a token at each place that holds
            this one, and drafts several in one decode. None: it is no such draft.
        draft_window: of a text a draft model reads and holds at most so many tokens, the last ones, and at least a
            quarter of them. None: as many as its context has room for. The text does not depend on it.
        num_draft_tokens: gamma, how many tokens a round drafts. ``"auto"``: as many as measured times and acceptance
            say that pay, by the model, by lookup in the text, or by both. 0 is plain decoding.
        max_draft_tokens: the most that ``"auto"`` drafts in a round. Only copies get that long: of a draft model it
            takes 16 tokens at most, and of a function, too.
        verify: the acceptance rule. ``"rejection"`` (Leviathan et al. 2022; Chen et al. 2023), ``"block"`` (Sun et
            al. 2025), ``"coupled"`` (Daliri et al. 2024: a seed means one text whatever the draft), or ``"auto"``:
            coupled if a seed was given, else block. Each leaves the target's distribution as it is.
        seed: a seed for all generations; None, or llama_cpp's -1, for a random one each time.
        kernels: ``"auto"``: our kernels multiply quantized weights on the CPU where they were tried and work;
            ``"off"``: llama.cpp's own do. None: what the environment variable ``SPECLLAMA_KERNELS`` says, else
            ``"auto"``. A draft given by its path is loaded likewise. ``llm.kernels`` says what became of it.
        flash_attn: whether attention is computed in one step. None: where our kernels do it, which makes prompts
            faster; elsewhere not, as in ``llama_cpp.Llama``. A draft given by its path takes it over, a head does not.
            Two Llamas can load each other's saved states if both have it, or neither: see ``has_flash_attention``.
        max_parallel: how many texts ``create_completions`` has under way at once; each has room for ``n_ctx`` tokens.
        cache_tokens: how many tokens the cache of these texts holds, at least ``n_ctx``. None: ``n_ctx`` for each.
            Where it is full, the youngest text waits until there is room, and is computed anew.
        cache_ram: MiB for what the KV cache held of earlier texts, one at a time. A text that goes on with one of them
            has it put back, where it would be decoded again otherwise. 0 keeps none, -1 has no limit.
        kwargs: everything else that ``llama_cpp.Llama`` takes. ``logits_all`` is ignored: logprobs do not need it.

    Raises:
        ValueError: not a loadable model, another vocabulary, or an option out of range.
        TypeError: a draft or a corpus that is none, or an option of another type.
        ModelNotFoundError: no such file (a FileNotFoundError and a ValueError).
    """

    def __init__(
        self,
        model_path: str,
        *,
        draft_model: DraftModel | None = None,
        draft_kwargs: dict[str, Any] | None = None,
        lookup_corpus: str | Sequence[int] | None = None,
        draft_vocabulary: DraftVocabularySize = "auto",
        draft_mask_token: int | None = None,
        draft_window: int | None = None,
        num_draft_tokens: NumDraftTokens = "auto",
        max_draft_tokens: int = 64,
        verify: str = "auto",
        seed: int | None = None,
        kernels: str | None = None,
        flash_attn: bool | None = None,
        max_parallel: int = 8,
        cache_tokens: int | None = None,
        cache_ram: int = 0,
        **kwargs: Any,
    ) -> None:
        options = Options.checked(num_draft_tokens, verify, max_draft_tokens)
        checked = checked_seed(seed)
        self._kernels = checked_kernels(kernels)
        self.max_parallel = checked_max_parallel(max_parallel)
        self.cache_tokens = checked_cache_tokens(cache_tokens)
        self.cache_ram = checked_cache_ram(cache_ram)
        check_constructor(kwargs)
        self._draft_options = DraftOptions(
            draft_model, draft_kwargs, lookup_corpus, draft_vocabulary, draft_mask_token, draft_window
        )
        check_draft_kwargs(self._draft_options.opened_with)
        self.tokenizing = _core.Block()
        told_of_forks(self.tokenizing)
        self.position = Position()
        self._num_snapshots = 0 if draft_model is None else options.most_draft_tokens
        if flash_attn is not None:
            kwargs["flash_attn"] = flash_attn
        if kwargs.get("embedding"):  # what is embedded is computed as a whole: llama.cpp ends the process otherwise
            kwargs["n_ubatch"] = max(kwargs.get("n_ubatch", _SIZE), kwargs.get("n_batch", _SIZE))
        kwargs.pop("logits_all", None)  # it would allocate n_ctx x n_vocab floats
        if not has_stderr():
            kwargs["verbose"] = False  # nobody would read it, and llama_cpp would fail, or take stdout
        self._kwargs = kwargs
        model_path = catalog.resolve(model_path)
        draft = understood(self._draft_options, model_path, room=self._room())  # before weights are loaded
        if isinstance(draft, Automatic) and kwargs.get("verbose", True):
            print(draft.said, file=sys.stderr)  # noqa: T201  # as llama.cpp does when it loads
        self._hidden = None if draft is None else draft.shown(model_path)
        self._num_branches = 0 if draft is None else draft.num_branches
        check_opening(model_path, kwargs)
        kwargs["n_ctx"] = n_ctx_with_positions(model_path, kwargs.get("n_ctx", _SIZE), is_asked="n_ctx" in kwargs)
        with explained(model_path, overrides=kwargs.get("kv_overrides")) as weights, loading(self._kernels) as use:
            self.attend_as_kernels_do(kwargs)
            threads = llama_threads(kwargs.get("n_threads"), kwargs.get("n_threads_batch"))
            super().__init__(
                model_path,
                seed=llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked,
                **{**kwargs, "n_threads": threads[0], "n_threads_batch": threads[1]},
            )
        if self._hidden is not None:
            self._hidden.begin(self._ctx.ctx)
        self._seed = llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked  # 0 is a seed like any other
        self.scores = np.empty((0, self._n_vocab), dtype=np.single)  # the base class's n_batch x n_vocab is not used
        self.input_ids = np.zeros(self.n_ctx(), dtype=np.intc)  # llama.cpp may have rounded n_ctx up
        model = lent(self, "target", use, self._hidden, self._taps)
        self._origin = origin_of(self, model.settings, weights)
        self.engine = Engine(
            model,
            options=options,
            position=self.position,
            cache_tokens=self.cache_tokens,
            cache_ram=self.cache_ram,
        )
        if not (kwargs.get("embedding") or kwargs.get("vocab_only")):
            model.sequence  # refuses a model that cannot generate  # noqa: B018
        if draft is not None:
            self.engine.own.exchange_draft(draft.open(model, DraftLoader(self, kwargs)))

    def _room(self) -> Room:
        """What has to fit into memory beside a draft."""
        of_draft = (self._draft_options.draft_kwargs or {}).get("n_ctx")
        return Room(self._kwargs.get("n_ctx", _SIZE), of_draft, on_gpu=bool(self._kwargs.get("n_gpu_layers")))

    # What llama_cpp calls the position

    @property
    def n_tokens(self) -> int:
        """How many tokens are evaluated.

        Who decodes by themselves, as chat handlers decode images, sets it. What is new has numbers in ``input_ids``
        then that no token has: it can be read as it lies in the memory, and is never decoded again.
        """
        return self.position.evaluated

    @n_tokens.setter
    def n_tokens(self, count: int) -> None:
        self.position.skip(count)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """The tokens [n_ctx]; those behind ``n_tokens`` mean nothing."""
        return self.position.ids

    @input_ids.setter
    def input_ids(self, ids: npt.NDArray[np.intc]) -> None:
        self.position.ids = ids

    @property
    def models(self) -> dict[str, Any]:
        """What decodes, by its name in reports: this Llama as the target, and the draft, if that is a Llama."""
        given = self.draft_model
        drafts = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, BaseLlama)]
        return dict(zip(("target", "draft"), (self, *drafts), strict=False))

    # The draft

    @property
    def draft_model(self) -> Any:
        """The draft, or None. Whatever the constructor takes may be assigned between generations.

        While a Llama serves as a draft its KV cache is the target's to use: streams of its own must be read first.
        """
        return None if self.engine.draft is None else self.engine.draft.given

    @draft_model.setter
    def draft_model(self, draft: DraftModel | None) -> None:
        if draft is None and not hasattr(self, "engine"):
            return  # the constructor of the base class
        # Corpus and arguments were for the draft before.
        options = dataclasses.replace(self._draft_options, draft_model=draft, draft_kwargs=None, lookup_corpus=None)
        room = dataclasses.replace(self._room(), is_open=True)
        kind = understood(options, self.model_path, as_assigned=True, room=room)
        opened = None if kind is None else kind.open(self.engine.model, DraftLoader(self, self._kwargs))
        self.engine.own.exchange_draft(opened)
        self._draft_options = options

    # Options and statistics

    @property
    def num_draft_tokens(self) -> NumDraftTokens:
        """Gamma: how many tokens a round drafts, or "auto"; 0 is plain decoding."""
        return self.engine.account.options.num_draft_tokens

    @num_draft_tokens.setter
    def num_draft_tokens(self, value: NumDraftTokens) -> None:
        self.engine.account.options = self.engine.account.options.overridden(value, None)

    @property
    def max_draft_tokens(self) -> int:
        """The most that "auto" drafts in a round."""
        return self.engine.account.options.max_draft_tokens

    @max_draft_tokens.setter
    def max_draft_tokens(self, value: int) -> None:
        self.engine.account.options = dataclasses.replace(
            self.engine.account.options, max_draft_tokens=checked_max_draft_tokens(value)
        )

    @property
    def verify(self) -> str:
        """The acceptance rule: auto, rejection, block or coupled."""
        return self.engine.account.options.verify

    @verify.setter
    def verify(self, value: str) -> None:
        self.engine.account.options = self.engine.account.options.overridden(None, value)

    @property
    def stats(self) -> Stats:
        """Statistics of the last generation, or of the one under way."""
        return self.engine.stats

    @property
    def total_stats(self) -> Stats:
        """Statistics of all finished generations of this Llama together, those of ``create_completions`` too."""
        return self.engine.total_stats

    @property
    def kernels(self) -> str:
        """Whose kernels multiply the target's weights: ``AVX2, 950 MiB of weights``, say, or ``off`` and why."""
        return str(self.engine.model.settings.kernels)

    @property
    def batch_invariant(self) -> bool:
        """Whether the target's logits are the same to the last bit in batches of every size, as far as was decoded.

        Then the text with a draft is that without one, bit for bit. False before the first token was decoded.
        """
        return self.engine.model.sequence.decoder.batch_invariant

    # Seeds

    def set_seed(self, seed: int) -> None:
        """Set the seed of the generations that follow; -1 for random ones.

        Raises:
            TypeError: not an integer.
        """
        checked = checked_seed(seed)
        self._seed = llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked

    # Generation

    @with_options(BaseLlama.generate)
    def generate(
        self, *args: Any, num_draft_tokens: NumDraftTokens | None = None, verify: str | None = None, **kwargs: Any
    ) -> Generator[int, Sequence[int] | None, None]:
        """See the base class."""
        llama, call = llama_of(self), self._asked(num_draft_tokens, verify, kwargs)
        arguments = bound(BaseLlama.generate, args, kwargs)
        tokens, reset = arguments["tokens"], arguments["reset"]
        request = request_of(llama, call, arguments, seed_for_generate(llama), tokens=tokens, reset=reset)
        return _with_send(Generation(call.slot, request, keeper=llama))

    def _asked(self, num_draft_tokens: Any, verify: Any, kwargs: dict[str, Any]) -> Call:
        """What a call with these arguments asks for. Those that llama_cpp's methods do not have are taken out.

        Our own rooms give ``call``. A handler of llama_cpp's cannot: its view has it.
        """
        call = kwargs.pop("call") if isinstance(kwargs.get("call"), Call) else call_on(self)
        options = call.options.overridden(num_draft_tokens, verify, taken_from(kwargs))
        least = checked_min_tokens(kwargs.pop("min_tokens")) if "min_tokens" in kwargs else call.min_tokens
        if "prediction" in kwargs:
            call = dataclasses.replace(call, prediction=checked_prediction(kwargs.pop("prediction")))
        return dataclasses.replace(call, options=options, min_tokens=least)

    @with_options(BaseLlama.create_completion)
    def create_completion(
        self, *args: Any, num_draft_tokens: NumDraftTokens | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        """See the base class."""
        llama, call = llama_of(self), self._asked(num_draft_tokens, verify, kwargs)
        arguments = bound(BaseLlama.create_completion, args, with_left_out(kwargs, call.asked))
        return run(llama, call.slot, lambda: Completion(llama, call, arguments).answer())

    @with_options(BaseLlama.__call__)
    def __call__(
        self, *args: Any, num_draft_tokens: NumDraftTokens | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        """See the base class."""
        call = self._asked(num_draft_tokens, verify, kwargs)
        return self.create_completion(**bound(BaseLlama.__call__, args, kwargs), call=call)

    @with_options(
        BaseLlama.create_chat_completion,
        parallel_tool_calls=True,
        chat_template_kwargs=None,
        reasoning_effort=None,
        continue_final_message=False,
    )
    def create_chat_completion(
        self,
        *args: Any,
        num_draft_tokens: NumDraftTokens | None = None,
        verify: str | None = None,
        parallel_tool_calls: bool | None = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        reasoning_effort: str | None = None,
        continue_final_message: bool | None = False,
        **kwargs: Any,
    ) -> Any:
        """See the base class."""
        call = self._asked(num_draft_tokens, verify, kwargs)
        fields = given_fields(chat_template_kwargs, reasoning_effort)
        asked = given_to(BaseLlama.create_chat_completion, args, kwargs)
        asked, continued = with_continued(self, asked, continue_final_message)
        chat = checked_chat(self, asked)
        schemas, of_format = schemas_by_grammar(chat), with_grammar_of_format(chat)
        if not call.knows_what_is_ignored:
            warn_of_schemas(chat)
            warn_of_fields(self, fields)
        chat = of_format
        parallel = parallel_tool_calls is None or bool(parallel_tool_calls)
        chat, forced = with_forced_calls(self, chat, parallel=parallel)
        answer = ChatAnswer(self, chat, forced, parallel=parallel, keeps_thoughts=call.keeps_thoughts)
        token_bytes: dict[str, bytes] = {}
        call = dataclasses.replace(
            call,
            schemas=schemas,
            asked=left_out_by_handlers(self, chat),
            token_bytes=token_bytes,
            answer=answer,
            chat_handler=handler_giving(self, chat["messages"], fields),
            continued=continued,
        )
        view: Any = View(llama_of(self), call)

        def answered() -> Any:
            return answer.read(with_bytes(super(Llama, view).create_chat_completion(**chat), token_bytes))

        with template_errors():
            return run(view, call.slot, answered)

    def generate_tokens(
        self,
        prompt: str | list[int],
        *,
        num_draft_tokens: NumDraftTokens | None = None,
        verify: str | None = None,
        **kwargs: Any,
    ) -> Iterator[Token]:
        """Generate, one token at a time, and say of each where it came from and how likely it was.

        Args:
            prompt: a text or token ids.
            num_draft_tokens: as for the constructor, for this call.
            verify: the same.
            kwargs: those of ``create_completion``: ``max_tokens``, ``temperature``, ``stop``, ``seed``,
                ``dry_multiplier``, ... With ``logprobs=0`` each token has its ``logprob``.

        Yields:
            All tokens but the one that ends a text; their texts together are the completion. With ``echo=True`` those
            of the prompt come first.

        Raises:
            ValueError: an option out of range, a prompt that does not fit, or a grammar that cannot be parsed.
            TypeError: an option of another type, or one that this release does not know.
            DecodeError, BusyError, ClosedError: see there.
        """
        llama, call = llama_of(self), self._asked(num_draft_tokens, verify, kwargs)
        arguments = bound(BaseLlama.create_completion, (prompt,), kwargs)
        tokens: Iterator[Token] = run(llama, call.slot, lambda: Completion(llama, call, arguments).tokens())
        return tokens

    # State

    def reset(self) -> None:
        """Forget everything: the next prompt is decoded from its beginning, by the draft too.

        Raises:
            BusyError: another thread is generating.
        """
        self._call.slot.require_alone("reset")
        with self.engine.own.exclusive():
            self.engine.own.require_at_rest()  # before anything has changed
            super().reset()  # type: ignore[no-untyped-call]
            self.engine.forget()

    @declared_as(BaseLlama.sample)
    def sample(self, *args: Any, **kwargs: Any) -> int:
        """See the base class."""
        arguments = bound(BaseLlama.sample, args, kwargs)
        own = self._call.slot
        own.require_alone("sample")
        with own.exclusive():
            return sampled(self, arguments)

    def eval(self, tokens: Sequence[int]) -> None:
        """See the base class.

        Raises:
            ValueError: a token that the vocabulary does not have, or more tokens than there is room for.
        """
        own = self._call.slot
        own.require_alone("eval")
        with own.exclusive():
            checked = token_ids(tokens, "tokens", self.n_vocab()).tolist()
            if self.n_tokens + len(checked) > self.n_ctx():
                raise ValueError(
                    f"{len(checked)} tokens behind {self.n_tokens} do not fit into n_ctx={self.n_ctx()}: reset(), or "
                    "create the Llama with a larger n_ctx"
                )
            own.settle(self._call.listener)
            if self.position.has_embeddings and checked:
                # A generation decodes a prompt's last token itself. Before it a memory that cannot be cut goes back to
                # a copy: what is behind an image cannot be decoded from the beginning.
                self._eval(checked[:-1])
                own.save()
                checked = checked[-1:]
            self._eval(checked)

    def _eval(self, tokens: list[int]) -> None:
        start = self.n_tokens
        try:
            super().eval(tokens)
        finally:
            done = self.n_tokens - start
            self.input_ids[start : start + done] = tokens[:done]

    def embed(self, input: Any, normalize: bool = False, truncate: bool = True, return_count: bool = False) -> Any:
        """See the base class. A text may be given by its token ids, too.

        Raises:
            TypeError: neither texts nor token ids.
            ValueError: a text without tokens, one that may not be truncated and is too long, a token that the
                vocabulary does not have, or no weights.
            RuntimeError: the Llama was created without ``embedding=True``, or the model makes none.
        """
        inputs, is_one = as_inputs(input)
        with self.engine.own.exclusive():
            self.engine.own.require_threads()
            self.engine.own.require_at_rest()
            self.engine.model.require_weights()
            if not self.context_params.embeddings:
                raise RuntimeError("this Llama makes no embeddings: create it with embedding=True")
            found: list[Any] = []
            num_tokens = 0
            try:
                for batch in batches(self, inputs, truncate):
                    found += embeddings(self, batch, normalize)
                    num_tokens += sum(map(len, batch))
            finally:
                self.reset()
        output = found[0] if is_one else found
        return (output, num_tokens) if return_count else output

    def create_embedding(self, input: Any, model: str | None = None) -> Any:
        """See the base class. A text may be given by its token ids, too."""
        return super().create_embedding(as_inputs(input)[0], model)

    def save_state(self) -> llama_cpp.LlamaState:
        """Save the target's state. ``llama_cpp.Llama`` can load it too, if its ``flash_attn`` is the same.

        Raises:
            BusyError: another thread is generating.
        """
        own = self._call.slot
        own.require_alone("save_state")
        with own.exclusive():
            own.require_at_rest()
            if own.is_idle:
                own.settle(self._call.listener)
            state = super().save_state()
            state.n_tokens = min(state.n_tokens, self.position.held)
            state.scores = np.zeros((1, self._n_vocab), dtype=np.single)  # the base class copies it over its own rows
            return marked(self._origin, state)

    def load_state(self, state: llama_cpp.LlamaState) -> None:
        """Restore a state saved by this class or by ``llama_cpp.Llama`` (whose stored logits are not needed).

        A state of ours says what it was computed with: the weights, a LoRA adapter and its scale, RoPE, the types of
        the cache, flash attention, ``kv_overrides``. All of it must be the same here. Of one by ``llama_cpp.Llama``
        nobody knows: both must be opened alike.

        Raises:
            StateError: it is damaged, was computed with something else, or was saved with a larger ``n_ctx`` or by
                another library (a ValueError and a RuntimeError). Where only llama.cpp notices that, this Llama holds
                nothing afterwards, as after ``reset()``; else it is as before.
            TypeError: no state.
            BusyError: another thread is generating.
        """
        self._call.slot.require_alone("load_state")
        with self.engine.own.exclusive():
            self.engine.own.require_at_rest()
            known, seed = fitted(self, self._origin, state), self._seed
            try:
                with captured_errors() as errors:
                    super().load_state(known)
                self.input_ids = known.input_ids
                require_loaded(self, known.n_tokens)
            except Exception as error:
                self.reset()
                self._seed = seed
                raise_refused(state, errors or [str(error)])

    def __getstate__(self) -> dict[str, Any]:
        draft = self.engine.draft
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        for name in {"logits_all", "use_mmap"} - self._kwargs.keys():  # use_mmap: a draft has a default of its own
            state.pop(name, None)
        return {
            **state,
            **vars(self._draft_options),
            "draft_model": None if draft is None else draft.reopened_by,
            "num_draft_tokens": self.num_draft_tokens,
            "max_draft_tokens": self.max_draft_tokens,
            "verify": self.verify,
            "kernels": self._kernels,
            "flash_attn": self._kwargs.get("flash_attn"),
            "max_parallel": self.max_parallel,
            "cache_tokens": self.cache_tokens,
            "cache_ram": self.cache_ram,
        }

    def __enter__(self) -> Llama:
        """Closes it in the end."""
        return self

    def __exit__(self, *exception: object) -> None:
        """See ``close``."""
        self.close()

    def close(self) -> None:
        """Free both models. Whatever is called afterwards raises ClosedError.

        Texts of ``create_completions`` that are under way get ClosedError, and are waited for.

        Raises:
            BusyError: another thread is generating, or this is called within a generation.
        """
        if "_stack" not in self.__dict__:
            return  # __init__ failed early
        engine = getattr(self, "engine", None)
        if engine is None:  # the constructor has failed
            super().close()
            return
        if self.tokenizing.depth:  # this is a signal handler, say
            raise_busy()
        with engine.closing():
            close_for_good(self)  # first: nobody begins to read what is about to be freed
            while self.tokenizing.has_others:
                time.sleep(_SOON)
            super().close()


def _with_send(generation: Generation) -> Generator[int, Sequence[int] | None, None]:
    """The tokens. ``send(tokens)`` has the text go on behind the one just yielded with tokens of the caller's own."""
    with contextlib.closing(generation):
        for token in generation:
            own_tokens = yield token
            if own_tokens is not None:
                generation.append(own_tokens)
