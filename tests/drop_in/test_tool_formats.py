"""Forms of calls and thoughts: read alike wherever an answer is cut, with nothing lost."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specllama.chat.formats.kinds import FORMATS, read_answer, taught_by
from specllama.chat.formats.llama3 import BARE
from specllama.chat.formats.reading import Reader, Reading
from specllama.chat.formats.thinking import is_closed, is_open

BY_NAME = {form.name: form for form in (*FORMATS, BARE)}
TEXT = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS: dict[str, Any] = {"look": TEXT, "add": {}}
THINK = (("<think>",), ("</think>",))
LOOK, ADD = ("look", {"path": 'a "b"\n', "n": 1}), ("add", {})


def read(form: str | None, pieces: list[str], **options: Any) -> dict[str, Any]:
    """What an answer in these pieces says: the text of its parts, and (name, arguments) of its calls."""
    how = {name: options.pop(name) for name in ("parallel",) if name in options}
    reading = Reading(TOOLS, has_calls=form is not None, **how)
    reader = Reader(reading, read_answer(reading, None if form is None else BY_NAME[form], **options))
    said: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    for delta in [*map(reader.feed, pieces), reader.end()]:
        for name in ("content", "reasoning_content"):
            said[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                assert call["index"] == len(said["calls"]) and function["name"]
                said["calls"].append([function["name"], ""])
            assert call["index"] == len(said["calls"]) - 1
            said["calls"][-1][1] += function["arguments"]
    return said


def calls_of(said: dict[str, Any]) -> list[Any]:
    return [(name, json.loads(arguments)) for name, arguments in said["calls"]]


def arguments(call: tuple[str, dict[str, Any]]) -> str:
    return json.dumps(call[1])


def as_json(call: tuple[str, dict[str, Any]], key: str = "arguments") -> str:
    return f'{{"name": "{call[0]}", "{key}": {arguments(call)}}}'


def hermes(call: tuple[str, dict[str, Any]]) -> str:
    return f"<tool_call>\n{as_json(call)}\n</tool_call>"


def fenced(call: tuple[str, dict[str, Any]]) -> str:
    body = f"function<｜tool▁sep｜>{call[0]}\n```json\n{arguments(call)}\n```"
    return f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"


def short(call: tuple[str, dict[str, Any]]) -> str:
    return f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{arguments(call)}<｜tool▁call▁end｜>"


Q = '<|"|>'


def gemma(call: tuple[str, dict[str, Any]], quote: str, begin: str = "<|tool_call>", end: str = "<tool_call|>") -> str:
    values = [f"{quote}{value}{quote}" if isinstance(value, str) else str(value) for value in call[1].values()]
    pairs = ",".join(f"{key}:{value}" for key, value in zip(call[1], values, strict=True))
    return f"{begin}call:{call[0]}{{{pairs}}}{end}"


def xml(call: tuple[str, dict[str, Any]]) -> str:
    parts = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call[1].items())
    return f"<tool_call>\n<function={call[0]}>\n{parts}</function>\n</tool_call>"


def glm(call: tuple[str, dict[str, Any]], line: str = "\n") -> str:
    values = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in call[1].items()]
    pairs = [f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in values]
    return f"<tool_call>{call[0]}{line}{''.join(pairs)}</tool_call>"


def invoke(call: tuple[str, dict[str, Any]]) -> str:
    values = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in call[1].items()]
    pairs = [f'<parameter name="{key}">{value}</parameter>\n' for key, value in values]
    return f'<invoke name="{call[0]}">\n{"".join(pairs)}</invoke>\n'


def kimi(call: tuple[str, dict[str, Any]], number: int) -> str:
    name = f"functions.{call[0]}:{number}"
    return f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments(call)}<|tool_call_end|>"


def python(call: tuple[str, dict[str, Any]]) -> str:
    return f"{call[0]}({', '.join(f'{key}={json.dumps(value)}' for key, value in call[1].items())})"


def params(call: tuple[str, dict[str, Any]]) -> str:
    """As MiniCPM5 writes them."""
    values = [(key, f"<![CDATA[{value}]]>" if isinstance(value, str) else value) for key, value in call[1].items()]
    pairs = "".join(f'<param name="{key}">{value}</param>' for key, value in values)
    return f'<function name="{call[0]}">{pairs}</function>'


def seed(call: tuple[str, dict[str, Any]]) -> str:
    pairs = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in call[1].items())
    return f"<seed:tool_call>\n<function={call[0]}>\n{pairs}</function>\n</seed:tool_call>"


def numbered(call: tuple[str, dict[str, Any]], number: int) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": "{call[0]}", "parameters": {arguments(call)}}}'


def atem(call: tuple[str, dict[str, Any]]) -> str:
    pairs = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in call[1].items())
    body = f'<atem:function_calls>\n<atem:invoke name="{call[0]}">\n{pairs}</atem:invoke>\n</atem:function_calls>'
    return f" to={call[0]}<|message|>{body}"


NEXT = "<|eom|><|start|>assistant"
PYTHON = "<|tool_call_start|>[{}]<|tool_call_end|>"
SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
MINIMAX = "<minimax:tool_call>\n{}</minimax:tool_call>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
TO = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
SAYS = "<|channel|>final<|message|>Hi, <b>you</b>."

# The form, what a model wrote, its content, its calls.
WRITTEN: list[tuple[str, str, str, list[Any]]] = [
    ("hermes", f"Well.\n{hermes(LOOK)}\n{hermes(ADD)}", "Well.", [LOOK, ADD]),
    ("hermes", f"{hermes(LOOK)} and {hermes(ADD)} so", "and\nso", [LOOK, ADD]),
    ("hermes", '<tool_call>{"arguments": {"n": 1}, "name": "x"}</tool_call>', "", [("x", {"n": 1})]),
    ("hermes", '<tool_call>{"name": "look", "arguments": "{\\"n\\": 2}"}</tool_call>', "", [("look", {"n": 2})]),
    ("hermes", '<tool_call>{"name": "look"}</tool_call>', "", [("look", {})]),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"n": 1}\n</tool_call>.', ".", [("look", {"n": 1})]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"s": "</tool_call>"}}', "", [("a", {"s": "</tool_call>"})]),
    ("hermes", "a <tool_call> is <tool_ca", "a <tool_call> is <tool_ca", []),
    ("hermes", f"<tool_call>{hermes(ADD)}", "<tool_call>", [ADD]),
    ("hermes", '<tool_call>{"name": ""}', '<tool_call>{"name": ""}', []),
    ("hermes", '{"name": "look", "arguments": {}}\n', "", [("look", {})]),
    ("hermes", f"Well:\n```json\n{as_json(LOOK)}\n{as_json(ADD)}\n```\nSo.", "Well:\nSo.", [LOOK, ADD]),
    ("hermes", f"{as_json(LOOK)}\n{as_json(ADD)}\nSo.", "So.", [LOOK, ADD]),
    ("hermes", f"<tools>{as_json(LOOK)}</tools>", "", [LOOK]),
    ("hermes", f"{{{as_json(LOOK)}", "", [LOOK]),
    ("hermes", f"<tool_call>\n{{{as_json(LOOK)}}}\n</tool_call> So.", "So.", [LOOK]),
    ("hermes", f"```json\n{{{as_json(LOOK)}}}\n{{{as_json(ADD)}\n```\nSo.", "So.", [LOOK, ADD]),
    ("hermes", '{{"name": "Ann"}}', '{{"name": "Ann"}}', []),
    ("hermes", '```json\n{"name": "Ann"}\n```', '```json\n{"name": "Ann"}\n```', []),
    ("hermes", '{"name": "look"}', '{"name": "look"}', []),
    ("hermes", f"It is {as_json(LOOK)}.", f"It is {as_json(LOOK)}.", []),
    ("llama3", as_json(LOOK, "parameters"), "", [LOOK]),
    ("llama3", f"\n{as_json(LOOK, 'parameters')}; {as_json(ADD, 'parameters')}", "", [LOOK, ADD]),
    ("llama3", f"So: <|python_tag|>{as_json(LOOK, 'parameters')}", "So:", [LOOK]),
    ("llama3", f'{{"type": "function", {as_json(LOOK)[1:]}', "", [LOOK]),
    ("llama3", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    ("llama3", '{"city": "Bonn"} ', '{"city": "Bonn"} ', []),
    ("llama3", f"It is {as_json(LOOK)}", f"It is {as_json(LOOK)}", []),
    ("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("bare", as_json(LOOK), "", [LOOK]),
    ("mistral-list", f"[TOOL_CALLS][{as_json(LOOK)}, {as_json(ADD)}]", "", [LOOK, ADD]),
    ("mistral-list", f'[TOOL_CALLS] [{as_json(LOOK)[:-1]}, "id": "abcdefghi"}}]', "", [LOOK]),
    ("mistral-list", "[TOOL_CALLS][oh]", "[TOOL_CALLS][oh]", []),
    ("mistral", f"Hm.[TOOL_CALLS]look[ARGS]{arguments(LOOK)}[TOOL_CALLS]add[CALL_ID]abc[ARGS]{{}}", "Hm.", [LOOK, ADD]),
    ("mistral", "[TOOL_CALLS]look{}", "", [("look", {})]),
    ("mistral", "[TOOL_CALLS]look", "[TOOL_CALLS]look", []),
    ("deepseek-fenced", f"Hm.{BEGIN}{fenced(LOOK)}\n{fenced(ADD)}{END}", "Hm.", [LOOK, ADD]),
    ("deepseek", f"{BEGIN}{short(LOOK)}{short(ADD)}{END}", "", [LOOK, ADD]),
    ("deepseek", f"{BEGIN}so", f"{BEGIN}so", []),
    ("deepseek", f"{BEGIN}<｜tool▁call▁begin｜>look", f"{BEGIN}<｜tool▁call▁begin｜>look", []),
    ("gemma4", f"{gemma(LOOK, Q)}<|tool_call>call:add{{}}<tool_call|>", "", [LOOK, ADD]),
    (
        "gemma4",
        f"<|tool_call>call:a{{x:[1,true,{{k:{Q}v{Q}}}]}}<tool_call|>",
        "",
        [("a", {"x": [1, True, {"k": "v"}]})],
    ),
    ("gemma4", "<|tool_call>so", "<|tool_call>so", []),
    ("function-gemma", gemma(LOOK, "<escape>", "<start_function_call>", "<end_function_call>"), "", [LOOK]),
    ("qwen-xml", f"Well.\n\n{xml(LOOK)}\n{xml(ADD)}", "Well.", [LOOK, ADD]),
    ("qwen-xml", "<function=add>\n<parameter=x>\n[1]\n</parameter>\n</function>", "", [("add", {"x": [1]})]),
    ("qwen-xml", "<function=add>\n<parameter=x>\nTrue\n</parameter>\n</function>", "", [("add", {"x": True})]),
    ("glm", f"Well.\n{glm(LOOK)}\n{glm(ADD)}", "Well.", [LOOK, ADD]),
    ("glm", f"{glm(LOOK, '')}{glm(ADD, '')} So.", "So.", [LOOK, ADD]),
    ("glm", "<tool_call>so\nit is", "<tool_call>so\nit is", []),
    ("minimax", f"Well.\n\n{MINIMAX.format(invoke(LOOK) + invoke(ADD))}", "Well.", [LOOK, ADD]),
    ("minimax", "<minimax:tool_call>so", "<minimax:tool_call>so", []),
    ("kimi", f"Hm.{SECTION.format(kimi(LOOK, 0) + kimi(ADD, 1))}", "Hm.", [LOOK, ADD]),
    ("kimi", SECTION.format("so").partition("<|tool_calls_section_end|>")[0], "<|tool_calls_section_begin|>so", []),
    ("qwen-xml", "<tool_call>\nso", "<tool_call>\nso", []),
    ("lfm2", f"Well.\n{PYTHON.format(f'{python(LOOK)}, {python(ADD)}')} So.", "Well.\nSo.", [LOOK, ADD]),
    ("lfm2", PYTHON.format(r"a(x='it's \'a\'\u00e9\d', n=None)"), "", [("a", {"x": "it's 'a'é\\d", "n": None})]),
    ("lfm2", PYTHON.format("a(x=[True, {\"k\": 'v'}], y = 1.5)"), "", [("a", {"x": [True, {"k": "v"}], "y": 1.5})]),
    ("lfm2", PYTHON.format(f"{as_json(LOOK)}, {as_json(ADD)}"), "", [LOOK, ADD]),
    ("lfm2", PYTHON.format("so"), PYTHON.format("so"), []),
    ("lfm2", "[look(n=1)]", "[look(n=1)]", []),
    ("minicpm", f"Well.\n{params(LOOK)}\n{params(ADD)}", "Well.", [LOOK, ADD]),
    ("minicpm", '<function name="add"><param name="x">[1]</param></function>.', ".", [("add", {"x": [1]})]),
    ("minicpm", '<function name="so', '<function name="so', []),
    ("seed", f"Well.\n{seed(LOOK)}\n{seed(ADD)}", "Well.", [LOOK, ADD]),
    ("nemotron2", f"Hm.<TOOLCALL>[{as_json(LOOK)}, {as_json(ADD)}]</TOOLCALL>", "Hm.", [LOOK, ADD]),
    ("nemotron2", "<TOOLCALL>[so]</TOOLCALL>", "<TOOLCALL>[so]</TOOLCALL>", []),
    ("granite3", f"<|tool_call|>[{as_json(LOOK)},\n{as_json(ADD)}]", "", [LOOK, ADD]),
    ("apriel", f'Hm.\n<tool_calls>[{as_json(LOOK)[:-1]}, "id": "a"}}]</tool_calls>', "Hm.", [LOOK]),
    ("cohere", f"<|START_ACTION|>[\n  {numbered(LOOK, 0)},\n  {numbered(ADD, 1)}\n]<|END_ACTION|>", "", [LOOK, ADD]),
    ("harmony", SAYS, "Hi, <b>you</b>.", []),
    ("harmony", TO.format("look", arguments(LOOK)), "", [LOOK]),
    ("harmony", f"<|channel|>commentary<|message|>So.<|end|><|start|>assistant{TO.format('add', '{}')}", "So.", [ADD]),
    ("harmony", " to=functions.add<|channel|>commentary json<|message|>{}", "", [ADD]),
    ("harmony", "<|channel|>fin", "<|channel|>fin", []),
    ("harmony", "words", "words", []),
    ("muse", " to=user<|message|>Hi, <b>you</b>.", "Hi, <b>you</b>.", []),
    ("muse", f"{atem(LOOK)}{NEXT}{atem(ADD)}<|eot|>", "", [LOOK, ADD]),
    ("muse", f" to=user<|message|>So.{NEXT}{atem(ADD)}", "So.", [ADD]),
    ("muse", " to=us", " to=us", []),
]


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_calls_are_found_wherever_the_text_is_cut(number: int) -> None:
    form, text, content, calls = WRITTEN[number]
    whole = read(form, [text])
    assert (whole["content"], calls_of(whole)) == (content, [(name, given) for name, given in calls])
    for cut in range(len(text) + 1):
        assert read(form, [text[:cut], text[cut:]]) == whole
    assert read(form, list(text)) == whole


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_an_answer_that_is_cut_off_loses_nothing(number: int) -> None:
    """What is said of its beginning is the beginning of what is said of it, or the text itself."""
    form, text, _, calls = WRITTEN[number]
    whole = read(form, [text])
    marks = [match.span() for match in re.finditer(r"<[^<>\s]+>", text)]  # whole tokens of their models, most of them
    for end in range(len(text)):
        if any(begin < end < behind for begin, behind in marks) and form not in ("hermes", "llama3", "bare"):
            continue
        part = read(form, [text[:end]])
        assert len(part["calls"]) <= len(calls)
        for mine, theirs in zip(part["calls"], whole["calls"], strict=False):
            assert (mine[0] == theirs[0] and theirs[1].startswith(mine[1])) or mine[1] == "{}"
        if not part["calls"] and form not in ("harmony", "muse"):
            assert part["content"] == text[:end]


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_half_a_mark_behind_a_begun_call_is_no_text(number: int) -> None:
    """Neither of the content nor of the arguments, wherever the answer is cut. Behind other words it is a text."""
    form, text, content, _ = WRITTEN[number]
    whole = read(form, [text])
    for end in range(len(text)):
        part = read(form, list(text[:end]))
        if part["calls"] and " and " not in text:
            assert content.startswith(part["content"])
        for mine, theirs in zip(part["calls"], whole["calls"], strict=False):
            assert theirs[1].startswith(mine[1]) or mine[1] == "{}"


FRAGMENTS = sorted(
    {text for _, text, _, _ in WRITTEN}
    | {mark for form in FORMATS for mark in (*form.openings, *form.marks)}
    | {
        "<think>",
        "</think>",
        "{",
        "}",
        '"',
        "\\",
        ":",
        ",",
        " ",
        "\n",
        "call:",
        "look",
        '"name"',
        "[",
        "]",
        "ä",
        "🙂",
        "<",
    }
)


@given(
    st.sampled_from([None, *BY_NAME]),
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    st.lists(st.integers(0, 200), max_size=6),
    st.booleans(),
    st.booleans(),
)
@example("hermes", "<think>a</think>\n\n" + hermes(ADD), [3, 9], True, False)
def test_any_text_is_read_alike_in_any_pieces(
    form: str | None, text: str, cuts: list[int], thinks: bool, is_thinking: bool
) -> None:
    options = {"thoughts": THINK if thinks else None, "is_thinking": is_thinking}
    whole = read(form, [text], **options)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert read(form, pieces, **options) == whole
    assert read(form, list(text), **options) == whole
    if form is None and not thinks:
        assert whole == {"content": text, "reasoning_content": "", "calls": []}


@given(st.sampled_from([*BY_NAME]), st.text(st.sampled_from('ab {}":,\n<|[]='), max_size=40))
def test_a_text_without_marks_stays_as_it_is(form: str, text: str) -> None:
    said = read(form, [text])
    assert said["calls"] or said["content"] == text


@pytest.mark.parametrize(
    ("text", "is_thinking", "thought", "content"),
    [
        ("<think>\nLet me see.\n</think>\n\nIt is 3.", False, "Let me see.", "It is 3."),
        ("Let me see.\n</think>\n\nIt is 3.", True, "Let me see.", "It is 3."),
        ("<think>Let me see.</think>It is 3.", True, "Let me see.", "It is 3."),
        ("<think>\n\n</think>\n\nIt is 3.\n", False, "", "It is 3.\n"),
        ("\n<think>a </b> c", False, "a </b> c", ""),
        ("It is a <think> tag.</think>", False, "", "It is a <think> tag.</think>"),
        (" It is 3.", False, "", " It is 3."),
        ("<thin", False, "", "<thin"),
        ("a </thi", True, "a </thi", ""),
    ],
)
def test_thoughts(text: str, is_thinking: bool, thought: str, content: str) -> None:
    expected = {"content": content, "reasoning_content": thought, "calls": []}
    for pieces in ([text], list(text)):
        assert read(None, pieces, thoughts=THINK, is_thinking=is_thinking) == expected
    called = read("hermes", [f"{text}{hermes(ADD)}"], thoughts=THINK, is_thinking=is_thinking)
    assert calls_of(called) == ([ADD] if content else [])


def test_thoughts_of_gpt_oss() -> None:
    text = f"<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>{SAYS}"
    said = read("harmony", list(text))
    assert said == {"content": "Hi, <b>you</b>.", "reasoning_content": "One.\nTwo.", "calls": []}


def test_a_prompt_of_gpt_oss_has_ended_no_thought() -> None:
    thoughts = BY_NAME["harmony"].thoughts
    assert thoughts is not None and not is_closed("<|start|>user<|message|>Hi<|end|><|start|>assistant", thoughts)


def test_thoughts_of_muse_glimmer() -> None:
    text = f" to=self<|message|>One.{NEXT} to=self<|message|>Two.{NEXT} to=user<|message|>Hi."
    expected = {"content": "Hi.", "reasoning_content": "One.\nTwo.", "calls": []}
    assert read("muse", list(text)) == read("muse", [text], thoughts=BY_NAME["muse"].thoughts) == expected


def test_a_json_answer_that_was_asked_for_is_no_call() -> None:
    text = as_json(LOOK)
    assert read("llama3", [text], is_free=False)["content"] == text
    for begun, thinking in (("<think>\n", False), ("", True)):
        said = read(None, [begun, "Hm\n</think>\n\n", '{"a": 1}'], thoughts=THINK, is_thinking=thinking, is_free=False)
        assert (said["reasoning_content"], said["content"]) == ("Hm", '{"a": 1}')


@pytest.mark.parametrize("form", ["hermes", "llama3", "mistral", "deepseek", "kimi", "qwen-xml", "glm"])
def test_marks_in_json_that_was_asked_for_are_no_calls(form: str) -> None:
    inner = {"hermes": hermes(LOOK), "llama3": as_json(LOOK, "parameters")}.get(form, hermes(ADD))
    for mark in ("", *BY_NAME[form].openings):
        text = json.dumps({"a": mark + inner, "b": "<think>"}, ensure_ascii=False)
        said = read(form, [text], thoughts=THINK, is_free=False)
        assert (said["content"], said["calls"]) == (text, [])


def test_calls_in_place_of_json_that_was_asked_for() -> None:
    for form, text in (("hermes", f"\n{hermes(LOOK)}\n{hermes(ADD)}"), ("llama3", as_json(LOOK, "parameters"))):
        said = read(form, [text], is_free=False)
        assert said["content"] == "" and calls_of(said) == ([LOOK, ADD] if form == "hermes" else [LOOK])


@pytest.mark.parametrize("number", [index for index, written in enumerate(WRITTEN) if len(written[3]) == 2])
def test_one_call_only(number: int) -> None:
    form, text, _, calls = WRITTEN[number]
    assert calls_of(read(form, list(text), parallel=False)) == calls[:1]


TAUGHT = {
    "hermes": 'XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <a>}',
    "llama3": '{"name": function name, "parameters": dictionary of argument name and its value}',
    "mistral-list": "{{- '[TOOL_CALLS][' }}",
    "mistral": "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "deepseek-fenced": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '<｜tool▁sep｜>' + name + '```json'",
    "deepseek": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments",
    "gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
    "function-gemma": "{{- '<start_function_call>call:' + function['name'] + '{' -}}",
    "qwen-xml": "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>",
    "harmony": "{{- '<|start|>assistant<|channel|>final<|message|>' }}",
    "glm": "{{- '<tool_call>' + name + '\\n<arg_key>' + key }}",
    "minimax": "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}",
    "kimi": "<|tool_calls_section_begin|>{%- for tool_call in message['tool_calls'] -%}",
    "lfm2": "{{- '<|tool_call_start|>[' + (calls | join(', ')) + ']<|tool_call_end|>' -}}",
    "muse": "{{- '<atem:function_calls>\\n<atem:invoke name=\"' + name -}}",
    "minicpm": '<function name="function-name"><param name="param-name">param-value</param></function>',
    "seed": "<seed:tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>value_1</parameter>",
    "nemotron2": "{{- '<TOOLCALL>[' -}}",
    "granite3": "respond only with <|tool_call|> followed by a JSON list of tools used",
    "apriel": "{{- '\\n<tool_calls>[' -}}",
    "cohere": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "a", "parameters": {}}]<|END_ACTION|>',
    None: "{{- '<tool_call>' + name }}",
}


def test_the_template_says_which() -> None:
    for name, template in TAUGHT.items():
        form, _ = taught_by(template)
        assert (None if form is None else form.name) == name
    assert {form.name for form in FORMATS} == TAUGHT.keys() - {None}


def test_the_template_says_whether_it_thinks() -> None:
    assert taught_by("{{ '<think>' }}")[1] is None
    for template, begin in {
        "{% if '</think>' in content %}{{ '<think>\\n' }}{% endif %}": "<think>",
        "'[THINK]' '[/THINK]'": "[THINK]",
        "'<|channel>thought' '<channel|>'": "<|channel>thought",
        "<|START_THINKING|><|END_THINKING|>": "<|START_THINKING|>",
        "{% set content = content.split('</think>')[-1] %}": "<think>",
    }.items():
        thoughts = taught_by(template)[1]
        assert thoughts is not None and "".join(thoughts[0]) == begin
        assert is_open(f"user: hi\n{begin}\n", thoughts) and not is_open(f"{begin}\n\n{thoughts[1][0]}\n\n", thoughts)
