"""Packages that take a `llama_cpp.Llama` take ours: the real packages, on a tiny model."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Literal

import pages
import pytest
from needed import imported

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning", "ignore::specllama.FallbackWarning"
    ),
]

PROMPT = "the cat sat on the dog and"
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
ANIMALS = ("cat", "dog")
JSON_TOKENS = 400
"""Enough for a small object of a random model, which likes the blanks that a schema allows."""


def animal_class() -> Any:
    """What JSON answers must be."""
    pydantic = imported("pydantic")
    return pydantic.create_model("Animal", kind=(Literal["cat", "dog"], ...), loud=(bool, ...))


# --- docs/other-packages.md ------------------------------------------------------------------------------------------

EXAMPLES = [block for block in pages.blocks_in("python") if block.page.name == "other-packages.md"]
QUOTE, BRACE = (3 + ord(character) for character in '"}')  # byte tokens


@pytest.mark.filterwarnings("ignore:Chat template:UserWarning")
@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_what_the_page_says(
    make_llama: MakeLlama, tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], block: pages.Block
) -> None:
    for package in re.findall(r"^(?:from|import) (\w+)", block.code, re.M):
        imported(package)
    llm = make_llama(draft=tiny_files.good)
    # Where JSON is due, a random model would go on until its tokens are used up.
    ending = functools.partial(llm.create_chat_completion, logit_bias={QUOTE: 60.0, BRACE: 40.0})
    llm.create_chat_completion = ending  # type: ignore[method-assign]
    exec(compile(block.code, str(block), "exec", dont_inherit=True), {"llm": llm, "__name__": "__main__"})
    assert capsys.readouterr().out.strip()


# --- LangChain -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
def test_langchain_chat(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, streaming: bool) -> None:
    chat_class = imported("langchain_community.chat_models").ChatLlamaCpp
    ours, theirs = make_llama(draft=tiny_files.good), make_base()
    texts = []
    for llm in (ours, theirs):
        options = {"temperature": 0.0, "max_tokens": 20, "streaming": streaming}
        chat = chat_class.model_construct(client=llm, model_path=llm.model_path, **options)
        texts.append(chat.invoke([("system", "a dog"), ("human", PROMPT)]).content)
        assert "".join(chunk.content for chunk in chat.stream(PROMPT)) == chat.invoke(PROMPT).content
    assert texts[0] == texts[1]
    assert ours.stats.num_draft_tokens > 0


def test_langchain_structured_output(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    chat_class = imported("langchain_community.chat_models").ChatLlamaCpp
    llm = make_llama(draft=tiny_files.good)
    chat = chat_class.model_construct(client=llm, model_path=llm.model_path, max_tokens=JSON_TOKENS)
    answer = chat.with_structured_output(animal_class()).invoke(PROMPT)
    assert answer.kind in ANIMALS


def test_langchain_completion(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    completion_class = imported("langchain_community.llms").LlamaCpp
    texts = []
    for llm in (make_llama(draft=tiny_files.good), make_base()):
        options = {"temperature": 0.0, "max_tokens": 20}
        completion = completion_class.model_construct(client=llm, model_path=llm.model_path, **options)
        texts.append(completion.invoke(PROMPT, stop=["zebra"]))
        assert "".join(completion.stream(PROMPT)) == texts[-1]
    assert texts[0] == texts[1]


# --- instructor ------------------------------------------------------------------------------------------------------


def test_instructor(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    instructor = imported("instructor")
    llm = make_llama(draft=tiny_files.good)
    create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.TOOLS)
    answer = create(messages=MESSAGES, response_model=animal_class(), max_tokens=JSON_TOKENS, max_retries=0)
    assert answer.kind in ANIMALS
    assert isinstance(answer.loud, bool)


# --- outlines --------------------------------------------------------------------------------------------------------


def test_outlines(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    outlines = imported("outlines")
    llm = make_llama(draft=tiny_files.good)
    model = outlines.from_llamacpp(llm)
    expected = llm.create_chat_completion(MESSAGES, max_tokens=10, temperature=0.0)["choices"][0]["message"]["content"]
    assert model(PROMPT, max_tokens=10, temperature=0.0) == expected
    # Its default backend needs numba. (No JSON: this one lets a random model write blanks for ever.)
    limits = {"backend": "llguidance", "max_tokens": 20}
    assert model(PROMPT, Literal["cat", "dog"], **limits) in ANIMALS
    assert "".join(model.stream(PROMPT, Literal["cat", "dog"], **limits)) in ANIMALS


# --- guidance --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Chat template:UserWarning")
def test_guidance(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    guidance = imported("guidance")
    llm = make_llama(draft=tiny_files.good)
    before = llm.create_completion(PROMPT, max_tokens=20, temperature=0.0)["choices"][0]["text"]
    model = imported("guidance.models").LlamaCpp(llm, echo=False)
    lm = model + PROMPT + guidance.select(["cat", "dog"], name="animal") + guidance.gen("rest", max_tokens=5)
    assert lm["animal"] in ANIMALS
    assert lm["rest"]
    llm.reset()  # guidance decodes by itself, behind the back of any llama_cpp.Llama
    assert llm.create_completion(PROMPT, max_tokens=20, temperature=0.0)["choices"][0]["text"] == before
