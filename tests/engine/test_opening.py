"""What would end the process when a model is opened, or at its first token, is a ValueError before."""

from __future__ import annotations

import dataclasses
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import pytest
import tiny_models as tiny
from damaged import attempts
from fresh import text_of
from quantized import quantized_model

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="each file is tried in a forked child")
NUM_FLIPS = int(os.environ.get("SPECLLAMA_FLIPS", "45"))  # more on demand: 10,000 take 6 minutes

Change = Callable[[gguf.GGUFWriter], None]
WRONG: dict[str, tuple[Change, str]] = {
    "epsilon": (lambda w: w.add_layer_norm_rms_eps(-1e-5), "layer_norm_rms_epsilon is -.* must be 0 or more"),
    "epsilon NaN": (lambda w: w.add_layer_norm_rms_eps(float("nan")), "layer_norm_rms_epsilon is nan"),
    "layers": (lambda w: w.add_block_count(0), "block_count is 0, and must be from 1 to 512"),
    "many layers": (lambda w: w.add_block_count(513), "block_count is 513"),
    "further layers": (lambda w: w.add_uint32("llama.nextn_predict_layers", 3), "nextn_predict_layers is 3"),
    "scaling": (lambda w: w.add_string("llama.rope.scaling.type", "lineas"), "rope.scaling.type is 'lineas'"),
    "experts": (lambda w: w.add_expert_count(1025), "expert_count is 1025"),
    "experts used": (lambda w: w.add_expert_used_count(2), "expert_count is 0 with expert_used_count 2"),
    "no experts used": (lambda w: w.add_expert_count(4), "expert_count is 4 with expert_used_count 0"),
    "groups": (lambda w: w.add_expert_group_count(2), "2 groups of which 0 are used"),
}


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a model of which something is other."""
    words = tiny.word_vocabulary()

    def write(name: str, change: Change | None = None, vocabulary: tiny.Vocabulary = words) -> Path:
        finish = tiny._finish

        def changed(writer: gguf.GGUFWriter, *tensors: Any) -> None:
            if change is not None:
                (data,) = writer.kv_data
                before = dict(data)
                data.clear()
                change(writer)
                data.update({key: value for key, value in before.items() if key not in data})
            finish(writer, *tensors)

        with monkeypatch.context() as patch:
            patch.setattr(tiny, "_finish", changed)
            return tiny.write_llama(tmp_path / f"{name}.gguf", vocabulary, tiny.llama_weights(vocabulary, seed=1))

    return write


@pytest.mark.sampled(3)
@forks
@pytest.mark.parametrize("name", WRONG)
def test_values_that_llama_cpp_asserts_on(damaged: Callable[..., Path], name: str) -> None:
    change, why = WRONG[name]
    (found,) = attempts([damaged("wrong", change)])
    assert found.startswith("ValueError: cannot load ")
    with pytest.raises(ValueError, match=why):
        specllama.Llama(str(damaged("wrong", change)), verbose=False)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.I8, gguf.GGMLQuantizationType.F64])
def test_matrices_that_llama_cpp_cannot_multiply(tiny_files: TinyFiles, tmp_path: Path, kind: int) -> None:
    data, name = bytearray(tiny_files.target.read_bytes()), b"blk.1.ffn_up.weight"
    place = data.index(name) + len(name) + 4 + 2 * 8  # behind its dimensions
    data[place : place + 4] = int(kind).to_bytes(4, "little")
    data += bytes(1 << 20)  # doubles need more room
    file = tmp_path / "wrong.gguf"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"the tensor blk.1.ffn_up.weight has the type (I8|F64), on which llama.cpp"):
        specllama.Llama(str(file), verbose=False)


@forks
def test_a_key_that_is_no_text_hides_no_value(damaged: Callable[..., Path]) -> None:
    file = damaged("wrong", WRONG["layers"][0])
    file.write_bytes(file.read_bytes().replace(b"general.name", b"general.nam\xe5"))
    (found,) = attempts([file])
    assert "block_count is 0" in found


@forks
def test_vocabularies_that_llama_cpp_asserts_on(damaged: Callable[..., Path]) -> None:
    words = tiny.word_vocabulary()
    types = [*words.types]
    types[300] = int(gguf.TokenType.BYTE)
    no_byte = [*words.types]
    no_byte[3 + 0x3E] = int(gguf.TokenType.NORMAL)
    pieces = tiny.word_piece_vocabulary()
    byte_piece = [*pieces.types]
    byte_piece[1] = int(gguf.TokenType.BYTE)
    vocabularies = {
        r"has the token '<0x53>' twice": words.with_token(3 + 0x82, "<0x53>"),
        r"no token for the byte 0x3E": dataclasses.replace(words, types=no_byte).with_token(3 + 0x3E, "<0z3E>"),
        r"token 300, '.*' has the type of a byte, and not": dataclasses.replace(words, types=types),
        r"token 1, '\[UNK\]' has the type of a byte, and a vocabulary": dataclasses.replace(pieces, types=byte_piece),
        r"bos_token_id is 21: it has no such token": dataclasses.replace(pieces, bos=21),
        r"seperator_token_id is 102: it has no such token": dataclasses.replace(pieces, separator=None),
        r"bos_token_id is 2147483649: it has no such token": dataclasses.replace(words, model="t5", bos=2**31 + 1),
    }
    files = [damaged(f"v{i}", None, vocabulary) for i, vocabulary in enumerate(vocabularies.values())]
    assert [found.partition(":")[0] for found in attempts(files)] == ["ValueError"] * len(files)
    for file, why in zip(files, vocabularies, strict=True):
        with pytest.raises(ValueError, match=why):
            specllama.Llama(str(file), verbose=False)


@pytest.mark.long
@forks
def test_flipped_bytes_end_no_process(tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Anywhere in the header, whatever kind of vocabulary it has."""
    rng = random.Random(3)
    whole = [tiny_files.target, tiny_files.sliding, tiny_files.hybrid]
    for vocabulary in (tiny.byte_pair_vocabulary(), tiny.word_piece_vocabulary()):
        weights = tiny.llama_weights(vocabulary, seed=1)
        whole.append(tiny.write_llama(tmp_path / f"{vocabulary.model}.gguf", vocabulary, weights))
    assert attempts(whole) == ["ok"] * len(whole)
    headers = [(file.read_bytes(), int(gguf.GGUFReader(file).data_offset)) for file in whole]
    files = []
    for i in range(NUM_FLIPS):
        original, end = headers[i % len(headers)]
        data = bytearray(original)
        data[rng.randrange(4, end)] ^= 1 << rng.randrange(8)
        files.append(tmp_path / f"{i}.gguf")
        files[-1].write_bytes(data)
    found = [what for first in range(0, NUM_FLIPS, 100) for what in attempts(files[first : first + 100])]
    assert len(found) == NUM_FLIPS
    assert [(i, what) for i, what in enumerate(found) if what.startswith("signal")] == []
    assert {"ok", "ValueError"} <= {what.partition(":")[0] for what in found}


@pytest.mark.long
@forks
@pytest.mark.parametrize("name", ["type_k", "type_v"])
def test_types_of_the_cache(tiny_files: TinyFiles, name: str) -> None:
    for value, why in ((999, "is no type of a KV cache"), (-1, "is no type"), (24, "is no type"), (8, "heads have 8")):
        (found,) = attempts([tiny_files.target], flash_attn=True, **{name: value})
        assert found.startswith(f"ValueError: {name}={value} ")
        assert why in found
    assert attempts([tiny_files.target], **{name: 30}) == ["ok"]
    with pytest.raises(TypeError, match=f"{name}='f16' must be a number"):
        specllama.Llama(str(tiny_files.target), **{name: "f16"})


@forks
def test_what_is_no_lora(tiny_files: TinyFiles, tmp_path: Path) -> None:
    weights = tiny.llama_weights(tiny.word_vocabulary(), seed=1, n_embd=64)
    of_another = tiny.write_lora(tmp_path / "another.gguf", weights, seed=1)
    for lora, why in (
        (tmp_path / "nowhere.gguf", "does not exist"),
        (tmp_path, "is not a file"),
        (tiny_files.not_gguf, "is not a GGUF file"),
        (tiny_files.target, "is a model and no LoRA adapter"),
        (of_another, "does not fit this model"),
    ):
        (found,) = attempts([tiny_files.target], lora_path=str(lora))
        assert found.startswith("ValueError: "), (lora, found)
        assert why in found
    assert attempts([tiny_files.target], lora_path=str(tiny_files.lora)) == ["ok"]


def test_a_drafts_arguments_are_looked_at_too(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    for wrong in ({"type_k": 999}, {"lora_path": "nowhere.gguf"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make_llama(draft=tiny_files.good, draft_kwargs=wrong)


def test_overridden_metadata(make_llama: MakeLlama) -> None:
    for overrides in ({"llama.attention.layer_norm_rms_epsilon": -1.0}, {"llama.block_count": 0}):
        with pytest.raises(ValueError, match=r"kv_overrides=.*on which llama\.cpp would crash"):
            make_llama(kv_overrides=overrides)


def test_values_of_the_cache_in_blocks_need_flash_attention(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """They have it, unless somebody says no. Whatever llama.cpp says of that: it is no matter of n_ctx."""
    for kwargs in (
        {"type_v": 8, "flash_attn": False},
        {"draft": tiny_files.good, "draft_kwargs": {"type_v": 8, "flash_attn": False}},
    ):
        with pytest.raises(ValueError, match=r"type_v=8 stores blocks of 32 .*: leave flash_attn out$"):
            make_llama(**kwargs)


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_a_cache_of_bytes_drafts_as_any_other(tmp_path: Path, kernels: str) -> None:
    path = str(quantized_model(tmp_path, "Q8_0"))
    q8: dict[str, Any] = {"type_k": 8, "type_v": 8, "kernels": kernels}
    texts = []
    for draft in ({}, {"draft_model": path, "draft_kwargs": q8, "num_draft_tokens": 4}):
        llm = specllama.Llama(path, n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False, **q8, **draft)
        assert llm.has_flash_attention
        texts.append([text_of(llm, prompt, temperature=0.0, max_tokens=24) for prompt in ("the cat", "a dog sat on")])
        assert not draft or llm.total_stats.num_accepted_tokens > 20
        llm.close()
    assert texts[0] == texts[1] or kernels == "off"


def test_metadata_that_mend_a_file_are_there_when_it_is_judged(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, damaged: Callable[..., Path]
) -> None:
    """A value on which llama.cpp would crash, an end token that is another, the size of heads."""
    whole = text_of(make_llama())
    negative = damaged("negative", WRONG["epsilon"][0])
    mended = {"kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 1e-5}}
    assert text_of(make_llama(negative, **mended)) == whole
    llm = make_llama(draft=negative, draft_kwargs=mended)
    assert text_of(llm) == text_of(make_llama(draft=tiny_files.identical))
    other = make_base(tiny_files.other_eos, kv_overrides={"tokenizer.ggml.eos_token_id": 2})
    for draft, draft_kwargs in ((tiny_files.other_eos, {"kv_overrides": other.kv_overrides}), (other, None)):
        llm = make_llama(draft=draft, draft_kwargs=draft_kwargs)
        assert text_of(llm) == text_of(make_llama(draft=tiny_files.identical))
        assert llm.stats.acceptance_rate > 0.9


@pytest.mark.parametrize(
    ("overrides", "error", "why"),
    [
        ({"a": None}, TypeError, "'a': None: a name must be a text, and a value a number or a text"),
        ({5: 5}, TypeError, "5: 5: a name must be a text"),
        ({"a": "x" * 128}, ValueError, "has at most 127 bytes"),
        ({"a" * 128: 1}, ValueError, "has at most 127 bytes"),
        ({"a\0b": 1}, ValueError, "no zero among them"),
        ({"a": 2**70}, ValueError, "which no integer of 64 bits holds"),
        ({"llama.block_count": "two"}, TypeError, "and the file's own value is of the type int"),
        ({"llama.attention.layer_norm_rms_epsilon": 1}, TypeError, "and the file's own value is of the type float"),
    ],
)
def test_metadata_that_llama_cpp_would_pass_over(
    make_llama: MakeLlama, tiny_files: TinyFiles, overrides: Any, error: type[Exception], why: str
) -> None:
    for kwargs in (
        {"kv_overrides": overrides},
        {"draft": tiny_files.good, "draft_kwargs": {"kv_overrides": overrides}},
    ):
        with pytest.raises(error, match=re.escape(why)):
            make_llama(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "error", "why"),
    [
        ({"rope_freq_base": -1.0}, ValueError, "rope_freq_base=-1.0 must be a number from 0 up"),
        ({"rope_freq_scale": float("nan")}, ValueError, "rope_freq_scale=nan must be a number from 0 up"),
        ({"rope_freq_base": "x"}, TypeError, "rope_freq_base='x' must be a number"),
        ({"yarn_attn_factor": float("inf")}, ValueError, "yarn_attn_factor=inf must be a number"),
        ({"rope_freq_base": 10**400}, ValueError, "rope_freq_base=(a number of about 401 digits) must be a number"),
        ({"n_ctx": 10**400}, ValueError, "n_ctx=(a number of about 401 digits) is out of range"),
        ({"yarn_orig_ctx": -5}, ValueError, "yarn_orig_ctx=-5 is out of range"),
        ({"attention_type": 7}, ValueError, "attention_type=7 is out of range"),
        ({"n_gpu_layers": "all"}, TypeError, "n_gpu_layers='all' must be a whole number"),
        ({"tensor_split": [-1.0]}, ValueError, "tensor_split=[-1.0] must be the share of each GPU"),
        ({"lora_path": 5}, TypeError, "lora_path=5 must be the path of a LoRA adapter"),
    ],
)
def test_numbers_without_a_meaning(
    make_llama: MakeLlama, tiny_files: TinyFiles, kwargs: Any, error: type[Exception], why: str
) -> None:
    for given in (kwargs, {"draft": tiny_files.good, "draft_kwargs": kwargs}):
        with pytest.raises(error, match=re.escape(why)):
            make_llama(**given)


CAUSES: dict[str, tuple[Change, str, str]] = {
    "architecture": (
        lambda w: w.add_string("general.architecture", "nope"),
        "unknown model architecture: 'nope'",
        "crash",
    ),
    "type": (lambda w: w.add_string("llama.block_count", "two"), "llama.block_count has wrong type", "crash"),
    "tokenizer": (lambda w: w.add_tokenizer_model("nope"), "unknown tokenizer: 'nope'", "n_ctx"),
    "width": (lambda w: w.add_embedding_length(33), "tensor 'token_embd.weight' has wrong shape", "n_ctx"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_reason_of_a_file_that_does_not_load(
    make_llama: MakeLlama, damaged: Callable[..., Path], name: str
) -> None:
    """It is llama.cpp's, and not that of a look at something else. The same of a draft."""
    change, why, never = CAUSES[name]
    file = damaged("wrong", change)
    for kwargs in ({"model": file}, {"draft": file}):
        with pytest.raises(ValueError, match=re.escape(why)) as error:
            make_llama(**kwargs)
        assert never not in str(error.value)


def test_what_else_is_wrong_with_a_file_has_its_own_advice(
    make_llama: MakeLlama, tiny_files: TinyFiles, damaged: Callable[..., Path], tmp_path: Path
) -> None:
    swapped = tmp_path / "swapped.gguf"
    swapped.write_bytes(b"GGUF\0\0\0\3" + tiny_files.target.read_bytes()[8:])
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_files.lora.read_bytes()[:-300])
    first = tiny.split(tiny_files.target, tmp_path)
    Path(f"{first}".replace("00001-of", "00002-of")).unlink()
    without_size = damaged("without_size", lambda w: w.add_context_length(0))
    for kwargs, why in (
        ({"model": swapped}, "is big-endian, for other processors"),
        ({"lora_path": cut}, r"lora_path: .*cut\.gguf is truncated or damaged: it has"),
        ({"lora_path": tiny_files.lora, "vocab_only": True}, "lora_path .* leave it out with vocab_only=True"),
        ({"model": first}, "No such file or directory.*; its 2 parts must be in one folder"),
        ({"draft": first}, "No such file or directory.*; its 2 parts must be in one folder"),
        ({"model": without_size, "n_ctx": 0}, r"n_ctx=0 takes .* its file says none: give n_ctx"),
    ):
        with pytest.raises(ValueError, match=why):
            make_llama(**kwargs)
    assert text_of(make_llama(without_size)) == text_of(make_llama())


def test_llama_cpps_own_function_is_left_alone(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    make_llama(lora_path=str(tiny_files.lora))
    assert "errcheck" not in vars(llama_cpp.llama_adapter_lora_init)
