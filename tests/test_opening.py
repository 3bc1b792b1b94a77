"""What would end the process when a model is opened, or at its first token, is a ValueError before."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import pytest
import tiny_models as tiny
from damaged import attempts

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

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
        r"token 300, '.*' is said to be a byte, and not of": dataclasses.replace(words, types=types),
        r"token 1, '\[UNK\]' is said to be a byte, which": dataclasses.replace(pieces, types=byte_piece),
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
        (found,) = attempts([tiny_files.target], **{name: value})
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


def test_llama_cpps_own_function_is_left_alone(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    make_llama(lora_path=str(tiny_files.lora))
    assert "errcheck" not in vars(llama_cpp.llama_adapter_lora_init)
