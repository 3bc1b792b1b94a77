"""The engine: a model, a draft for it, and the texts that both generate. Tokens go in, tokens come out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.models import catalog
from specllama.models.loading import captured_errors
from specllama.stats import Stats

from . import costs
from .account import Account
from .closed_when_gone import ClosedWhenGone
from .direct import Direct, emptied
from .drafts.automatic import Room
from .drafts.draft import Draft, Loaded
from .drafts.draft_options import DraftOptions
from .drafts.kinds import understood
from .drafts.vocabulary import DraftVocabularySize
from .earlier_answers import EarlierAnswers
from .generation import Generation
from .hidden import shown_layers as hidden_of
from .learning import Learning
from .listener import SILENT, Listener
from .model import Model, token_ids
from .opening import Opening, open_model
from .options import NumDraftTokens, Options, checked_index, checked_max_tokens, checked_seed
from .position import Position
from .prefixes.store import Store, StoreOptions
from .request import Constraint, Request, checked_bias
from .samplers import CHAIN, SAMPLERS
from .slot import Slot
from .states import States, checked_layers, forced, require_computed, require_layers, require_shown_layers, states_of
from .texts import Texts, checked_cache_tokens
from .tokens_of_text import tokens_of

_CLOSING = 500.0  # seconds: closing may wait for the disk as the end of a text does that has taken so long
_CHUNK = 32  # the most positions whose logits are held at once


class Engine(ClosedWhenGone):
    """Decodes speculatively. The text is the one that the target alone would have generated.

    ``Engine.open`` opens files. The constructor takes models that the caller has opened, and has to close.

    Args:
        model: the target.
        draft: the draft; None for plain decoding.
        options: how to speculate, unless a text's request says otherwise.
        position: the position of the text in the model's own context; None for an empty context.
        cache_tokens: how many tokens the cache of several texts at once holds; None: ``n_ctx`` for each text.
        store_options: where, and how much, copies of what memories held of earlier texts are kept.

    Attributes:
        model: the target.
        slot: the slot of the model's own context.
        texts: the slots of several texts at once.
        store: the copies of what memories held of earlier texts.
    """

    def __init__(
        self,
        model: Model,
        draft: Draft | None = None,
        *,
        options: Options | None = None,
        position: Position | None = None,
        cache_tokens: int | None = None,
        store_options: StoreOptions | None = None,
    ) -> None:
        self._close_model: Callable[[], None] | None = None
        self.model = model
        self.account = Account(options or Options.checked("auto", "auto", 64))
        self.store = Store(store_options or StoreOptions())
        self.slot = Slot(self.account, model, position or Position(model.n_ctx), draft, store=self.store)
        self.texts = Texts(self.slot, cache_tokens, self.store)

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | Callable[[npt.NDArray[np.intc]], Any] | Sequence[Any] | None = None,
        *,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        kernels: str | None = None,
        flash_attn: bool | None = None,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        draft_kwargs: dict[str, Any] | None = None,
        lookup_corpus: str | Sequence[int] | None = None,
        draft_vocabulary: DraftVocabularySize = "auto",
        draft_mask_token: int | None = None,
        draft_window: int | None = None,
        num_draft_tokens: NumDraftTokens = "auto",
        max_draft_tokens: int = 64,
        verify: str = "auto",
        cache_tokens: int | None = None,
        cache_ram: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_disk: float = 8.0,
        shown_layers: Sequence[int] = (),
        learn: bool = False,
        learn_disk: float = 4.0,
    ) -> Engine:
        """Open a target, and a draft for it.

        Args:
            target: a GGUF file, or a name of the catalog.
            draft: what ``specllama.Llama`` takes as ``draft_model``: a GGUF file of a smaller model or of a head for
                the target; ``"mtp"`` for the MTP layers in the target's file; ``"lookup"``; ``"lookahead"``;
                ``"auto"`` for the best draft on this machine; a list of a head and a model; a function from the token
                ids of a text to ids that may follow; a Llama; or None for plain decoding.
            n_ctx: the most tokens of one text.
            n_batch: the most tokens that are decoded at once.
            n_threads: the threads of each model; None: half of the cores that the process may use.
            n_gpu_layers: how many layers of both models are on the GPU; -1 for all.
            kernels: ``"auto"`` or ``"off"``, as in ``specllama.Llama``.
            flash_attn: as in ``specllama.Llama``.
            lora_path: a LoRA adapter for the target's weights.
            lora_scale: the factor of the adapter.
            draft_kwargs: the arguments of a draft that is given by its path; by default they are the target's. Possible
                are ``n_ctx`` to ``lora_scale`` above, ``n_threads_batch``, ``type_k``, ``type_v`` and ``use_mmap``. A
                draft model may also have a ``draft_model`` of its own, as in ``specllama.Llama``.
            lookup_corpus: a text, or token ids, in which the draft looks up besides the text itself.
            draft_vocabulary: the tokens that the draft may draw, as in ``specllama.Llama``.
            draft_mask_token: the mask token of a parallel draft, as in ``specllama.Llama``.
            draft_window: how many tokens of a text the draft holds, as in ``specllama.Llama``.
            num_draft_tokens: gamma, the number of tokens drafted in a round, or ``"auto"``: as many as pay. 0 is plain
                decoding.
            max_draft_tokens: the most tokens that ``num_draft_tokens="auto"`` drafts in a round.
            verify: the acceptance rule.
            cache_tokens: how many tokens the cache of several texts at once holds; None: ``n_ctx`` for each text.
            cache_ram: MiB in memory for copies of the KV cache of earlier texts; 0 keeps none, -1 has no limit.
            cache_dir: a folder for such copies, which later processes use, too; None for none.
            cache_disk: GiB in this folder.
            shown_layers: layers of the target, numbered from 0, whose input the method `states` gives. -1 stands for
                the final hidden state, which the output matrix multiplies.
            learn: whether what a head can learn from answers is kept, as in ``specllama.Llama``.
            learn_disk: the most GiB of it.

        Raises:
            ModelNotFoundError, ValueError: a file is missing, or llama.cpp cannot load it; the draft does not fit the
                target; or an option is out of range.
            TypeError: an option has another type.
        """
        options = Options.checked(num_draft_tokens, verify, max_draft_tokens)
        of_draft = DraftOptions(draft, draft_kwargs, lookup_corpus, draft_vocabulary, draft_mask_token, draft_window)
        opening = Opening(
            n_ctx,
            n_batch,
            n_threads,
            n_gpu_layers=n_gpu_layers,
            kernels=kernels,
            flash_attn=flash_attn,
            lora_path=lora_path,
            lora_scale=lora_scale,
        )
        cache_tokens = checked_cache_tokens(cache_tokens)
        store_options = StoreOptions.checked(cache_ram, cache_dir, cache_disk)
        path = catalog.resolve(os.fsdecode(target))
        learning = Learning.checked(learn, learn_disk)
        room = Room(n_ctx, (draft_kwargs or {}).get("n_ctx"), on_gpu=n_gpu_layers != 0, learns=learning.learn)
        kind = understood(of_draft, path, room=room)
        if kind is not None:
            opening.changed(kind.opened_with)  # raises for an argument that does not exist
        hidden = None if kind is None else kind.hidden_states(path)
        shown_layers = checked_layers(shown_layers)
        if shown_layers and hidden is None:
            hidden = hidden_of(shown_layers)
        hidden = learning.shown(hidden)
        num_snapshots = 0 if kind is None else options.most_draft_tokens
        num_branches = 0 if kind is None else kind.num_branches
        more: dict[str, Any] = {"num_branches": num_branches, "has_spare": store_options.keeps_some, "hidden": hidden}
        model = open_model(path, opening, name="target", num_snapshots=num_snapshots, **more)
        engine = cls(model, options=options, cache_tokens=cache_tokens, store_options=store_options)
        engine._close_model = model.close
        try:
            model.sequence  # raises for a model that cannot generate  # noqa: B018
            require_layers(model, shown_layers)
            if shown_layers:
                require_computed(model)
            learning.begin(engine.account, model)
            if kind is not None:
                engine.slot.exchange_draft(kind.open(model, _Loader(engine, opening)))
        except BaseException:
            engine.close()
            raise
        return engine

    # Texts

    def generate(self, tokens: Sequence[int], **asked: Any) -> Generation:
        """Generate the tokens that follow a prompt, one at a time. `request` describes the arguments."""
        return Generation(self.slot, self.request(tokens, **asked), keeper=self)

    def request(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
        num_draft_tokens: NumDraftTokens | None = None,
        verify: str | None = None,
        logit_bias: dict[int, float] | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        constraint: Constraint | None = None,
        wants_logits: bool = False,
        listener: Listener = SILENT,
        drafts_first: bool = False,
        lookup_corpus: Sequence[int] = (),
        **sampling: Any,
    ) -> Request:
        """Make the request for one text.

        Args:
            tokens: the prompt. Tokens at its beginning that the memory already holds are not decoded again.
            max_tokens: the most tokens that follow; None: as many as the context has room for. The reader may stop at
                any token, such as one that ends the text (``model.ends_text``).
            seed: the seed; None for a random one.
            num_draft_tokens: as in ``open``, for this text.
            verify: the acceptance rule, as in ``open``, for this text.
            logit_bias: by token, the number to add to its logit.
            logits_processor: functions (tokens, logits [n_vocab]) -> logits, called once for each token of the text.
            stopping_criteria: functions (tokens, logits [n_vocab]) -> whether the text ends, called for each token.
            constraint: ``Gbnf(text)`` or ``Schema(grammar)``.
            wants_logits: whether the caller will call ``Generation.logits``.
            listener: is notified of the generation, and may end it.
            drafts_first: whether the first round may draft, too. The first token then comes later.
            lookup_corpus: tokens in which a draft that looks up also searches, besides the text and ``open``'s corpus.
            sampling: the sampler chain: ``temperature``, ``top_k``, ``dry_multiplier``, ... with ``llama_cpp.Llama``'s
                names and defaults.

        Raises:
            TypeError: an option has another type, or does not exist.
            ValueError: an option is out of range.
        """
        more = {name: sampling.pop(name) for name in SAMPLERS if name in sampling}
        for name in sampling.keys() - CHAIN.keys():
            raise TypeError(f"there is no option {name}: the sampler chain has {', '.join([*CHAIN, *SAMPLERS])}")
        if constraint is not None and (isinstance(constraint, type) or not hasattr(constraint, "over")):
            raise TypeError(f"constraint={constraint!r:.100} must be Gbnf(text) or Schema(grammar), or None")
        _check_listener(listener)
        chosen = checked_seed(seed)
        return Request(
            tokens=tokens,
            options=self.account.options.overridden(num_draft_tokens, verify, more),
            seed=secrets.randbits(64) if chosen is None else chosen,
            seed_given=chosen is not None,
            sampling=sampling,
            logit_bias=checked_bias(logit_bias or {}, self.model.n_vocab),
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            constraint=constraint,
            wants_logits=wants_logits,
            max_tokens=checked_max_tokens(max_tokens),
            listener=listener,
            drafts_first=drafts_first,
            lookup_corpus=token_ids(lookup_corpus, "lookup_corpus", self.model.n_vocab).tolist(),
        )

    def score(self, tokens: Sequence[int], listener: Listener = SILENT) -> Iterator[tuple[int, npt.NDArray[np.single]]]:
        """Decode a text from its beginning. Yields (index, raw logits [n_vocab] after it) of each token but the last.

        Raises:
            BusyError: another thread is generating.
            ClosedError: the model is closed.
            DecodeError: llama.cpp fails.
            RuntimeError: something else has used the model's own context since the last yield.
            TypeError, ValueError: the numbers are not tokens of the vocabulary.
        """
        _check_listener(listener)
        ids = token_ids(tokens, "what is scored", self.model.n_vocab)

        def read(sequence: _core.Sequence, start: int, count: int) -> list[tuple[int, npt.NDArray[np.single]]]:
            return [(start + i, sequence.logits(i)) for i in range(count)]

        for rows in forced(self.slot, ids[:-1], listener, read, most=_CHUNK):
            yield from rows

    def states(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer],
        *,
        rows: Sequence[int] | npt.NDArray[np.integer] = (),
        first_logits: int = 0,
        listener: Listener = SILENT,
    ) -> Iterator[States]:
        """Decode a given text from its beginning, and give the target's hidden states and logits, for training heads.

        The target must show its states: open the engine with ``shown_layers``, or with a head.

        Args:
            tokens: the text [n].
            rows: the tokens of the vocabulary whose logits are wanted.
            first_logits: the index in the text of the first token after which logits are wanted. From there on, each
                token also costs a product with the whole output matrix.
            listener: is called between parts, and may end the work.

        Yields:
            Parts of the text, one after the other.

        Raises:
            BusyError: another thread is generating.
            ClosedError: the model is closed.
            DecodeError: llama.cpp fails.
            RuntimeError: something else has used the model's own context since the last part.
            TypeError, ValueError: the numbers are not tokens of the vocabulary, or the target shows no states.
        """
        _check_listener(listener)
        require_shown_layers(self.model)
        first_logits = checked_index("first_logits", first_logits, "the place of a token")
        chosen = token_ids(rows, "rows", self.model.n_vocab)
        ids = token_ids(tokens, "tokens", self.model.n_vocab)
        yield from states_of(self.slot, ids, listener, chosen, first_logits)

    def forget(self) -> None:
        """Empty the model's own context. Target and draft decode the next text from its beginning.

        The copies of earlier texts in memory are dropped, too. Those in ``cache_dir`` stay.

        Raises:
            BusyError: another thread is generating.
        """
        with self.slot.exclusive():
            self.slot.require_at_rest()
            self.model.clear()
            self.slot.position.change(0)
            self.store.clear()
            if self.slot.draft is not None:
                self.slot.draft.forget()

    # Without the loop

    @contextlib.contextmanager
    def direct(self, name: str = "target") -> Iterator[Direct]:
        """Empty a model's own context, and lend it for the caller's batches. After the block the context is empty, too.

        A text that was under way in the context cannot continue.

        Args:
            name: the name of one of `models`.

        Raises:
            BusyError: another thread is generating, or a text is making a token.
            ClosedError: the model is closed.
            ValueError: there is no such model.
        """
        model, slot = self._model(name), self.slot
        with slot.exclusive():
            slot.require_threads()
            slot.require_at_rest()
            changes = functools.partial(slot.position.change, 0)
            changes()  # tells a text that is under way that it cannot continue
            try:
                with emptied(model, changes) as direct:
                    yield direct
            finally:
                changes()

    def keep_answers(self, most: int = 16_384) -> None:
        """From now on, let a draft that looks up also search in the last answers of this engine.

        The answers are kept in memory only. A call forgets the answers that were kept before. Drafts depend on the kept
        answers. So with ``rejection`` or ``block``, a seed may give another text, even with a fixed number of drafted
        tokens.

        Args:
            most: how many tokens of answers are kept; 0 keeps none.

        Raises:
            TypeError, ValueError: `most` is no int, or is below 0.
        """
        self.account.earlier = EarlierAnswers(most)

    def keep_costs(self, name: str, seconds: Mapping[int, float]) -> None:
        """Use these costs of batches from now on, also in later engines with the same files and settings.

        Args:
            name: the name of the model with these costs, one of `models`.
            seconds: by n, how many seconds a batch of n tokens takes. Impossible values are left out.

        Raises:
            OSError, RuntimeError: the costs cannot be written to the cache directory.
            ValueError: there is no such model.
        """
        with self.slot.exclusive():
            costs.write(costs.cost_key(self._model(name), name), seconds)
            self.slot.restore_costs()

    def _model(self, name: str) -> Model:
        models = self.models
        if name not in models:
            raise ValueError(f"this engine has no model {name!r}, only {', '.join(models)}")
        return models[name]

    # Texts and tokens

    def tokenize(self, text: bytes | str, *, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text.

        Args:
            text: the text; bytes are UTF-8.
            add_bos: put BOS before the text, if the model wants it.
            special: read the names of special tokens in the text as these tokens, and not as text.

        Raises:
            ClosedError: the model is closed.
            TypeError: the text is neither str nor bytes.
            ValueError: the vocabulary has no tokens for the text, or llama.cpp would run out of stack or of time.
        """
        data = text.encode("utf-8") if isinstance(text, str) else text
        with self.model.kept():
            return tokens_of(self.model, data, add_bos, special)

    def text(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """The text of tokens, in UTF-8.

        Args:
            tokens: token ids.
            special: whether a special token gives its name. If not, it adds nothing to the text.

        Raises:
            ClosedError: the model is closed.
            TypeError: `tokens` is no sequence of integers.
            ValueError: a number is not a token of the vocabulary.
        """
        checked = token_ids(tokens, "tokens", self.model.n_vocab).tolist()
        with self.model.kept():
            return b"".join(self.model.piece(token, special=special) for token in checked)

    # What the engine has, and its end

    @property
    def draft(self) -> Draft | None:
        """The draft, usable or not; None if there is none."""
        return self.slot.draft

    @property
    def why_plain(self) -> str | None:
        """Why the draft cannot be used, so that all text is decoded plainly; None if it can be, or there is none."""
        return None if self.draft is None or self.slot.claim(self.draft) else self.draft.unusable

    @property
    def models(self) -> dict[str, Model]:
        """The models by name: the ``"target"``, and the draft's models: a ``"draft"`` model, a ``"head"``, or both.

        A draft's own draft is the ``"inner"`` model.
        """
        return {"target": self.model, **({} if self.draft is None else self.draft.models)}

    @property
    def stats(self) -> Stats:
        """Statistics of the text under way in the model's own context, or else of the last text there."""
        return self.slot.stats()

    @property
    def total_stats(self) -> Stats:
        """The sum of the statistics of all texts that have ended, in any slot."""
        return self.account.stats()

    def close_with(self, free: Callable[[], None]) -> None:
        """Close everything that uses the target, and then free it.

        If texts of `texts` are under way, they get ClosedError, and this method waits for their end. If Ctrl-C
        interrupts a call, a further call closes what is still open.

        Args:
            free: frees the target.

        Raises:
            BusyError: another thread is generating in the model's own context, or a text has called this.
        """
        self.texts.require_outside()
        self.texts.end_alone()
        # `exclusive` is no generator: the traceback of Ctrl-C would keep a generator alive, and never end the block.
        with captured_errors(), self.slot.exclusive():
            self.slot.require_outermost()
            if self.store.disk is not None and self.model.is_open:
                self.slot.keep_text(_CLOSING)  # of a text that nobody has read to its end
            self.model.end_sequence()
            self.slot.refuse_as_closed()
            self.texts.close()
            if self.slot.draft is not None:  # a head's context may use parts of the target's
                self.slot.draft.close()
            free()
        self.store.flush()
        if self.account.examples is not None:
            self.account.examples.flush()
        for note in self.store.notes():
            self.account.warn_once(note)

    def close(self) -> None:
        """Free what ``open`` has opened. All later calls raise ClosedError.

        Raises:
            BusyError: another thread is generating in the model's own context, or a text has called this.
        """
        if self._close_model is not None:
            self.close_with(self._close_model)
            self._close_model = None  # last: if Ctrl-C comes before, the next call closes again

    def __enter__(self) -> Engine:
        """The engine. It is closed at the end of the block."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the engine, as ``close`` does."""
        self.close()


def _check_listener(listener: Any) -> None:
    if not isinstance(listener, Listener):
        raise TypeError(f"listener={listener!r:.100} must be a Listener: leave it out where nobody hears of the text")


class _Loader:
    """Loads the draft's files for an engine that was opened from a file."""

    def __init__(self, engine: Engine, opening: Opening) -> None:
        self._engine = engine
        self._opening = opening

    def load(self, path: str, target: Model, draft_kwargs: Mapping[str, Any]) -> Loaded:
        """Load a file, as ``engine.drafts.draft.Loader`` says."""
        # The target's adapter is for the target's weights.
        opening = dataclasses.replace(self._opening, **target.of_draft(), lora_path=None, lora_scale=1.0)
        model = open_model(path, opening.changed(draft_kwargs), name="draft", has_spare=target.settings.has_spare)
        return Loaded(model, path, model.close)

    def tokenize(self, text: str) -> Sequence[int]:
        """The tokens of a text, as ``engine.drafts.draft.Loader`` says."""
        return self._engine.tokenize(text, add_bos=False)
