"""Fixtures: tiny GGUF files written once a session, objects over them, and the real models where they are present."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import platformdirs
import pytest
import tiny_models as tiny
from assistants import assistant_weights, target_weights, write_assistant, write_gemma4
from block_heads import fitted_block_head, write_block_head
from fake_hub import Hub, serving_hub
from heads import fitted_head, fitted_mtp
from needed import MODELS, missing
from state_heads import fitted_state_head, write_state_head

if TYPE_CHECKING:
    import llama_cpp
    from batches import Files
    from responses import Pair
    from several_texts import ManyTexts
    from test_engine_statistics import Scorer

    import specllama

REAL_CACHE = Path(os.environ.get("SPECLLAMA_CACHE") or platformdirs.user_cache_dir("specllama"))
"""The user's own cache, which has the real models. Nothing is written to it but downloads."""
REAL_TARGET = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
REAL_DRAFT = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


def pytest_configure(config: pytest.Config) -> None:
    """Silences one bug of old llama-cpp-python releases (their LlamaModel.__del__ fails if the model did not load)."""
    message = "Exception ignored in.*LlamaModel"
    config.addinivalue_line("filterwarnings", f"ignore:{message}:pytest.PytestUnraisableExceptionWarning")
    hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine makes no test wrong
    hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of tests that have many: always the same, drawn from all of them.

    Of a test that is marked ``sampled(n)`` all cases but n are long. If the environment says SPECLLAMA_MOST_CASES=N, as
    scripts/sanitize.sh does, no more than N cases of a test run, unless the test is marked ``every_case``.
    """
    cases: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    most, left_out = int(os.environ.get("SPECLLAMA_MOST_CASES", "1000000")), set[pytest.Item]()
    for each in cases.values():
        drawn = sorted(each, key=lambda case: zlib.crc32(case.nodeid.encode()))
        sampled = each[0].get_closest_marker("sampled")
        for case in drawn[sampled.args[0] :] if sampled is not None else ():
            case.add_marker("long")
        if each[0].get_closest_marker("every_case") is None:
            short = [case for case in drawn if case.get_closest_marker("long") is None]
            left_out.update(short[most:])
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_report_header(config: pytest.Config) -> str:
    """The versions that decide whether a failure can be reproduced, and what was changed about llama.cpp."""
    names = ("specllama", "llama-cpp-python", "numpy", "gguf", "hypothesis", "scipy")
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} (not installed)")
    return ", ".join([*found, *_backend_notes()])


def _backend_notes() -> tuple[str, ...]:
    """Prepares llama.cpp for tests that open its own Llama first; where warnings are errors, one is not any test's."""
    from specllama.backend.prepare import prepare_backend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prepare_backend().notes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Near-ties at which a real model's text split, with their logit gaps."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    messages = [str(text) for report in reports for name, text in report.user_properties if name == "near_tie"]
    if messages:
        terminalreporter.section("near-ties")
        for message in messages:
            terminalreporter.write_line(message)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory of the tests' own: what tiny models cost is nobody's business."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECLLAMA_CACHE", str(folder))
        # What other programs have downloaded here drafts for nobody's test.
        for name in ("LLAMA_CACHE", "OLLAMA_MODELS", "HF_HUB_CACHE"):
            patch.setenv(name, str(folder / "others"))
        _backend_notes()  # pytest -q asks for no header
        yield folder


@pytest.fixture(scope="session", autouse=True)
def _the_machine_is_ours() -> Iterator[None]:
    """Tests run beside others, which no figure of theirs needs to say."""
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):  # the core's tests run without the evidence, too
            patch.setattr("specllama.evidence.neighbours.Neighbours.remark", lambda self, threads: None)
        yield


@pytest.fixture(autouse=True)
def _no_costs_are_known(own_cache: Path) -> None:
    """No test starts with what an earlier one has measured, and decided by that."""
    for name in ("costs", "drafts"):
        shutil.rmtree(own_cache / name, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class TinyFiles:
    """Paths of the tiny models. Drafts are named for how they relate to `target`."""

    target: Path
    identical: Path
    good: Path
    bad: Path
    adversarial: Path
    padded: Path
    padded_draft: Path
    larger: Path
    other_token: Path
    other_bos: Path
    no_bos: Path
    other_eos: Path
    eos_happy: Path
    foreign: Path
    letters: Path
    letters_identical: Path
    letters_good: Path
    letters_bad: Path
    letters_adversarial: Path
    deep: Path
    deep_head: Path
    deep_block: Path
    deep_medusa: Path
    letters_deep: Path
    letters_head: Path
    mtp: Path
    mtp_several: Path
    mtp_hybrid: Path
    sliding: Path
    sliding_draft: Path
    recurrent: Path
    recurrent_draft: Path
    recurrent_good: Path
    hybrid: Path
    hybrid_draft: Path
    hybrid_good: Path
    gemma4: Path
    assistant: Path
    letters_gemma4: Path
    letters_assistant: Path
    embedding: Path
    embedding_words: Path
    lora: Path
    truncated: Path
    not_gguf: Path

    def draft(self, name: str) -> Path | None:
        """The draft of that name for `target`; None for "none"."""
        return None if name == "none" else getattr(self, name)

    def letters_draft(self, name: str) -> Path:
        """The draft of that name for `letters`."""
        return getattr(self, f"letters_{name}")  # type: ignore[no-any-return]


OTHER_TOKEN = 280
"""The id at which `other_token` has another text."""


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    """Writes all tiny models; well under a second in all."""
    folder = tmp_path_factory.mktemp("tiny")
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1)
    one_layer = tiny.llama_weights(words, seed=3, n_layer=1)
    rows = len(words) + 7
    eos_happy = dict(weights)
    eos_happy["output.weight"] = weights["output.weight"].copy()
    eos_happy["output.weight"][words.eos, 0] = -0.5

    letters = tiny.letter_vocabulary(8)
    small: dict[str, Any] = {"n_embd": 16, "n_ff": 16, "n_layer": 1, "sharpness": 1.5, "flat_bias": True}
    letter_weights = tiny.llama_weights(letters, seed=1, **small)

    deep = tiny.llama_weights(words, seed=1, n_layer=4)
    letters_deep = tiny.llama_weights(letters, seed=1, **{**small, "n_layer": 4})
    gemma4 = target_weights(words, 1)
    letters_gemma4 = target_weights(letters, 1, **{name: small[name] for name in small if name != "n_layer"})

    def llama(name: str, vocabulary: tiny.Vocabulary, tensors: tiny.Weights) -> Path:
        return tiny.write_llama(folder / f"{name}.gguf", vocabulary, tensors)

    target = llama("target", words, weights)
    damaged = folder / "damaged"  # not beside the models, where "auto" would warn of it
    damaged.mkdir()
    truncated = damaged / "truncated.gguf"
    truncated.write_bytes(target.read_bytes()[: target.stat().st_size // 2])
    not_gguf = damaged / "not_gguf.gguf"
    not_gguf.write_bytes(b"this is a text file, not a model\n" * 100)
    return TinyFiles(
        target=target,
        identical=llama("identical", words, weights),
        good=llama("good", words, tiny.noisy(weights, 0.06, seed=2)),
        bad=llama("bad", words, one_layer),
        adversarial=llama("adversarial", words, tiny.adversarial(weights)),
        padded=llama("padded", words.padded(7), tiny.with_rows(weights, rows)),
        padded_draft=llama("padded_draft", words.padded(7), tiny.with_rows(one_layer, rows)),
        larger=llama("larger", words, tiny.llama_weights(words, seed=4, n_layer=6)),
        other_token=llama("other_token", words.with_token(OTHER_TOKEN, "▁zebra"), weights),
        other_bos=llama("other_bos", dataclasses.replace(words, bos=5), weights),
        no_bos=llama("no_bos", dataclasses.replace(words, adds_bos=False), weights),
        other_eos=llama("other_eos", dataclasses.replace(words, eos=6), weights),
        eos_happy=llama("eos_happy", words, eos_happy),
        foreign=llama("foreign", (pairs := tiny.byte_pair_vocabulary()), tiny.llama_weights(pairs, seed=5, n_layer=1)),
        letters=llama("letters", letters, letter_weights),
        letters_identical=llama("letters_identical", letters, letter_weights),
        letters_good=llama("letters_good", letters, tiny.noisy(letter_weights, 0.15, seed=2)),
        letters_bad=llama("letters_bad", letters, tiny.llama_weights(letters, seed=3, **small)),
        letters_adversarial=llama("letters_adversarial", letters, tiny.adversarial(letter_weights)),
        deep=llama("deep", words, deep),
        deep_head=tiny.write_head(folder / "deep_head.gguf", words, fitted_head(words, deep, n_embd=64, first=259)),
        deep_block=write_block_head(
            folder / "deep_block.gguf", "dflash", words, fitted_block_head("dflash", words, deep, first=259)
        ),
        deep_medusa=write_state_head(
            folder / "deep_medusa.gguf", "medusa", words, fitted_state_head("medusa", words, deep, first=259)
        ),
        letters_deep=llama("letters_deep", letters, letters_deep),
        letters_head=tiny.write_head(
            folder / "letters_head.gguf", letters, fitted_head(letters, letters_deep, n_embd=32), n_target=16
        ),
        mtp=tiny.write_mtp(folder / "mtp.gguf", words, fitted_mtp(words, 1)),
        mtp_several=tiny.write_mtp(folder / "mtp_several.gguf", words, fitted_mtp(words, 1, count=2), count=2),
        mtp_hybrid=tiny.write_mtp_hybrid(folder / "mtp_hybrid.gguf", words, seed=1),
        sliding=tiny.write_sliding_window(folder / "sliding.gguf", words, seed=1),
        sliding_draft=tiny.write_sliding_window(folder / "sliding_draft.gguf", words, seed=2),
        recurrent=tiny.write_recurrent(folder / "recurrent.gguf", words, seed=1),
        recurrent_draft=tiny.write_recurrent(folder / "recurrent_draft.gguf", words, seed=2),
        recurrent_good=tiny.write_recurrent(folder / "recurrent_good.gguf", words, seed=1, noise=0.05),
        hybrid=tiny.write_hybrid(folder / "hybrid.gguf", words, seed=1),
        hybrid_draft=tiny.write_hybrid(folder / "hybrid_draft.gguf", words, seed=2),
        hybrid_good=tiny.write_hybrid(folder / "hybrid_good.gguf", words, seed=1, noise=0.03),
        gemma4=write_gemma4(folder / "gemma4.gguf", words, gemma4),
        assistant=write_assistant(folder / "assistant.gguf", words, assistant_weights(words, gemma4, 5, 96, first=259)),
        letters_gemma4=write_gemma4(folder / "letters_gemma4.gguf", letters, letters_gemma4),
        letters_assistant=write_assistant(
            folder / "letters_assistant.gguf", letters, assistant_weights(letters, letters_gemma4, 5, 24)
        ),
        embedding=tiny.write_embedding_model(folder / "embedding.gguf", seed=1),
        embedding_words=tiny.write_embedding_model(folder / "embedding_words.gguf", 1, words),
        lora=tiny.write_lora(folder / "lora.gguf", weights, seed=1),
        truncated=truncated,
        not_gguf=not_gguf,
    )


MakeLlama = Callable[..., "specllama.Llama"]
MakeBase = Callable[..., "llama_cpp.Llama"]
Saying = Callable[..., "specllama.Llama"]
WithTemplate = Callable[..., "specllama.Llama"]


@pytest.fixture
def make_llama(tiny_files: TinyFiles) -> Iterator[MakeLlama]:
    """Opens `specllama.Llama`: one thread, quiet, four drafted tokens, `tiny_files.target` unless told otherwise.

    Closes it afterwards.
    """
    import specllama

    opened: list[specllama.Llama] = []

    def make(model: Path | str | None = None, draft: object = None, **kwargs: Any) -> specllama.Llama:
        kwargs = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **kwargs}
        kwargs = {"num_draft_tokens": 4, **kwargs}
        path = str(tiny_files.target if model is None else model)
        llm = specllama.Llama(path, draft_model=str(draft) if isinstance(draft, Path) else draft, **kwargs)
        opened.append(llm)
        return llm

    yield make
    for llm in opened:
        llm.close()


@pytest.fixture
def make_base(tiny_files: TinyFiles) -> Iterator[MakeBase]:
    """Opens the plain `llama_cpp.Llama` in the same way: what specllama must not differ from."""
    import llama_cpp

    opened: list[llama_cpp.Llama] = []

    def make(model: Path | str | None = None, **kwargs: Any) -> llama_cpp.Llama:
        kwargs = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **kwargs}
        llm = llama_cpp.Llama(str(tiny_files.target if model is None else model), **kwargs)
        opened.append(llm)
        return llm

    yield make
    for llm in opened:
        llm.close()


@pytest.fixture
def saying(make_llama: MakeLlama, tmp_path: Path) -> Saying:
    """Opens a model that says some pieces behind every prompt, with itself as the draft."""
    names = itertools.count()

    def make(pieces: Sequence[str], template: str, special: Sequence[str] = (), **options: Any) -> specllama.Llama:
        path = tiny.write_saying(tmp_path / f"saying{next(names)}.gguf", pieces, template, special)
        return make_llama(path, path, **{"n_ctx": 1024, **options})

    return make


@pytest.fixture
def with_template(tmp_path: Path, make_llama: MakeLlama) -> WithTemplate:
    """Opens the words model with another chat template."""

    def make(template: str, **options: Any) -> specllama.Llama:
        words = dataclasses.replace(tiny.word_vocabulary(), chat_template=template)
        path = tiny.write_llama(tmp_path / "model.gguf", words, tiny.llama_weights(words, seed=1))
        return make_llama(path, **options)

    return make


@contextlib.contextmanager
def _scoring(path: Path) -> Iterator[Scorer]:
    import llama_cpp
    from test_engine_statistics import PROMPT, Scorer

    llm = llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True)
    yield Scorer(llm, PROMPT)
    llm.close()


@pytest.fixture(scope="module")
def scorer(tiny_files: TinyFiles) -> Iterator[Scorer]:
    """Of the model of letters, after the prompt of the statistics."""
    with _scoring(tiny_files.letters) as found:
        yield found


@pytest.fixture(scope="module")
def deep_scorer(tiny_files: TinyFiles) -> Iterator[Scorer]:
    """The same of the one with four layers."""
    with _scoring(tiny_files.letters_deep) as found:
        yield found


@pytest.fixture(scope="module")
def gemma4_scorer(tiny_files: TinyFiles) -> Iterator[Scorer]:
    """The same of the one in the form of Gemma 4."""
    with _scoring(tiny_files.letters_gemma4) as found:
        yield found


@pytest.fixture
def pair(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> Pair:
    """Ours with a draft, and theirs without."""
    return make_llama(draft=tiny_files.good), make_base()


@pytest.fixture(params=["rejection", "block", "coupled"])
def llm(request: pytest.FixtureRequest, make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    """With an identical draft: nearly every round accepts all six tokens, so interruptions fall into a run."""
    return make_llama(draft=tiny_files.identical, num_draft_tokens=6, verify=request.param)


@pytest.fixture
def files(tmp_path: Path, tiny_files: TinyFiles) -> Files:
    """For `specllama batch`, over the tiny pair."""
    from batches import Files

    return Files(tmp_path, tiny_files)


@pytest.fixture
def batch_llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    """What `specllama batch` opens for ``files``, to compare with."""
    return make_llama(draft=tiny_files.good, n_ctx=256, num_draft_tokens="auto")


@pytest.fixture
def open_texts() -> Iterator[Callable[..., ManyTexts]]:
    """Opens places for several texts, which are closed after the test."""
    from several_texts import ManyTexts

    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(ManyTexts(*args, **kwargs)))


@pytest.fixture
def early_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a llama-cpp-python that cannot copy the state of a recurrent model: contexts opened from here on."""
    import llama_cpp

    from specllama import _core
    from specllama.backend import libllama

    known = {found.name for found in _core.required_functions()} | {"llama_model_is_hybrid"}
    addresses = {name: address for name, address in libllama._addresses(llama_cpp).items() if name in known}
    monkeypatch.setattr(libllama, "API", _core.LlamaApi(addresses))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which is the test's own. It does not exist yet."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on this machine, for child processes, and an empty cache."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    with serving_hub() as (handler, url):
        for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("HF_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield handler


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user who has nothing yet."""
    folder = tmp_path / "home"
    for name, place in {
        "HOME": ".",
        "USERPROFILE": ".",
        "LOCALAPPDATA": "local",
        "XDG_CACHE_HOME": "cache",
        "HF_HOME": "hf",
        "LLAMA_CACHE": "llama.cpp",
        "OLLAMA_MODELS": "ollama",
        "SPECLLAMA_CACHE": "specllama",
    }.items():
        monkeypatch.setenv(name, str(folder / place))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    (folder / "specllama" / "models").mkdir(parents=True)
    return folder


@pytest.fixture
def target(tiny_files: TinyFiles, tmp_path: Path) -> Path:
    """A model alone in its folder, where drafts can be laid beside it."""
    path = tmp_path / "models" / "target.gguf"
    path.parent.mkdir()
    shutil.copy(tiny_files.deep, path)
    return path


def _real_model(file: str) -> Path:
    path = REAL_CACHE / "models" / file
    if not path.is_file():
        missing(f"real model {file} is not in the cache; `specllama demo` or `specllama pull` fetches it", MODELS)
    return path


@dataclasses.dataclass(frozen=True)
class RealModels:
    """Paths of the default pair."""

    target: Path
    draft: Path


@pytest.fixture(scope="session")
def real_models() -> RealModels:
    """The default pair; skipped by name when it is missing, failed when SPECLLAMA_REQUIRE_MODELS=1."""
    return RealModels(_real_model(REAL_TARGET), _real_model(REAL_DRAFT))
