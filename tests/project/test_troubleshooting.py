"""Every warning and error that users can see has an entry in docs/troubleshooting.md, and no entry is out of date."""

from __future__ import annotations

import re

import messages
import pages

PAGE = pages.ROOT / "docs" / "troubleshooting.md"

BINDINGS = (
    *("counters", "decoders", "distributions", "kernels", "masks"),
    *("libllama", "logs", "module", "samplers", "scheduler", "speculator", "tables", "vocabularies"),
)

NOT_FOR_USERS = {
    "AttributeError": "the way by which Python says that a module lacks a name",
    "ValueError: Failed to ": "explained by the reason that llama.cpp gives",
    "EOFError": "is put into 'its header ends early (…)'",
    "Stopped": "ends the generation of a client that has left: nobody reads it",
    "print: specllama: error: …": "only what every error on the command line begins with",
    "print: specllama: warning: …": "only what every warning on the command line begins with",
    "print: specllama: …": "what `auto` is: no error",
    "specllama/engine/drafts/remembered.py: ValueError": "what is not believed is decided anew",
    "specllama/models/tensor_types.py: ValueError": "put into '… is damaged: its header has …'",
    "specllama/models/gguf_values.py: _HeaderError": "the same",
    "specllama/engine/costs.py: ValueError": "a file that cannot be used is as good as none: a line of the debug log",
    "specllama/backend/ggml.py: LookupError": "another way is taken then, or it becomes the reason of 'AMX off'",
    "specllama/backend/ggml_products.py": "ends up in the reason of 'AMX off'",
    "specllama/backend/trial.py: ValueError": "the same",
    "specllama/backend/trial.py: RuntimeError": "for who writes a trial",
    "specllama/many/threads.py: RuntimeError": "the worker says first that the server ends",
    "specllama/server/errors.py: error": "the log's heading of a traceback",
    "_notes: the costs of batches": "part of 'interrupted: … are missing'",
    "cpp/bindings/test/": "the tests' way into the mathematics, of no use to anybody else",
    "C++: Drafter": "documentation",
    "C++: Block": "documentation",
    "C++: a token of a map": "Python makes the map",
    "C++: two drafters of one kind": "Python takes one of a kind",
    "cpp/heads/": "put into 'the head … cannot be used: …'",
    "cpp/bindings/drafters/state_head.cpp": "the same",
    "cpp/bindings/drafters/": "documentation",
    "cpp/kernels/": "a name in the statistics",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: a ": "put into 'this llama.cpp is built otherwise …'",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: its ": "the same",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: there is no": "the same",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: no buffer": "the same",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: specllama": "the same",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: MUL_MAT": "the same",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: FLASH_ATTN_EXT": "the same",
    "cpp/ggml_plugin/ggml_probe.cpp: C++: ggml_init": "the same",
    "C++: seq_rm (sliding window)": "a name in the statistics",
    "C++: the llama_context is null": "Python looks first, and says that the Llama is closed",
    "C++: a batch of … tokens does not fit": "the loop's own batches fit, and measurements look first",
    "C++: sequence … of the … is there already": "Python makes one for each Llama",
    "C++: a batch is of one decoder": "the loop decodes each sequence once",
    "C++: a part of a batch has no tokens": "the loop leaves out a sequence that has nothing to add",
    "cpp/loop/scheduler.cpp: C++: the memory of the … is recurrent": "Python looks first",
    "C++: the head reads … numbers and knows": "the old head stays",
    "C++: nothing to decode": "the loop decodes when there is something",
    "C++: token … is out of range: the …'s vocabulary": "prompts and drafts are looked at before they are decoded",
    "C++: max_tokens=0": "Python asks for one token at least",
    "C++: no logits row": "Python asks for rows that there are",
    "C++: cannot rewind": "Python stays within its generation",
    "C++: there is no generation": "Python begins one first",
    "C++: unknown rule": "Python looks first",
    "cpp/llama/tokenizer.cpp: C++: a…A": "texts by which the tokenizer's depth is measured",
    "cpp/llama/tokenizer.cpp: C++: Hello": "the same",
    "C++: it has more tokens than can be counted": "put into 'llama.cpp cannot tokenize this text (…)'",
    "ReferenceError: the Llama of this model is gone": "for who calls an inner object of llama_cpp's",
    "cpp/math/rules/": "what is said of a rule where all are listed",
    "C++: libllama has no function": "Python looks first",
    "specllama/grammars/schema.py: NotEnforcedError": "put into '…; the answer may not follow all of it: …'",
    "cpp/math/sampler_params.hpp: C++: top_k": "every whole number is usable",
    "cpp/math/sampler_params.hpp: C++: penalty_last_n": "the same",
    **{f"cpp/bindings/{file}.cpp": "documentation, or for who calls the native module" for file in BINDINGS},
}
"""Why a message needs no entry, by its kind or by what it begins with, behind its file or not."""

_ENTRY = re.compile(r"^`(.+)`$", re.M)
_LEAST = 8


def _entries() -> list[str]:
    return [text.strip("… ") for text in _ENTRY.findall(PAGE.read_text(encoding="utf-8"))]


def _exemption(message: messages.Text) -> str | None:
    known = f"{message.kind}: {message.text}"
    with_file = f"{message.file}: {known}"
    return next((name for name in NOT_FOR_USERS if known.startswith(name) or with_file.startswith(name)), None)


def test_every_message_has_an_entry() -> None:
    entries = _entries()
    texts = [message for message in messages.all_messages() if _exemption(message) is None]
    missing = [message for message in texts if not any(entry in message.text for entry in entries)]
    assert not missing, f"{PAGE.name} lacks an entry for:\n" + "\n".join(map(str, missing))


def test_every_entry_is_the_text_of_a_message() -> None:
    texts = [message.text for message in messages.all_messages() if _exemption(message) is None]
    assert [entry for entry in _entries() if not any(entry in text for text in texts)] == []


def test_entries_say_enough_to_be_told_apart() -> None:
    entries = _entries()
    assert len(entries) == len(set(entries))
    assert [entry for entry in entries if len(entry.replace("…", "")) < _LEAST] == []


def test_every_exemption_is_needed() -> None:
    used = {_exemption(message) for message in messages.all_messages()}
    assert set(NOT_FOR_USERS) - used == set()
