"""The arguments that several commands share: models, contexts, and sampling.

The functions that make keyword arguments leave out the arguments that the user has not given.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.backend.brief import brief
from specllama.engine import LARGEST_INT, MOST_DRAFT_TOKENS, MOST_THREADS, VERIFY
from specllama.models import CACHE_TYPES, values_of_block

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.prompts import Prompt

_MOST_PARALLEL = 256  # llama.cpp's own limit may be lower, and is checked when the model is loaded
_SHOWN_PROBLEMS = 10
_SEED = "the same seed gives the same text, with any draft or none"


class UsageError(ValueError):
    """The command line cannot be carried out as it is, for a reason that its parser does not see."""


@contextlib.contextmanager
def usage_checked() -> Iterator[None]:
    """A context manager: a ValueError in its block becomes a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def whole(least: int, most: int = LARGEST_INT) -> Callable[[str], int]:
    """The type of an argument that is an int from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{brief(text)} is no whole number: give one from {least} up") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{brief(value)} is too small: give at least {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{brief(value)} is too large: give at most {most}")
        return value

    return parse


def usable(name: str, kind: type[float]) -> Callable[[str], float]:
    """The type of an argument that is a sampler's parameter. It refuses numbers such as NaN."""

    def parse(text: str) -> float:
        from specllama.engine import SamplerParams

        value = kind(text)
        params: dict[str, Any] = {name: value}
        try:
            SamplerParams(**params)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    parse.__name__ = kind.__name__  # argparse's name of the type, in its message about a text that is no number
    return parse


def utf8_text(given: str) -> str:
    """The type of an argument that is a text for a model."""
    try:
        return checked_text(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def checked_text(given: str) -> str:
    """Check a text for a model, and return it.

    Raises:
        ValueError: the text was not UTF-8. Python keeps such bytes as lone surrogates, which no model can read.
    """
    try:
        given.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = ord(given[error.start])
        what = f"the byte 0x{lone - 0xDC00:02X}" if 0xDC80 <= lone <= 0xDCFF else f"the code {lone:#x}"
        raise ValueError(f"the text is not UTF-8: it has {what} at character {error.start}; convert it first") from None
    return given


def add_models(parser: argparse.ArgumentParser, draft_required: bool = False) -> argparse._ArgumentGroup:
    """Add the target and the draft. Returns their group."""
    group = parser.add_argument_group("models (a GGUF file, a catalog name, or a name with a type as in NAME:F16)")
    group.add_argument(
        "--model",
        "-m",
        dest="model_path",
        required=True,
        metavar="TARGET",
        help="the target: the model that writes the text",
    )
    group.add_argument(
        "--draft-model",
        "-md",
        required=draft_required,
        action="append",
        metavar="DRAFT",
        help="the draft: a smaller model, a head, mtp (a layer in the target's file), lookup (copies from the text), "
        "lookahead (guesses of the target itself), or auto (the best one on this machine, as `specllama drafts` "
        "shows); give it twice for a head and a model together",
    )
    group.add_argument(
        "--draft-of-draft",
        "-mdd",
        metavar="DRAFT",
        help="the draft model's own draft, which guesses what it will say: a still smaller model, or lookup",
    )
    return group


def add_model_arguments(parser: argparse.ArgumentParser, pair: bool = False) -> None:
    """Add the models, and how they are loaded. With `pair`, the user must give a draft."""
    group = add_models(parser, draft_required=pair)
    add_num_draft_tokens(group)
    add_max_draft_tokens(group)
    group.add_argument("--verify", choices=VERIFY, help="the rule that accepts drafted tokens")
    group.add_argument(
        "--lookup-corpus",
        type=Path,
        metavar="FILE",
        help="a text file to look up besides prompt and answer (with a draft model: only by --num-draft-tokens auto)",
    )
    add_context_arguments(parser)


def add_num_draft_tokens(parser: argparse._ActionsContainer) -> None:
    """Add the number of tokens that a round drafts."""
    parser.add_argument(
        "--num-draft-tokens",
        type=_num_draft_tokens,
        metavar="N",
        help="tokens to draft in a round; 0 for plain decoding; default auto: as many as pay by measured costs",
    )


def add_max_draft_tokens(parser: argparse._ActionsContainer) -> None:
    """Add the most tokens that ``--num-draft-tokens auto`` drafts in a round."""
    parser.add_argument(
        "--max-draft-tokens",
        type=whole(1, MOST_DRAFT_TOKENS),
        metavar="N",
        help="the most tokens that auto drafts in a round, default 64",
    )


def _num_draft_tokens(text: str) -> int | str:
    return text if text == "auto" else whole(0, MOST_DRAFT_TOKENS)(text)


def add_max_tokens(parser: argparse._ActionsContainer, default: int | None, least: int = 1, of: str = "") -> None:
    """Add the most tokens of an answer. A default of None means no limit."""
    limit = "no limit" if default is None else default
    what = f"the most tokens {of}".rstrip()
    parser.add_argument(
        "--max-tokens", "-n", type=whole(least), default=default, metavar="N", help=f"{what}, default {limit}"
    )


def add_parallel(parser: argparse._ActionsContainer, default: int, of: str) -> None:
    """Add how many texts are generated at once."""
    parser.add_argument(
        "--parallel",
        dest="max_parallel",
        type=whole(1, _MOST_PARALLEL),
        default=default,
        metavar="N",
        help=f"{of} at once, default {default}; each has room for --ctx-size tokens",
    )
    parser.add_argument(
        "--cache-tokens",
        type=whole(1),
        metavar="N",
        help="tokens in the KV cache of all of them together, at least --ctx-size; default: --ctx-size for each",
    )


def add_earlier_texts(parser: argparse.ArgumentParser, ram: int = 0) -> None:
    """Add what is kept of earlier texts, and where. `ram` is the default of ``--cache-ram``."""
    group = parser.add_argument_group("earlier texts (what a prompt has in common with them is not read again)")
    group.add_argument(
        "--cache-ram",
        "-cram",
        type=whole(-1),
        default=ram or None,
        metavar="MIB",
        help=f"memory for copies of the KV cache of earlier texts; 0 keeps none, -1 has no limit (default {ram})",
    )
    group.add_argument(
        "--cache-dir",
        type=_stored("cache_dir", str),
        metavar="DIR",
        help="a folder for such copies, which later runs use, too. It holds what was written, and you alone can read "
        "it; `specllama cache DIR` shows and empties it",
    )
    group.add_argument(
        "--cache-disk",
        type=_stored("cache_disk", float),
        metavar="GIB",
        help="the most that this folder may take, default 8; what was unused for longest is deleted first",
    )


def add_learning(parser: argparse.ArgumentParser) -> None:
    """Add whether what a draft can learn from the answers is kept."""
    group = parser.add_argument_group("learning from use")
    group.add_argument(
        "--learn",
        action="store_true",
        default=None,
        help="keep what a draft can learn from the answers: their tokens, the ends of their prompts, and numbers that "
        "the model computed for them. You alone can read it, and nothing leaves this machine. `specllama learn MODEL` "
        "shows and forgets it, and has a draft learn from it; `serve` and `chat` do so by themselves while nobody "
        "needs the machine, if PyTorch is installed",
    )
    group.add_argument(
        "--learn-disk",
        type=_learned,
        metavar="GIB",
        help="the most that this may take on the disk, default 4; the oldest answers are deleted first",
    )


@contextlib.contextmanager
def learning_meanwhile(llm: Llama) -> Iterator[None]:
    """A context manager in which a draft learns from use while the machine is idle, if the user has asked for it."""
    from specllama.backend.streams import show
    from specllama.training.idle import IdleLearner, can_learn, learning_meanwhile

    if llm.learn_dir is None:
        yield
    elif not can_learn():
        print(
            'specllama: a draft does not learn from it by itself: that needs pip install "specllama[train]"',
            file=sys.stderr,
        )
        yield
    else:
        learner = IdleLearner(
            llm.model_path, Path(llm.learn_dir).name, on_failure=lambda text: show(f"specllama: {text}\n")
        )
        with learning_meanwhile(learner):
            yield


def _learned(text: str) -> float:
    from specllama.engine import Learning

    try:
        return Learning.checked(True, float(text)).learn_disk
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_learned.__name__ = "float"  # argparse's name of the type, in its message about a text that is no number


def _stored(name: str, kind: type[str] | type[float]) -> Callable[[str], str | float]:
    """The type of an argument that says where texts are kept, or how many."""

    def parse(text: str) -> str | float:
        from specllama.engine import StoreOptions

        value = kind(text)
        given: dict[str, Any] = {**vars(StoreOptions()), name: value}
        try:
            StoreOptions.checked(**given)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    parse.__name__ = kind.__name__  # argparse's name of the type, in its message about a text that is no number
    return parse


def add_threads(parser: argparse._ActionsContainer, purpose: str) -> None:
    """Add the number of threads."""
    parser.add_argument("--threads", "-t", dest="n_threads", type=whole(1, MOST_THREADS), metavar="N", help=purpose)


def add_context_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the size of the context, the threads and the GPU layers."""
    group = parser.add_argument_group("context")
    group.add_argument(
        "--ctx-size",
        "-c",
        dest="n_ctx",
        type=whole(0),
        default=4096,
        metavar="N",
        help="tokens of the context, default 4096; 0 for as many as the model was trained with",
    )
    add_threads(group, "threads for prompts and generation, default: what suits this machine")
    group.add_argument(
        "--threads-batch",
        "-tb",
        dest="n_threads_batch",
        type=whole(1, MOST_THREADS),
        metavar="N",
        help="threads for batches of several tokens, default: as --threads",
    )
    group.add_argument(
        "--kernels",
        choices=("auto", "off"),
        help="specllama's kernels for quantized weights on the CPU, or llama.cpp's (off); default auto",
    )
    for letter, of in (("k", "keys"), ("v", "values")):
        group.add_argument(
            f"--cache-type-{letter}",
            f"-ct{letter}",
            dest=f"type_{letter}",
            type=str.upper,
            choices=CACHE_TYPES,
            metavar="TYPE",
            help=f"the type of the KV cache's {of}: {', '.join(CACHE_TYPES)}; default F16. Q8_0 takes half the memory",
        )
    group.add_argument("--n-gpu-layers", "-ngl", type=whole(-1), metavar="N", help="layers on the GPU (-1: all)")


def add_sampling_arguments(parser: argparse.ArgumentParser, seed: str = _SEED) -> None:
    """Add the sampler chain and its seed. `seed` is the help text of the seed."""
    group = parser.add_argument_group("sampling (defaults are llama-cpp-python's, unless the command says another)")
    group.add_argument(
        "--temp",
        dest="temperature",
        type=usable("temperature", float),
        metavar="T",
        help="the temperature; 0 is greedy",
    )
    group.add_argument(
        "--top-k", type=whole(-1), metavar="K", help="choose among the K likeliest tokens; 0 or -1 for all"
    )
    group.add_argument("--top-p", type=usable("top_p", float), metavar="P")
    group.add_argument("--min-p", type=usable("min_p", float), metavar="P")
    group.add_argument("--repeat-penalty", type=usable("repeat_penalty", float), metavar="X")
    group.add_argument("--seed", type=int, metavar="N", help=seed)


def add_server_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add llama-server's samplers, with the names of llama.cpp's options. All are off by default."""
    from specllama.engine import server_samplers

    group = parser.add_argument_group("more sampling (as in llama-server)")
    for sampler in server_samplers():
        number, metavar = (int, "N") if isinstance(sampler.default, int) else (float, "X")
        kind = usable(sampler.name, number)
        group.add_argument(sampler.option, dest=sampler.name, type=kind, metavar=metavar, help=sampler.summary)
    group.add_argument(
        "--dry-sequence-breaker",
        dest="dry_sequence_breakers",
        action="append",
        metavar="TEXT",
        help="a text at which DRY ends a repetition, in place of the default ones; may be repeated",
    )


def context_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `specllama.Llama` for the context. The default threads are as for `tune`."""
    from specllama.backend.cpu import default_threads

    threads = arguments.n_threads or default_threads()
    types = _given_of(arguments, "type_k", "type_v")
    return {
        **_given_of(arguments, "n_ctx", "n_gpu_layers", "kernels"),
        **{name: CACHE_TYPES[value][0] for name, value in types.items()},
        "n_threads": threads,
        "n_threads_batch": arguments.n_threads_batch or threads,
    }


def draft_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `specllama.Llama` for the draft, and for how much it drafts.

    Raises:
        UsageError: there is a draft of the draft, but no draft.
        OSError, ValueError: the lookup corpus cannot be read.
    """
    from specllama.prompts import read_text

    corpus, inner = arguments.lookup_corpus, arguments.draft_of_draft
    if inner is not None and arguments.draft_model is None:
        raise UsageError("--draft-of-draft (-mdd) is for a draft model: give one with --draft-model (-md), too")
    found = _given_of(arguments, "draft_model", "num_draft_tokens", "max_draft_tokens", "verify")
    if len(found.get("draft_model", ())) == 1:
        (found["draft_model"],) = found["draft_model"]
    if inner is not None:
        found["draft_kwargs"] = {"draft_model": inner}
    if corpus is not None:
        found["lookup_corpus"] = read_text(corpus, "a lookup corpus")
    return found


def both_classes(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of `llama_cpp.Llama` and of `specllama.Llama` for one target."""
    from specllama.models import resolve

    context = {"model_path": resolve(arguments.model_path), **context_options(arguments)}
    theirs = {name: value for name, value in context.items() if name != "kernels"}
    if values_of_block(context.get("type_v")) > 1:  # only specllama turns flash attention on for such types by itself
        theirs["flash_attn"] = True
    return theirs, {**context, **draft_options(arguments)}


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of a completion for the sampler chain."""
    return _given_of(arguments, "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")


def completion_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of a completion for all samplers, and for its length."""
    from specllama.engine import SAMPLERS

    return {**sampling_options(arguments), **_given_of(arguments, "max_tokens", *SAMPLERS)}


def read_prompts(paths: Iterable[Path]) -> tuple[list[Prompt], list[str]]:
    """The prompts in all files, and messages about lines that hold no prompt."""
    from specllama.prompts import read_prompts as read_file

    found: list[Prompt] = []
    problems: list[str] = []
    for path in paths:
        of_file, skipped = read_file(path)
        found += of_file
        problems += skipped
    notes = [f"skipped {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        notes.append(f"skipped {len(problems) - _SHOWN_PROBLEMS} more lines ({len(problems)} in all)")
    return found, notes


def load_pair(arguments: argparse.Namespace, **options: Any) -> Llama:
    """Load the models that `add_model_arguments` has added. ``options`` are arguments of `load_llama`.

    Raises:
        UsageError: nothing would be drafted.
    """
    if arguments.num_draft_tokens == 0:
        raise UsageError("--num-draft-tokens 0 is plain decoding, which would be compared with itself")
    return load_llama(arguments, **options)


def load_llama(arguments: argparse.Namespace, *, draft_if_none: str | None = None) -> Llama:
    """Load the models that `add_model_arguments` has added.

    Args:
        arguments: what the user has given.
        draft_if_none: the draft, if the user has given none. A command that measures what drafting would cost needs a
            draft: without a draft, a context has no snapshots of a recurrent state, and takes tokens back slowly.

    Raises:
        UsageError: an option has no effect without another one.
    """
    from specllama import Llama

    caches = _given_of(arguments, "cache_tokens", "cache_ram", "cache_dir", "cache_disk")
    if "cache_disk" in caches and "cache_dir" not in caches:
        raise UsageError("--cache-disk is the limit of a folder: give --cache-dir, too, or leave it out")
    learned = _given_of(arguments, "learn", "learn_disk")
    if "learn_disk" in learned and "learn" not in learned:
        raise UsageError("--learn-disk is the limit of what --learn keeps: give --learn, too, or leave it out")
    drafted = {"draft_model": draft_if_none, **draft_options(arguments)}
    llm = Llama(arguments.model_path, verbose=False, **drafted, **caches, **learned, **context_options(arguments))
    if learned:
        print(
            f"specllama: what a draft can learn from the answers is kept in {llm.learn_dir}: "
            "`specllama learn MODEL --forget` deletes it",
            file=sys.stderr,
        )
    if getattr(arguments, "share_lookups", False):
        llm.engine.keep_answers()
    if arguments.n_ctx not in (0, llm.n_ctx()):
        print(
            f"specllama: --ctx-size {arguments.n_ctx} became {llm.n_ctx()}: llama.cpp takes multiples of 256",
            file=sys.stderr,
        )
    return llm


def _given_of(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The arguments among `names` that the command has and the user has given."""
    found = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}
