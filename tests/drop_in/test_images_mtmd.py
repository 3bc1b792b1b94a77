"""Images through llama_cpp's own handlers and library for them, with a tiny CLIP; in Python and by the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from exact import EXACT_CACHE
from images import asked, image, png
from llama_cpp import llama_chat_format

from specllama.drop_in.images import give_image_handler

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

HANDLERS = [name for name in ("Llava15ChatHandler", "MTMDChatHandler") if hasattr(llama_chat_format, name)]
OPTIONS: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, "repeat_penalty": 1.0}
CAT, DOG = (asked("the cat sat on", image(png(seed)), " and the dog") for seed in (1, 2))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that reads images for `tiny_files.target`."""
    return tiny.write_clip(tmp_path_factory.mktemp("clip") / "mmproj.gguf", seed=1)


def said(llm: Any, messages: Any, **options: Any) -> str:
    """The answer."""
    return str(llm.create_chat_completion(messages, **{**OPTIONS, **options})["choices"][0]["message"]["content"])


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "seeded"])
def test_the_text_is_the_same_with_a_draft(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, clip: Path, handler: str, options: Any
) -> None:
    def seeing(make: Any, **kwargs: Any) -> Any:
        reads = getattr(llama_chat_format, handler)(clip_model_path=str(clip), verbose=False)
        return make(chat_handler=reads, **EXACT_CACHE, **kwargs)

    llm, plain, theirs = seeing(make_llama, draft=tiny_files.good), seeing(make_llama), seeing(make_base)
    texts = [said(plain, messages, **options) for messages in (CAT, DOG, CAT)]
    assert [said(llm, messages, **options) for messages in (CAT, DOG, CAT)] == texts
    assert llm.stats.num_draft_tokens > 0
    assert llm.stats.num_prompt_tokens_reused == llm.stats.num_prompt_tokens - 1
    assert (llm.input_ids[: llm.n_tokens] < 0).sum() == 4, "four patches"
    assert texts[0] != texts[1]
    if not options:
        assert [said(theirs, messages) for messages in (CAT, DOG, CAT)] == texts
    outcomes = llm.create_chat_completions([CAT, DOG, asked("the cat"), CAT], max_parallel=2, **{**OPTIONS, **options})
    assert [outcomes[i].text for i in (0, 1, 3)] == texts


@pytest.mark.skipif("MTMDChatHandler" not in HANDLERS, reason="this llama-cpp-python has no MTMDChatHandler")
def test_chats_without_images_are_under_way_together(make_llama: MakeLlama, tiny_files: TinyFiles, clip: Path) -> None:
    llm = make_llama(draft=tiny_files.good, n_ctx=512, **EXACT_CACHE)
    chats = [{"messages": asked("the cat"), "max_tokens": 300}, {"messages": asked("the dog sat on"), "max_tokens": 2}]
    greedy = {"temperature": 0.0, "logit_bias": {2: -100.0}}
    expected = [said(llm, **chat, **greedy) for chat in chats]
    give_image_handler(llm, clip)
    assert [said(llm, **chat, **greedy) for chat in chats] == expected
    outcomes = list(llm.create_chat_completions(chats, max_parallel=2, stream=True, **greedy))
    assert [(outcome.index, outcome.text) for outcome in outcomes] == [(1, expected[1]), (0, expected[0])]


def test_a_file_that_reads_no_images_for_the_model(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path
) -> None:
    llm = make_llama()
    wide, whole = (tiny.write_clip(tmp_path / f"{size}.gguf", seed=1, n_out=size) for size in (48, 32))
    cut, other = tmp_path / "cut.gguf", tmp_path / "other.gguf"
    cut.write_bytes(whole.read_bytes()[:-500])
    other.write_bytes(whole.read_bytes().replace(b"mlp", b"xyz", 1))
    for path, why in (
        (wide, r"mismatch between text model \(n_embd = 32\) and mmproj \(n_embd = 48\)"),
        (other, "unknown projector type: xyz"),
    ):
        said = f"does not read images for .*: .*{why}.*; give the mmproj file of this model"
        with pytest.raises(ValueError, match=said) as error:
            give_image_handler(llm, path)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"is truncated or damaged: it has .* bytes, and needs more than that"):
        give_image_handler(llm, cut)
    with pytest.raises(ValueError, match="is a model of type 'llama' and reads no images"):
        give_image_handler(llm, tiny_files.target)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        give_image_handler(llm, tmp_path / "none.gguf")
    assert llm.chat_handler is None


def test_nothing_of_a_chat_is_logged(make_llama: MakeLlama, clip: Path, capfd: pytest.CaptureFixture[str]) -> None:
    llm = make_llama()
    give_image_handler(llm, clip)
    assert said(llm, CAT)
    assert capfd.readouterr() == ("", "")


TALK: list[dict[str, Any]] = asked("the cat sat on " * 12, image(png(1)), " and the dog", image(png(2)), " is " * 9)
"""A chat whose images are not decoded twice."""


def decoded(llm: Any, messages: Any) -> tuple[str, int]:
    """The answer, and how many parts of the chat's images were decoded."""
    library, count = llm.chat_handler._mtmd_cpp, []
    original = getattr(library, "_library", library)

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

        def mtmd_helper_eval_chunk_single(self, *given: Any) -> int:
            count.append(1)
            return int(original.mtmd_helper_eval_chunk_single(*given))

    if library is original:
        llm.chat_handler._mtmd_cpp = Counting()
    else:
        library._library = Counting()
    answer = said(llm, messages)
    llm.chat_handler._mtmd_cpp._library = original
    return answer, len(count)


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("draft", [None, "good"])
def test_an_image_is_decoded_once(
    make_llama: MakeLlama, tiny_files: TinyFiles, clip: Path, tmp_path: Path, handler: str, draft: str | None
) -> None:
    """It stays in the context, in memory, and in a folder, for other turns and other processes."""

    def seeing(**kwargs: Any) -> Any:
        reads = getattr(llama_chat_format, handler)(clip_model_path=str(clip), verbose=False)
        file = None if draft is None else getattr(tiny_files, draft)
        return make_llama(draft=file, chat_handler=reads, n_ctx=1024, **EXACT_CACHE, **kwargs)

    answer = {"role": "assistant", "content": "the cat"}
    turns = [TALK, [*TALK, answer, *asked("a fox")], [*TALK, answer, *asked("a dog", image(png(3)))]]
    plain = [said(seeing(), messages) for messages in turns]
    kept = seeing(cache_ram=64, cache_dir=tmp_path)
    assert [decoded(kept, messages) for messages in turns] == [(plain[0], 2), (plain[1], 0), (plain[2], 1)]
    assert said(kept, asked("a fox", image(png(3)))) == said(seeing(), asked("a fox", image(png(3))))
    assert decoded(kept, turns[1]) == (plain[1], 0), "copies in memory"
    kept.close()
    again = seeing(cache_dir=tmp_path)
    assert [decoded(again, messages) for messages in reversed(turns)] == [(text, 0) for text in reversed(plain)]
    without = seeing()
    assert [decoded(without, messages) for messages in turns] == [(plain[0], 2), (plain[1], 0), (plain[2], 1)]


def test_another_file_reads_an_image_anew(
    make_llama: MakeLlama, tiny_files: TinyFiles, clip: Path, tmp_path: Path
) -> None:
    other = tiny.write_clip(tmp_path / "other.gguf", seed=2)
    answers = []
    for path in (clip, other):
        reads = getattr(llama_chat_format, HANDLERS[-1])(clip_model_path=str(path), verbose=False)
        llm = make_llama(chat_handler=reads, n_ctx=1024, cache_dir=tmp_path / "store", **EXACT_CACHE)
        answers.append(decoded(llm, TALK))
        llm.close()
    assert [count for _, count in answers] == [2, 2]
    assert answers[0][0] != answers[1][0]
