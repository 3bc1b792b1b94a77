"""Outputs are those of llama_cpp.Llama, field for field, wherever its behaviour is well defined: greedy, hence deterministic."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"
MESSAGES = [{"role": "system", "content": "no fox"}, {"role": "user", "content": "is the cat on the dog?"}]
Pair = tuple[specllama.Llama, llama_cpp.Llama]


@pytest.fixture
def pair(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> Pair:
    """Ours with a draft, and theirs without."""
    return make_llama(draft=tiny_files.good), make_base()


def comparable(response: Any) -> Any:
    """A response without what differs from call to call."""
    response = copy.deepcopy(response)
    for key in ("id", "created"):
        assert response.pop(key)
    return response


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal but for rounding in log-probabilities, which the base class gives as np.float32."""
    theirs = float(theirs) if isinstance(theirs, np.floating) else theirs
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=2e-4)
    else:
        assert ours == theirs


def complete(pair: Pair, prompt: Any = PROMPT, **settings: Any) -> Any:
    """Both complete greedily; asserts that they agree."""
    settings = {"temperature": 0.0, "max_tokens": 30, **settings}
    ours, theirs = (comparable(llm.create_completion(prompt, **settings)) for llm in pair)
    assert_same(ours, theirs)
    return ours


@pytest.mark.parametrize("prompt", [PROMPT, "the", "Zürich ☺", [1, 270, 280, 290], "a dog. " * 40])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 30])
def test_completion(pair: Pair, prompt: Any, max_tokens: int) -> None:
    complete(pair, prompt, max_tokens=max_tokens)


def test_empty_prompt(pair: Pair) -> None:
    """It means BOS alone. The base class counts that BOS as generated, and so stops one token early."""
    llm, base = pair
    for max_tokens in (1, 2, 9):
        ours = llm.create_completion("", temperature=0.0, max_tokens=max_tokens)
        theirs = base.create_completion("", temperature=0.0, max_tokens=max_tokens + 1)
        assert ours["choices"] == theirs["choices"]
        assert ours["usage"] == {"prompt_tokens": 1, "completion_tokens": max_tokens, "total_tokens": max_tokens + 1}


def test_call_is_completion(pair: Pair) -> None:
    ours, theirs = (comparable(llm(PROMPT, temperature=0.0, max_tokens=12)) for llm in pair)
    assert_same(ours, theirs)
    assert comparable(pair[0](PROMPT, temperature=0.0, max_tokens=12, num_draft_tokens=0, verify="coupled")) == ours


@pytest.mark.parametrize("echo", [False, True])
def test_stop_strings(pair: Pair, echo: bool) -> None:
    whole = complete(pair, max_tokens=40)["choices"][0]["text"]
    for stop in ([whole[5:7]], whole[8:12], [whole[20:22], whole[10:13]], ["not there"], ["x" * 400], []):
        out = complete(pair, max_tokens=40, stop=stop, echo=echo)
        if stop and stop != ["not there"] and stop != ["x" * 400]:
            assert out["choices"][0]["finish_reason"] == "stop"


def test_echo_and_suffix(pair: Pair) -> None:
    assert complete(pair, echo=True)["choices"][0]["text"].startswith(PROMPT)
    complete(pair, suffix=" no fox")
    complete(pair, suffix="")


def test_end_of_generation_token(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    pair = (make_llama(tiny_files.eos_happy, tiny_files.good), make_base(tiny_files.eos_happy))
    reasons = set()
    for word in ("the", "a dog", "no", "cat sat", "in on at", "fox. the dog", "it is", "to do", "b", "see", "or an ox"):
        out = complete(pair, word, max_tokens=60)
        reasons.add(out["choices"][0]["finish_reason"])
        complete(pair, word, max_tokens=60, logit_bias={2: 3.0})
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize(
    "settings",
    [
        {"repeat_penalty": 1.3},
        {"frequency_penalty": 0.8, "presence_penalty": -0.4},
        {"logit_bias": {280: 3.0, 265: -100.0}},
        {"logit_bias": {270: 2.0}, "repeat_penalty": 1.2},
        {"top_k": 1, "temperature": 0.7},
        {"model": "a name"},
        {"seed": 3},
        {"typical_p": 0.5, "top_p": 0.1, "min_p": 0.5},
    ],
    ids=str,
)
def test_sampling_arguments(pair: Pair, settings: dict[str, Any]) -> None:
    complete(pair, **settings)


def stream(llm: llama_cpp.Llama, prompt: Any = PROMPT, **settings: Any) -> list[Any]:
    settings = {"temperature": 0.0, "max_tokens": 30, **settings}
    return [comparable(chunk) for chunk in llm.create_completion(prompt, stream=True, **settings)]


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("prompt", [PROMPT, "the", [1, 270, 280]])
@pytest.mark.parametrize("max_tokens", [1, 5, 30])
def test_stream(pair: Pair, prompt: Any, max_tokens: int) -> None:
    ours, theirs = (stream(llm, prompt, max_tokens=max_tokens) for llm in pair)
    assert text_of(ours) == text_of(theirs)
    assert_same(ours[-1], theirs[-1])
    assert ours[-1]["choices"][0]["finish_reason"] == "length"
    assert text_of(ours) == complete(pair, prompt, max_tokens=max_tokens)["choices"][0]["text"]
    assert {tuple(chunk) for chunk in ours} == {tuple(chunk) for chunk in theirs}


def test_stream_with_stop_strings_leaks_nothing(pair: Pair) -> None:
    whole = text_of(stream(pair[0], max_tokens=40))
    for begin in range(2, 30, 4):
        stop = whole[begin : begin + 3]
        for gamma in (0, 4, 8):
            chunks = stream(pair[0], max_tokens=40, stop=[stop], num_draft_tokens=gamma)
            assert text_of(chunks) == whole[: whole.index(stop)]
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_streams_of_broken_utf8_equal_the_whole_text(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Multi-byte characters arrive whole, whatever the tokens cut them into."""
    llm = make_llama(draft=tiny_files.identical)
    smile = {3 + byte: 9.0 for byte in "☺é".encode()}
    for seed in range(6):
        settings: dict[str, Any] = {"temperature": 1.0, "seed": seed, "logit_bias": smile}
        whole = llm.create_completion(PROMPT, max_tokens=40, **settings)["choices"][0]["text"]
        assert text_of(stream(llm, max_tokens=40, **settings)) == whole
    assert any(ord(c) > 127 for c in whole)


@pytest.mark.parametrize("num", [0, 1, 5])
@pytest.mark.parametrize("echo", [False, True])
def test_logprobs(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, num: int, echo: bool) -> None:
    """The base class needs logits_all=True for it; ours does not, and allocates no such buffer."""
    pair = (make_llama(draft=tiny_files.good), make_base(logits_all=True))
    out = complete(pair, max_tokens=12, logprobs=num, echo=echo)
    logprobs = out["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) >= 12
    known = [p for p in logprobs["token_logprobs"] if p is not None]
    assert all(p < 0 for p in known)
    assert len(set(known)) > 5, "the accepted tokens' logprobs are their own"


def test_logprobs_are_the_same_for_every_gamma(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    results = [
        llm.create_completion(PROMPT, max_tokens=25, temperature=0.0, logprobs=3, num_draft_tokens=gamma)["choices"][0]
        for gamma in (0, 3, 8)
    ]
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_stream_with_logprobs(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    ours, theirs = make_llama(draft=tiny_files.good), make_base(logits_all=True)
    chunks = [stream(llm, max_tokens=10, logprobs=2) for llm in (ours, theirs)]
    assert text_of(chunks[0]) == text_of(chunks[1])
    values = [
        [p for chunk in c if chunk["choices"][0]["logprobs"] for p in chunk["choices"][0]["logprobs"]["token_logprobs"]]
        for c in chunks
    ]
    assert len(values[0]) == 10
    assert values[0][1:] == pytest.approx(values[1][1:], abs=2e-4)


@pytest.mark.parametrize("max_tokens", [None, 0, -1, 5])
def test_chat(pair: Pair, max_tokens: int | None) -> None:
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": max_tokens}
    ours, theirs = (comparable(llm.create_chat_completion(MESSAGES, **settings)) for llm in pair)
    assert_same(ours, theirs)
    assert ours["choices"][0]["message"]["content"]


def test_chat_options_and_streams(pair: Pair) -> None:
    llm, base = pair
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20}
    chunks = list(llm.create_chat_completion(MESSAGES, stream=True, num_draft_tokens=2, verify="rejection", **settings))
    assert llm.stats.verify == "rejection"
    assert len(llm.stats.num_accepted_tokens_per_pos) == 2
    theirs = list(base.create_chat_completion(MESSAGES, stream=True, **settings))
    assert [comparable(c)["choices"][0]["finish_reason"] for c in chunks][-1] == "length"
    texts = ["".join(c["choices"][0]["delta"].get("content") or "" for c in cs) for cs in (chunks, theirs)]
    assert texts[0] == texts[1] != ""
    llm.create_chat_completion(MESSAGES, num_draft_tokens=0, **settings)
    assert llm.stats.num_drafts == 0
    llm.create_chat_completion(MESSAGES, **settings)
    assert llm.stats.num_drafts > 0
    assert llm.num_draft_tokens == 4


def test_chat_stop_and_openai_v1(pair: Pair) -> None:
    whole = pair[0].create_chat_completion(MESSAGES, temperature=0.0, max_tokens=20)["choices"][0]["message"]["content"]
    for llm in pair:
        out = llm.create_chat_completion(MESSAGES, temperature=0.0, max_tokens=20, stop=[whole[4:7]])
        assert out["choices"][0]["message"]["content"] == whole[: whole.index(whole[4:7])]
        assert out["choices"][0]["finish_reason"] == "stop"


def test_stopping_criteria(pair: Pair) -> None:
    def after(n: int) -> llama_cpp.StoppingCriteriaList:
        start = len(pair[1].tokenize(PROMPT.encode()))
        return llama_cpp.StoppingCriteriaList([lambda tokens, logits: len(tokens) >= start + n])

    for n in (0, 1, 5):
        complete(pair, stopping_criteria=after(n))


def test_generate_and_stopping_criteria(pair: Pair) -> None:
    llm, base = pair
    tokens = base.tokenize(PROMPT.encode())
    for n in (0, 1, 4, 9):
        criteria = llama_cpp.StoppingCriteriaList([lambda ids, logits, n=n: len(ids) == len(tokens) + n])
        texts = [list(one.generate(tokens, temp=0.0, stopping_criteria=criteria)) for one in (llm, base)]
        assert texts[0] == texts[1]
        assert len(texts[0]) == n


def test_max_tokens_of_the_whole_context(pair: Pair) -> None:
    complete(pair, max_tokens=None)
    complete(pair, max_tokens=0)
    complete(pair, max_tokens=-5)
    assert complete(pair, max_tokens=10_000)["usage"]["total_tokens"] == 512


def test_infill_models_and_spm_infill(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    pair = (make_llama(draft=tiny_files.good, spm_infill=True), make_base(spm_infill=True))
    complete(pair, suffix=" the dog")


def test_embedding_and_tokenizing_methods(make_llama: MakeLlama, make_base: MakeBase) -> None:
    ours, theirs = make_llama(), make_base()
    text = "the cat ☺"
    assert ours.tokenize(text.encode()) == theirs.tokenize(text.encode())
    assert ours.detokenize([280, 270]) == theirs.detokenize([280, 270])
    for name in ("n_ctx", "n_embd", "n_vocab", "token_eos", "token_bos", "token_nl"):
        assert getattr(ours, name)() == getattr(theirs, name)()


def test_eval_and_sample_of_the_base_class(pair: Pair) -> None:
    """The low-level methods still work on their own."""
    results = []
    for llm in pair:
        llm.reset()
        llm.eval(llm.tokenize(PROMPT.encode()))
        results.append(llm.sample(temp=0.0))
    assert results[0] == results[1]


GRAMMAR = 'root ::= ("cat" | "dog") " " root'


def yes_processor(input_ids: Any, scores: Any) -> Any:
    """Makes one token a little likelier."""
    scores = np.copy(scores)
    scores[280] += 2.0
    return scores


FALLBACKS: dict[str, dict[str, Any]] = {
    "grammar": {"grammar": "GRAMMAR", "temperature": 0.0},
    "logits processor": {"logits_processor": llama_cpp.LogitsProcessorList([yes_processor]), "temperature": 0.0},
    "logits processor and bias": {
        "logits_processor": llama_cpp.LogitsProcessorList([yes_processor]),
        "logit_bias": {290: 1.0},
        "temperature": 0.0,
    },
    "mirostat 1": {"mirostat_mode": 1, "temperature": 0.8, "seed": 3},
    "mirostat 2": {"mirostat_mode": 2, "temperature": 0.8, "seed": 3},
}


def fallback_settings(name: str) -> dict[str, Any]:
    settings = {"max_tokens": 15, **FALLBACKS[name]}
    if "grammar" in settings:
        settings["grammar"] = llama_cpp.LlamaGrammar.from_string(GRAMMAR, verbose=False)
    return settings


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_cannot_be_exact_yet_decodes_plainly_and_says_so_once(pair: Pair, name: str) -> None:
    llm, base = pair
    if name == "logits processor and bias":
        with pytest.warns(specllama.FallbackWarning, match="logits processor"):
            llm.create_completion(PROMPT, **fallback_settings(name))
    else:
        theirs = comparable(base.create_completion(PROMPT, **fallback_settings(name)))
        with pytest.warns(specllama.FallbackWarning, match=name.removesuffix(" 1").removesuffix(" 2")):
            ours = comparable(llm.create_completion(PROMPT, **fallback_settings(name)))
        assert_same(ours, theirs)
    assert llm.stats.num_drafts == 0
    assert llm.stats.num_draft_tokens_decoded == 0
    assert name.split()[0] in (llm.stats.fallback_reason or "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.create_completion(PROMPT, **fallback_settings(name))  # not a second time
    complete(pair)
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_drafts > 0


def test_a_grammar_is_never_ignored(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.warns(specllama.FallbackWarning):
        text = llm.create_completion(PROMPT, **fallback_settings("grammar"))["choices"][0]["text"]
    assert set(text.split()) <= {"cat", "dog", "c", "ca", "d", "do"}


def test_a_processor_and_a_bias_are_both_applied(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    ban = llama_cpp.LogitsProcessorList([lambda ids, scores: np.where(np.arange(len(scores)) == 280, -np.inf, scores)])
    with pytest.warns(specllama.FallbackWarning):
        tokens = llm.create_completion(PROMPT, max_tokens=20, temperature=0.0, logits_processor=ban, logit_bias={280: 50.0})
    assert llm.detokenize([280]).decode() not in tokens["choices"][0]["text"]


def test_without_a_draft_nothing_warns(make_llama: MakeLlama, make_base: MakeBase) -> None:
    pair = (make_llama(), make_base())
    complete(pair)
    for name in ("grammar", "logits processor", "mirostat 2"):
        complete(pair, **fallback_settings(name))
        assert pair[0].stats.num_tokens > 0


def test_stats(pair: Pair) -> None:
    llm, _ = pair
    complete(pair, max_tokens=30)
    first = llm.stats
    fields = (
        "num_prompt_tokens num_prompt_tokens_reused num_tokens num_drafts num_draft_tokens num_accepted_tokens "
        "num_accepted_tokens_per_pos acceptance_rate mean_acceptance_length expected_acceptance argmax_acceptance "
        "prompt_seconds draft_seconds verify_seconds sample_seconds rollback_seconds total_seconds tokens_per_second "
        "verify rollback fallback_reason"
    ).split()
    as_dict = first.to_dict()
    assert list(as_dict)[: len(fields)] == fields
    assert first.num_tokens == 30
    assert first.num_prompt_tokens == len(llm.tokenize(PROMPT.encode()))
    assert first.acceptance_rate == first.num_accepted_tokens / first.num_draft_tokens
    assert first.mean_acceptance_length == 1 + first.num_accepted_tokens / first.num_drafts
    assert sum(first.num_accepted_tokens_per_pos) == first.num_accepted_tokens
    assert 0 < first.expected_acceptance <= 1
    assert first.total_seconds > 0
    assert "30 tokens" in str(first)
    with pytest.raises(AttributeError):
        first.num_tokens = 1  # type: ignore[misc]
    complete(pair, max_tokens=20)
    assert llm.stats.num_tokens == 20
    total = llm.total_stats
    assert total.num_tokens == 50
    assert total.num_drafts == first.num_drafts + llm.stats.num_drafts
    assert total.num_accepted_tokens == first.num_accepted_tokens + llm.stats.num_accepted_tokens
    import json

    assert json.loads(json.dumps(total.to_dict()))["num_tokens"] == 50


def test_stats_before_anything(make_llama: MakeLlama) -> None:
    llm = make_llama()
    assert llm.stats == llm.total_stats == specllama.Stats()
    assert str(llm.stats)


def test_no_buffer_of_n_ctx_times_n_vocab(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, logits_all=True)
    llm.create_completion(PROMPT, max_tokens=5, logprobs=2)
    for name, value in vars(llm).items():
        if isinstance(value, np.ndarray):
            assert value.size < 4 * max(llm.n_vocab(), llm.n_ctx()), name


def test_signatures_are_those_of_the_base_class_plus_two(make_llama: MakeLlama) -> None:
    for name in ("generate", "create_completion", "__call__", "create_chat_completion"):
        theirs = inspect.signature(getattr(llama_cpp.Llama, name)).parameters
        ours = inspect.signature(getattr(specllama.Llama, name)).parameters
        assert set(ours) - set(theirs) == {"num_draft_tokens", "verify"}
        assert {key: p.default for key, p in theirs.items()} == {key: ours[key].default for key in theirs}
    with pytest.raises(TypeError, match="temprature"):
        make_llama().create_completion("x", temprature=1)  # type: ignore[call-arg]


def test_options_as_attributes(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=2, verify="rejection")
    assert (llm.num_draft_tokens, llm.verify) == (2, "rejection")
    llm.num_draft_tokens, llm.verify = 3, "block"
    llm.create_completion(PROMPT, max_tokens=30)
    assert llm.stats.verify == "block"
    assert len(llm.stats.num_accepted_tokens_per_pos) == 3


def test_pickling(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=3, seed=5)
    copied = pickle.loads(pickle.dumps(llm))
    assert (copied.num_draft_tokens, copied.draft_model.model_path) == (3, str(tiny_files.good))
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 10}
    assert comparable(copied.create_completion(PROMPT, **settings)) == comparable(llm.create_completion(PROMPT, **settings))
    copied.close()


def test_lora_of_the_target(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    lora = str(tiny_files.lora)
    plain = complete((make_llama(draft=tiny_files.good), make_base()))
    adapted = complete((make_llama(draft=tiny_files.good, lora_path=lora), make_base(lora_path=lora)))
    assert adapted["choices"] != plain["choices"]


def test_quantised_kv_cache(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    kwargs = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    complete((make_llama(draft=tiny_files.good, **kwargs), make_base(**kwargs)))


def test_flash_attention(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    complete((make_llama(draft=tiny_files.good, flash_attn=True), make_base(flash_attn=True)))


def test_from_pretrained(monkeypatch: pytest.MonkeyPatch, tiny_files: TinyFiles) -> None:
    """The hub is replaced by the folder of tiny models: what matters is that our arguments get through."""
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="from_pretrained needs huggingface_hub")

    class FakeFileSystem:
        def ls(self, repo: str, recursive: bool = True) -> list[dict[str, str]]:
            return [{"name": f"{repo}/{tiny_files.target.name}"}]

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", FakeFileSystem)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda **_: str(tiny_files.target))
    llm = specllama.Llama.from_pretrained(
        "somebody/tiny",
        "target.gguf",
        local_dir=tiny_files.target.parent,
        draft_model=str(tiny_files.good),
        num_draft_tokens=2,
        verbose=False,
        n_threads=1,
    )
    llm.create_completion(PROMPT, max_tokens=5)
    assert isinstance(llm, specllama.Llama)
    assert llm.stats.num_drafts > 0
    llm.close()
