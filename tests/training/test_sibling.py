"""`train-draft --kind sibling`: a small model learns to write as its target does, and stays a model of llama.cpp's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import tiny_models as tiny
from engine import opened
from needed import imported

imported("torch")

import torch
from training_driver import BUDGET, Heard

import specllama
from specllama import cli
from specllama.models.found_drafts import survey
from specllama.models.gguf_values import read_whole_header
from specllama.training.sibling import MATRICES, Lora, Sibling, read_sibling
from specllama.training.target import read_target
from specllama.training.text import Text, read_texts
from specllama.training.train import Budget, counted_rows, trained

if TYPE_CHECKING:
    from conftest import MakeLlama, RealModels, TinyFiles

TEXT = [1, *range(259, 300), 5, 6, 7]
KINDS = ("llama", "qwen2", "qwen3")


def weights_of(kind: str, words: tiny.Vocabulary, seed: int = 7) -> tiny.Weights:
    """Random weights, with what an architecture has besides those of llama."""
    rng, weights = np.random.default_rng(seed), tiny.llama_weights(words, seed=seed)
    for name, weight in list(weights.items()):
        layer, _, each = name.removesuffix(".weight").rpartition(".")
        if kind == "qwen2" and each in ("attn_q", "attn_k", "attn_v"):
            weights[f"{layer}.{each}.bias"] = rng.standard_normal(len(weight)).astype(np.float32)
        if kind == "qwen3" and each in ("attn_q", "attn_k"):
            weights[f"{layer}.{each}_norm.weight"] = rng.uniform(0.5, 2.0, 8).astype(np.float32)
    return weights


def assert_computes_the_same(path: Path, target: Path, most: float) -> None:
    """The trainer's logits and llama.cpp's, all through a text."""
    model = Sibling(read_sibling(str(path), read_target(str(target))), np.arange(259, 301))
    with torch.no_grad():
        found = model.logits(model.states(torch.tensor([TEXT]))[0]).numpy()
    llama = opened(path, n_ctx=512, logits_all=True)
    llama.eval(TEXT)
    expected = llama.scores[: len(TEXT), 259:301]
    assert np.abs(found - expected).max() < most * np.abs(expected).max()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_llama_cpp_does(tmp_path: Path, kind: str, tied: bool) -> None:
    words = tiny.word_vocabulary()
    weights = weights_of(kind, words)
    if tied:
        del weights["output.weight"]
    path = tiny.write_llama(tmp_path / f"{kind}.gguf", words, weights, arch=kind)
    assert_computes_the_same(path, path, 1e-3)  # embeddings are kept in float16


def test_scaled_turns(tmp_path: Path) -> None:
    """Llama 3's: a factor for each frequency, in a tensor."""
    words = tiny.word_vocabulary()
    weights = {**weights_of("llama", words), "rope_freqs.weight": np.array([1.0, 2.0, 8.0, 8.0], np.float32)}
    path = tiny.write_llama(tmp_path / "scaled.gguf", words, weights)
    assert_computes_the_same(path, path, 1e-3)  # embeddings are kept in float16


def test_what_was_learned_is_merged() -> None:
    rng = np.random.default_rng(1)
    learning = Lora(rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal(5).astype(np.float32))
    torch.nn.init.normal_(learning.up)
    x = torch.randn(3, 7)
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, learning.merged(), learning.bias)
        assert torch.allclose(learning(x), expected, atol=1e-4)


def pair(tiny_files: TinyFiles, folder: Path) -> tuple[Path, Path]:
    """A target and a small model in a folder of their own. The small one is a worse copy of the target."""
    words = tiny.word_vocabulary()
    model, small = folder / "model.gguf", folder / "small.gguf"
    shutil.copyfile(tiny_files.target, model)
    worse = tiny.noisy(tiny.llama_weights(words, seed=1), 0.5, 3)
    tiny.write_llama(small, words, worse, {"token_embd.weight": "Q8_0"})
    return model, small


def acceptance(make_llama: MakeLlama, model: Path, draft: Path, texts: list[Text]) -> float:
    """The share of drafted tokens that is accepted when the target writes some texts again."""
    llm = make_llama(model, draft, num_draft_tokens=2)
    for text in texts:
        list(llm.engine.generate(text.tokens[: text.start], max_tokens=text.size, temperature=0.0))
    stats = llm.total_stats
    return stats.num_accepted_tokens / stats.num_draft_tokens


@pytest.mark.long  # test_pard.py has the same of a small model that learns masks besides
def test_it_is_right_more_often(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, cache: Path) -> None:
    model, small = pair(tiny_files, tmp_path)
    budget = Budget(tokens=12_000, answer=64, parallel=4)
    with trained(model, budget, kind="sibling", small=small, threads=1) as made:
        first = made.keep("Q8_0")
    assert first == tmp_path / "sibling-model.gguf"
    (path,) = (cache / "training").glob("*.jsonl")
    texts = [text for text in read_texts(path) if text.is_held_out]
    before, after = (acceptance(make_llama, model, path, texts) for path in (small, first))
    assert after > before + 0.2
    first_right = made.greedy[0]
    assert after == pytest.approx((first_right + first_right**2) / 2, abs=0.1)  # of two, if the first one was right


def test_the_file_is_a_model(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, cache: Path) -> None:
    """What has not learned is as it was, the tokenizer too, and the file says for whom it is."""
    model, small = pair(tiny_files, tmp_path)
    with trained(model, BUDGET, kind="sibling", small=small, threads=1) as made:
        path = made.keep("Q4_0")
    before, after = (read_whole_header(str(one)) for one in (small, path))
    for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.chat_template", "llama.block_count"):
        assert np.array_equal(before[0][name], after[0][name]), name
    assert after[0]["specllama.target.weights"].decode() == made.weights
    kinds = {name: (before[1][name].kind, tensor.kind) for name, tensor in after[1].items()}
    assert kinds["token_embd.weight"] == (int(gguf.GGMLQuantizationType.Q8_0),) * 2
    assert kinds["blk.0.attn_q.weight"] == (0, int(gguf.GGMLQuantizationType.Q4_0))
    old, new = (gguf.GGUFReader(one) for one in (small, path))
    for one in new.tensors:
        if one.name.split(".")[-2] not in MATRICES:
            (same,) = (other for other in old.tensors if other.name == one.name)
            assert np.array_equal(one.data, same.data), one.name
    (found,) = (one for one in survey(str(model)).usable if one.draft_model == str(path))
    assert found.is_of_name
    assert found.acceptance == pytest.approx(made.greedy[0])
    llm = make_llama(model, path)
    assert llm.create_completion("the cat", max_tokens=8)["choices"][0]["text"]


@pytest.mark.parametrize("kind", ["sibling", "pard"])
@pytest.mark.long
def test_the_command(
    tiny_files: TinyFiles, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    model, small = pair(tiny_files, tmp_path)
    line = ["train-draft", str(model), "--tokens", "700", "-n", "32", "-t", "1", "--parallel", "2"]
    assert cli.main([*line, "--kind", kind, "--draft", str(small)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / f'{kind}-model.gguf'}\n"
    assert "times as fast as plain decoding" in err
    assert cli.main([*line, "--kind", kind]) == 2
    assert f"--kind {kind} trains a small model: name it with --draft" in capsys.readouterr().err
    assert cli.main([*line, "--draft", str(small)]) == 2
    assert "--draft is the small model for --kind sibling and --kind pard" in capsys.readouterr().err
    assert cli.main([*line, "--kind", kind, "--draft", str(small), "--from", str(small)]) == 2
    assert "only an EAGLE-3 head can be trained further" in capsys.readouterr().err


def test_it_goes_on_where_it_was(tiny_files: TinyFiles, tmp_path: Path, cache: Path) -> None:
    class Interrupting(Heard):
        def done(self, step: str, done: int, total: int) -> None:
            self.first.setdefault(step.split()[0], done / total)
            if step.startswith(self.end) and done > 0.5 * total:
                raise KeyboardInterrupt

    model, small = pair(tiny_files, tmp_path)
    for step in ("states", "training"):
        with (
            pytest.raises(KeyboardInterrupt),
            trained(model, BUDGET, kind="sibling", small=small, threads=1, progress=Interrupting(step)),
        ):
            pass
    heard = Interrupting("never")
    with trained(model, BUDGET, kind="sibling", small=small, threads=1, progress=heard) as made:
        assert made.keep("Q8_0").is_file()
    assert "text" not in heard.first
    assert "states" not in heard.first


def assert_refused(path: Path, target: Path, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_sibling(str(path), read_target(str(target)))


def test_what_cannot_learn(tiny_files: TinyFiles, tmp_path: Path) -> None:
    words = tiny.word_vocabulary()
    assert_refused(tiny_files.other_token, tiny_files.target, "has other tokens than .*: take a small model of the")
    assert_refused(tiny_files.recurrent, tiny_files.target, "architecture 'mamba'|cannot be trained")
    mixture = tiny.write_llama(tmp_path / "m.gguf", words, tiny.with_experts(tiny.llama_weights(words, seed=1), 1))
    assert_refused(mixture, tiny_files.target, "has the tensor blk.0.ffn_down_exps.weight, which cannot be trained")
    other = tiny.write_llama(tmp_path / "o.gguf", words, tiny.llama_weights(words, seed=1), arch="stablelm")
    assert_refused(other, tiny_files.target, "the architecture 'stablelm', which cannot be trained")


def test_a_vocabulary_with_a_longer_end(tiny_files: TinyFiles) -> None:
    """As of Qwen2.5: the larger models' files have more tokens that nobody writes."""
    start = read_sibling(str(tiny_files.good), read_target(str(tiny_files.padded)))
    assert start.model.n_vocab < read_target(str(tiny_files.padded)).n_vocab


@pytest.mark.parametrize("kind", ["sibling", "pard"])
def test_a_target_that_writes_further_tokens(tiny_files: TinyFiles, tmp_path: Path, cache: Path, kind: str) -> None:
    """The small model learns the tokens that it has."""
    _, small = pair(tiny_files, tmp_path)
    with trained(tiny_files.padded, BUDGET, kind=kind, small=small, output=tmp_path / "d.gguf", threads=1) as made:
        assert made.keep("Q8_0").is_file()
        (rows,) = (cache / "training").glob("*/rows.npy")
        known = read_target(str(small)).n_vocab
        assert np.load(rows).max() == known - 1
    further = Text(1, [5, known + 2, 6], 0)
    assert counted_rows([further], known, lambda count, _: count).tolist() == list(range(known))
    model = Sibling(read_sibling(str(small), read_target(str(tiny_files.padded))), np.arange(3))
    assert model.states(torch.tensor([further.tokens])).isfinite().all()


@pytest.mark.long
def test_a_real_model(real_models: RealModels) -> None:
    """The 0.5B in 4 bits: PyTorch's products are exact, llama.cpp's round the states to 8 bits."""
    target, draft = real_models.target, real_models.draft
    start = read_sibling(str(draft), read_target(str(target)))
    model = Sibling(start, np.arange(0, 1000))
    text = specllama.Llama(str(draft), vocab_only=True, verbose=False).tokenize(b"The capital of France is Paris.")
    with torch.no_grad():
        found = model.logits(model.states(torch.tensor([text]))[0]).numpy()
    llama = opened(Path(draft), n_ctx=64, logits_all=True)
    llama.eval(text)
    expected = llama.scores[: len(text), :1000]
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99
    assert np.abs(found - expected).mean() < 0.5
