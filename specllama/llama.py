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
from .backend.kernel_use import checked_kernels
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
from .drop_in.chat_templates import ChatTemplates
from .drop_in.closed import close_for_good
from .drop_in.completion import Completion
from .drop_in.context_params import ContextParams
from .drop_in.draft_loading import DraftLoader
from .drop_in.embedding import as_inputs, batches, embeddings
from .drop_in.lending import lent
from .drop_in.requests import call_of, request_of
from .drop_in.sampling import sampled
from .drop_in.saved_state import fitted, marked, raise_refused, require_loaded
from .drop_in.seeds import seed_for_generate
from .drop_in.tokenizing import Tokenizing
from .drop_in.view import Call, EngineLlama, exclusively, llama_of
from .engine.closed_when_gone import ClosedWhenGone
from .engine.drafts.automatic import Automatic, Room
from .engine.drafts.draft_options import DraftOptions
from .engine.drafts.kinds import understood
from .engine.drafts.vocabulary import DraftVocabularySize
from .engine.engine import Engine
from .engine.forks import told_of_forks
from .engine.generation import Generation
from .engine.learned import Learned, learned_head
from .engine.learning import Learning
from .engine.model import token_ids
from .engine.options import (
    NumDraftTokens,
    Options,
    checked_max_draft_tokens,
    checked_seed,
)
from .engine.origin import origin_of
from .engine.position import Position
from .engine.prefixes.store import StoreOptions
from .engine.slot import raise_busy
from .engine.texts import checked_cache_tokens, checked_max_parallel
from .many.completions import ParallelCompletions
from .models import catalog
from .models.loading import captured_errors
from .models.opening_checks import check_opening, n_ctx_with_positions
from .stats import Stats
from .token import Token

_OneDraft = Union[str, "os.PathLike[str]", BaseLlama, Callable[..., Any]]
DraftModel = Union[_OneDraft, "Sequence[_OneDraft]"]

_SIZE = 512  # llama_cpp's default of n_ctx, n_batch and n_ubatch
_SOON = 0.0005  # seconds between two looks of `close` for threads that tokenize; tokenizing a text takes about as long


class Llama(ClosedWhenGone, ParallelCompletions, ContextParams, ChatTemplates, Tokenizing, EngineLlama):
    """A ``llama_cpp.Llama`` that decodes speculatively. Its texts are those that the target alone would generate.

    Every method of ``llama_cpp.Llama`` works as documented there. ``create_completion``, ``__call__``,
    ``create_chat_completion`` and ``generate`` also take, for one call, ``num_draft_tokens``, ``verify``,
    ``min_tokens``, ``prediction`` (the expected text, in which drafts are looked up), and the samplers of
    ``specllama.engine.samplers.Samplers``. ``create_chat_completion`` also takes ``parallel_tool_calls``,
    ``chat_template_kwargs``, ``reasoning_effort`` and ``continue_final_message``, as OpenAI-compatible servers do, and
    ``parse_special``: names of special tokens in messages are then read as these tokens. Otherwise they are text.
    Logits processors are called once for each token of the text, in order, as without a draft.

    Args:
        model_path: the target: a path, or a name from ``specllama pull --list``.
        draft_model: what drafts for the target; None for plain decoding. It can be a smaller model, best of the same
            family, as a path, a name or a ``llama_cpp.Llama``; the path of a head for the target (EAGLE-3, MTP, DFlash,
            DSpark, Gemma 4's assistant, Medusa, Hydra or blockwise); ``"mtp"`` for the MTP layers in the target's own
            file; ``"lookup"`` for the tokens that followed when the end of the text occurred before; ``"lookahead"``
            for tokens that the target guesses in further rows of its batches (Fu et al. 2024), which pays if large
            batches are cheap; a llama_cpp ``LlamaDraftModel``; or a list of a head and a model, of which each round
            uses the one that promises most. ``"auto"`` is the best draft on this machine, as
            ``specllama drafts --measure`` has measured. Without measurements it is a head beside the target's file,
            such as ``eagle3-NAME``, else the MTP layers, else a smaller model that is expected to pay, else lookup. In
            a list ``"auto"`` stands for the head.
        draft_kwargs: constructor arguments of a draft given by its path. By default the draft has the target's context
            size, threads and GPU settings. A ``draft_model`` among them (``"lookup"``, or the path of a still smaller
            model) guesses tokens for the draft model to check. For ``"lookahead"``: ``window``, ``n_gram`` and
            ``guesses``.
        lookup_corpus: a text, or token ids, in which drafts are looked up besides prompt and output, such as a text to
            edit or to summarise. A draft model uses it only with ``num_draft_tokens="auto"``.
        draft_vocabulary: how many tokens a draft model chooses among, if our kernels multiply its output matrix. Other
            logits are not computed. ``"auto"``: 32,768 if the vocabulary has more than 65,536 tokens, else all. None:
            all. These tokens are the ones that the target has written most, the vocabulary's first, and the text's own.
        draft_mask_token: the mask token of a parallel draft model (PARD). Such a draft predicts a token at each place
            of the mask token, and so drafts several tokens in one decode. None: the token that the draft's file names
            (``specllama train-draft --kind pard`` writes it), else the draft is not parallel.
        draft_window: the most tokens of a text, the last ones, that a draft model reads and holds. Of a longer text the
            draft model always holds at least a quarter of this number. None: as many as its context has room for.
        num_draft_tokens: gamma, the number of tokens that a round drafts; 0 is plain decoding. ``"auto"``: as many as
            pay by measured times and acceptance, from the draft model, from lookup in the text, or from both.
        max_draft_tokens: the most tokens that ``"auto"`` drafts in a round. Only drafts that are looked up get so long:
            a draft model or a function drafts at most 16 tokens.
        verify: the acceptance rule: ``"rejection"`` (Leviathan et al. 2022; Chen et al. 2023), ``"block"`` (Sun et
            al. 2025), ``"coupled"`` (Daliri et al. 2024: a seed gives one text, whatever the draft), or ``"auto"``:
            coupled if a seed was given, else block. No rule changes the target's distribution.
        seed: a seed for all generations; None, or llama_cpp's -1, for a random one each time.
        kernels: ``"auto"``: our kernels multiply quantized weights on the CPU, if a trial has shown that they work.
            ``"off"``: llama.cpp's own kernels do. None: the value of the environment variable ``SPECLLAMA_KERNELS``,
            else ``"auto"``. A draft given by its path is loaded with the same value. ``llm.kernels`` tells the result.
        flash_attn: whether llama.cpp's flash attention is on. None: only if our kernels compute it, which makes prompts
            faster. A draft given by its path gets the same setting, a head does not. Saved states can be exchanged only
            by Llamas with the same ``has_flash_attention``.
        max_parallel: how many texts ``create_completions`` generates at once. Each has room for ``n_ctx`` tokens.
        cache_tokens: how many tokens the KV cache of these texts holds, at least ``n_ctx``. None: ``n_ctx`` for each
            text. If the cache is full, the youngest text waits until there is room, and is then decoded again.
        cache_ram: MiB in memory for copies of the KV cache of earlier texts. What a prompt has in common with one of
            them is then not decoded again. 0 keeps no copy, -1 has no limit.
        cache_dir: a folder for such copies, which later processes use, too; None for none. It holds what users wrote:
            only the user can read it.
        cache_disk: the most GiB that this folder may take. What was unused for longest is deleted first.
        learn: whether what a head can learn from the answers is kept in a folder, which only the user can read: the
            answers' tokens, the ends of their prompts, and numbers that the model computed for them. ``llm.learn_dir``
            names the folder. ``specllama train-draft --from-use`` trains a head from it. ``learn=False`` of a call
            keeps nothing of that call.
        learn_disk: the most GiB of it. The oldest texts are deleted first.
        kwargs: all other arguments of ``llama_cpp.Llama``. ``logits_all`` is ignored: logprobs do not need it.

    Raises:
        ValueError: the model cannot be loaded, the draft does not fit it, or an option is out of range.
        TypeError: the draft cannot draft, the corpus is neither text nor tokens, or an option has another type.
        ModelNotFoundError: there is no such file (a FileNotFoundError and a ValueError).
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
        cache_dir: str | os.PathLike[str] | None = None,
        cache_disk: float = 8.0,
        learn: bool = False,
        learn_disk: float = 4.0,
        **kwargs: Any,
    ) -> None:
        options = Options.checked(num_draft_tokens, verify, max_draft_tokens)
        checked = checked_seed(seed)
        self._kernels = checked_kernels(kernels)
        self.max_parallel = checked_max_parallel(max_parallel)
        self.cache_tokens = checked_cache_tokens(cache_tokens)
        store_options = StoreOptions.checked(cache_ram, cache_dir, cache_disk)
        self.cache_ram, self.cache_dir, self.cache_disk = dataclasses.astuple(store_options)
        learning = Learning.checked(learn, learn_disk)
        self.learn, self.learn_disk = dataclasses.astuple(learning)
        check_constructor(kwargs)
        self._draft_options = DraftOptions(
            draft_model, draft_kwargs, lookup_corpus, draft_vocabulary, draft_mask_token, draft_window
        )
        self.tokenizing = _core.Block()
        told_of_forks(self.tokenizing)
        self.position = Position()
        if flash_attn is not None:
            kwargs["flash_attn"] = flash_attn
        if kwargs.get("embedding"):  # llama.cpp ends the process if a batch to embed is computed in parts
            kwargs["n_ubatch"] = max(kwargs.get("n_ubatch", _SIZE), kwargs.get("n_batch", _SIZE))
        kwargs.pop("logits_all", None)  # it would allocate n_ctx x n_vocab floats
        if not has_stderr():
            kwargs["verbose"] = False  # else llama_cpp would fail, or write to stdout
        self._kwargs = kwargs
        model_path = catalog.resolve(model_path)
        draft = understood(self._draft_options, model_path, room=self._room())  # raises before weights are loaded
        if draft is not None:
            check_draft_kwargs(draft.opened_with)
        if isinstance(draft, Automatic) and kwargs.get("verbose", True):
            print(draft.said, file=sys.stderr)  # noqa: T201  # where llama.cpp prints, too, when it loads
        self._hidden = learning.shown(None if draft is None else draft.hidden_states(model_path))
        check_opening(model_path, kwargs)
        kwargs["n_ctx"] = n_ctx_with_positions(model_path, kwargs.get("n_ctx", _SIZE), is_asked="n_ctx" in kwargs)
        threads = llama_threads(kwargs.get("n_threads"), kwargs.get("n_threads_batch"))
        self._construct(
            model_path,
            {**kwargs, "n_threads": threads[0], "n_threads_batch": threads[1]},
            name="target",
            kernels=self._kernels,
            num_snapshots=0 if draft is None else options.most_draft_tokens,
            num_branches=0 if draft is None else draft.num_branches,
            has_spare=store_options.keeps_some,
        )
        self._seed = llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked  # 0 is a seed like any other
        self.scores = np.empty((0, self._n_vocab), dtype=np.single)  # frees the base class's array
        self.input_ids = np.zeros(self.n_ctx(), dtype=np.intc)  # llama.cpp may have rounded n_ctx up
        model = lent(self)
        self._origin = origin_of(model)
        self.engine = Engine(
            model,
            options=options,
            position=self.position,
            cache_tokens=self.cache_tokens,
            store_options=store_options,
        )
        if not (kwargs.get("embedding") or kwargs.get("vocab_only")):
            model.sequence  # refuses a model that cannot generate  # noqa: B018
        learning.begin(self.engine.account, model)
        if draft is not None:
            self.engine.slot.exchange_draft(draft.open(model, DraftLoader(self, kwargs)))

    def _room(self) -> Room:
        """The contexts' sizes, and whether a GPU is used: ``"auto"`` decides by them whether a draft fits in memory."""
        of_draft = (self._draft_options.draft_kwargs or {}).get("n_ctx")
        on_gpu = bool(self._kwargs.get("n_gpu_layers"))
        return Room(self._kwargs.get("n_ctx", _SIZE), of_draft, on_gpu=on_gpu, learns=self.learn)

    # What llama_cpp calls the position

    @property
    def n_tokens(self) -> int:
        """How many tokens are evaluated.

        Code that decodes by itself sets this number, for example a chat handler that has decoded an image. The new
        places in ``input_ids`` then get ids that no token has. As such ids cannot be decoded again, these places are
        usable only while the KV cache holds them.
        """
        return self.position.evaluated

    @n_tokens.setter
    def n_tokens(self, count: int) -> None:
        self.position.skip(count)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """The tokens [n_ctx]. Only the first ``n_tokens`` have a meaning."""
        return self.position.ids

    @input_ids.setter
    def input_ids(self, ids: npt.NDArray[np.intc]) -> None:
        self.position.ids = ids

    @property
    def models(self) -> dict[str, Any]:
        """The Llamas by their names in reports: ``"target"`` is this one, ``"draft"`` a draft that is a Llama."""
        given = self.draft_model
        drafts = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, BaseLlama)]
        return dict(zip(("target", "draft"), (self, *drafts), strict=False))

    # The draft

    @property
    def draft_model(self) -> Any:
        """The draft, or None. Any value that the constructor takes may be assigned between generations.

        Assigning raises what the constructor raises, and ClosedError if the Llama is closed.

        A Llama that serves as a draft lends its KV cache to the target: first read the draft's own streams to the end.
        """
        return None if self.engine.draft is None else self.engine.draft.given

    @draft_model.setter
    def draft_model(self, draft: DraftModel | None) -> None:
        if draft is None and not hasattr(self, "engine"):
            return  # called by the base class's constructor
        # The corpus and the arguments were given for the old draft, so the new one gets neither.
        options = dataclasses.replace(self._draft_options, draft_model=draft, draft_kwargs=None, lookup_corpus=None)
        room = dataclasses.replace(self._room(), is_open=True)
        with self.engine.slot.exclusive(), self.engine.model.kept():  # opening a draft reads the target
            kind = understood(options, self.model_path, as_assigned=True, room=room)
            opened = None if kind is None else kind.open(self.engine.model, DraftLoader(self, self._kwargs))
            self.engine.slot.exchange_draft(opened)
        self._draft_options = options

    # Options and statistics

    @property
    def learn_dir(self) -> str | None:
        """The folder of what a head can learn from; None without ``learn=True``."""
        examples = self.engine.account.examples
        return None if examples is None else os.fspath(examples.folder)

    @property
    def learned(self) -> Learned | None:
        """The head that has learned from the model's answers so far; None if there is none, or without ``learn=True``.

        With ``draft_model="auto"`` it drafts from the next text on.
        """
        return None if self.learn_dir is None else learned_head(os.path.basename(self.learn_dir))

    @property
    def num_draft_tokens(self) -> NumDraftTokens:
        """Gamma: how many tokens a round drafts, or "auto"; 0 is plain decoding."""
        return self.engine.account.options.num_draft_tokens

    @num_draft_tokens.setter
    def num_draft_tokens(self, value: NumDraftTokens) -> None:
        self.engine.account.options = self.engine.account.options.overridden(value, None)

    @property
    def max_draft_tokens(self) -> int:
        """The most tokens that "auto" drafts in a round."""
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
        """Whose kernels multiply the target's weights: for example ``AVX2, 950 MiB of weights``, or ``off`` and why."""
        return str(self.engine.model.settings.kernels)

    @property
    def batch_invariant(self) -> bool:
        """Whether all logits of the target so far were the same, to the last bit, as in a batch of any other size.

        Then the text with a draft is exactly the text without one. False before the first token is decoded.
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
        llama, call = llama_of(self), call_of(self, kwargs, num_draft_tokens, verify)
        arguments = bound(BaseLlama.generate, args, kwargs)
        tokens, reset = arguments["tokens"], arguments["reset"]
        tokens = list(tokens) if isinstance(tokens, Iterator) else tokens
        request = request_of(llama, call, arguments, seed_for_generate(llama), tokens=tokens, reset=reset)
        return _with_send(Generation(call.slot, request, keeper=llama))

    @with_options(BaseLlama.create_completion)
    def create_completion(
        self, *args: Any, num_draft_tokens: NumDraftTokens | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        """See the base class."""
        llama, call = llama_of(self), call_of(self, kwargs, num_draft_tokens, verify)
        given = kwargs if call.chat is None else call.chat.completed_options(kwargs)
        arguments = bound(BaseLlama.create_completion, args, given)
        with call.slot.exclusive():
            completion = Completion(llama, call, arguments)
            if not arguments["stream"]:
                return completion.response()
        return exclusively(llama, call.slot, completion.chunks())

    @with_options(BaseLlama.__call__)
    def __call__(
        self, *args: Any, num_draft_tokens: NumDraftTokens | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        """See the base class."""
        call = call_of(self, kwargs, num_draft_tokens, verify)
        return self.create_completion(**bound(BaseLlama.__call__, args, kwargs), call=call)

    @with_options(
        BaseLlama.create_chat_completion,
        parallel_tool_calls=True,
        chat_template_kwargs=None,
        reasoning_effort=None,
        continue_final_message=False,
        parse_special=False,
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
        parse_special: bool | None = False,
        **kwargs: Any,
    ) -> Any:
        """See the base class."""
        from .chat import prepared

        call = call_of(self, kwargs, num_draft_tokens, verify)
        fields = {
            "parallel_tool_calls": parallel_tool_calls,
            "chat_template_kwargs": chat_template_kwargs,
            "reasoning_effort": reasoning_effort,
            "continue_final_message": continue_final_message,
            "parse_special": parse_special,
        }
        given = given_to(BaseLlama.create_chat_completion, args, kwargs)
        return prepared(llama_of(self), {**given, **fields}).answer(call)

    def generate_tokens(
        self,
        prompt: str | list[int],
        *,
        num_draft_tokens: NumDraftTokens | None = None,
        verify: str | None = None,
        **kwargs: Any,
    ) -> Iterator[Token]:
        """Generate a text one token at a time. Each token tells where it came from and how likely it was.

        Args:
            prompt: a text or token ids.
            num_draft_tokens: as for the constructor, for this call.
            verify: as for the constructor, for this call.
            kwargs: other arguments of ``create_completion``: ``max_tokens``, ``temperature``, ``stop``, ``seed``,
                ``dry_multiplier``, ... With ``logprobs=0`` each token has its ``logprob``.

        Yields:
            All tokens but the one that ends a text. Their texts together are the completion. With ``echo=True`` the
            tokens of the prompt come first.

        Raises:
            ValueError: an option out of range, a prompt that does not fit, or a grammar that cannot be parsed.
            TypeError: an option of another type, or one that this release does not know.
            DecodeError: llama.cpp fails.
            BusyError: another thread is generating.
            ClosedError: the Llama is closed.
        """
        llama, call = llama_of(self), call_of(self, kwargs, num_draft_tokens, verify)
        arguments = bound(BaseLlama.create_completion, (prompt,), kwargs)
        with call.slot.exclusive():
            completion = Completion(llama, call, arguments)
        return exclusively(llama, call.slot, completion.tokens())

    # State

    def reset(self) -> None:
        """Forget everything: the next prompt is decoded from its beginning, by the draft too.

        Raises:
            BusyError: another thread is generating.
        """
        self._call.slot.require_alone("reset")
        with self.engine.slot.exclusive():
            self.engine.slot.require_at_rest()  # raises before anything has changed
            super().reset()  # type: ignore[no-untyped-call]
            self.engine.forget()

    @declared_as(BaseLlama.sample)
    def sample(self, *args: Any, **kwargs: Any) -> int:
        """See the base class."""
        arguments = bound(BaseLlama.sample, args, kwargs)
        slot = self._call.slot
        slot.require_alone("sample")
        with slot.exclusive():
            return sampled(self, arguments)

    def eval(self, tokens: Sequence[int]) -> None:
        """See the base class.

        Raises:
            ValueError: a token that the vocabulary does not have, or more tokens than there is room for.
        """
        slot = self._call.slot
        slot.require_alone("eval")
        with slot.exclusive():
            checked = token_ids(tokens, "tokens", self.n_vocab()).tolist()
            if self.n_tokens + len(checked) > self.n_ctx():
                raise ValueError(
                    f"{len(checked)} tokens behind {self.n_tokens} do not fit into n_ctx={self.n_ctx()}: reset(), or "
                    "create the Llama with a larger n_ctx"
                )
            slot.settle(self._call.listener)
            if self.position.has_embeddings and checked:
                # A generation decodes the last token again. A recurrent memory cannot drop a token, and a text with an
                # image cannot be decoded again from the beginning: so keep a copy of the state before the last token.
                self._eval(checked[:-1])
                slot.save()
                checked = checked[-1:]
            self._eval(checked)

    def _eval(self, tokens: list[int]) -> None:
        start = self.n_tokens
        try:
            super().eval(tokens)
        finally:
            done = self.n_tokens - start
            self.input_ids[start : start + done] = tokens[:done]

    def embed(
        self,
        input: Any,
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
        *,
        call: Call | None = None,
    ) -> Any:
        """See the base class. A text may be given by its token ids, too. A ``call`` can end this between two batches.

        Raises:
            TypeError: neither texts nor token ids.
            ValueError: a text without tokens, one that may not be truncated and is too long, a token that the
                vocabulary does not have, or a Llama that has no weights (``vocab_only``).
            RuntimeError: the Llama was created without ``embedding=True``, or the model makes no embeddings.
        """
        inputs, is_one = as_inputs(input)
        with self.engine.slot.exclusive():
            self.engine.slot.require_threads()
            self.engine.slot.require_at_rest()
            self.engine.model.require_weights()
            self.engine.model.require_embedder()
            if not self.context_params.embeddings:
                raise RuntimeError("this Llama makes no embeddings: create it with embedding=True")
            found: list[Any] = []
            num_tokens = 0
            try:
                for batch in batches(self, inputs, truncate):
                    (call or self._call).listener.poll()
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
        slot = self._call.slot
        slot.require_alone("save_state")
        with slot.exclusive():
            slot.require_at_rest()
            if slot.is_idle:
                slot.settle(self._call.listener)
            with captured_errors():
                state = super().save_state()
            state.n_tokens = min(state.n_tokens, self.position.held)
            state.scores = np.zeros((1, self._n_vocab), dtype=np.single)  # llama_cpp's load_state copies this
            return marked(self._origin, state)

    def load_state(self, state: llama_cpp.LlamaState) -> None:
        """Restore a state saved by this class or by ``llama_cpp.Llama`` (whose stored logits are not needed).

        A state saved by this class records what it was computed with: the weights, a LoRA adapter and its scale, RoPE,
        the types of the cache, flash attention, ``kv_overrides``. All of it must be the same here. A state saved by
        ``llama_cpp.Llama`` records nothing: open both Llamas with the same arguments.

        Raises:
            StateError: the state is damaged, was computed with other weights or settings, was saved by another library,
                or has more than ``n_ctx`` tokens. If only llama.cpp notices this, the Llama holds nothing afterwards,
                as after ``reset()``; else it stays as it was. The error is a ValueError and a RuntimeError.
            TypeError: it is no state.
            BusyError: another thread is generating.
        """
        self._call.slot.require_alone("load_state")
        with self.engine.slot.exclusive():
            self.engine.slot.require_at_rest()
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
        for name in {"logits_all", "use_mmap"} - self._kwargs.keys():  # use_mmap has another default in a draft
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
            **{name: getattr(self, name) for name in ("cache_ram", "cache_dir", "cache_disk", "learn", "learn_disk")},
        }

    def __enter__(self) -> Llama:
        """The Llama. It is closed at the end of the block."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the Llama, as ``close`` does."""
        self.close()

    def close(self) -> None:
        """Free the model, and the draft that was opened for it. All later calls raise ClosedError.

        Texts of ``create_completions`` that are under way get ClosedError, and ``close`` waits until they have ended.

        Raises:
            BusyError: another thread is generating, or this is called within a generation.
        """
        if "_stack" not in self.__dict__:
            return  # __init__ failed early
        engine = getattr(self, "engine", None)
        if engine is None:  # the constructor has failed
            super().close()
            return
        if self.tokenizing.depth:  # a signal handler, for example, calls `close` while this thread tokenizes
            raise_busy()
        engine.close_with(self._free)

    def _free(self) -> None:
        close_for_good(self)  # first, so that no other thread begins to use the model before it is freed
        while self.tokenizing.has_others:
            time.sleep(_SOON)
        super().close()


def require_ours(llm: object, name: str = "llm") -> None:
    """Check that an argument is a Llama of specllama's.

    Raises:
        TypeError: it is a ``llama_cpp.Llama``, or something else.
    """
    if not isinstance(llm, Llama):
        kind = type(llm)
        raise TypeError(f"{name} is a {kind.__module__}.{kind.__qualname__}: open it with specllama.Llama")


def _with_send(generation: Generation) -> Generator[int, Sequence[int] | None, None]:
    """Yield the tokens. ``send(tokens)`` appends tokens of the caller's own after the last token that was yielded."""
    with contextlib.closing(generation):
        for token in generation:
            appended = yield token
            if appended is not None:
                generation.append(appended)
