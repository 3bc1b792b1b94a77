// Sends requests to the server, and reads its answers.
"use strict";
function settings() {
  const chosen = {};
  for (const id of ["temperature", "top_p", "repeat_penalty", "max_tokens", "seed"])
    if (at(id).value !== "") chosen[id] = Number(at(id).value);
  const draft = at("num_draft_tokens").value.trim();
  if (draft) chosen.num_draft_tokens = draft === "auto" ? draft : Number(draft);
  if (at("verify").value) chosen.verify = at("verify").value;
  return chosen;
}

// Returns whether the settings can be sent. If not, opens the settings and shows the error.
function valid() {
  if (at("settings").checkValidity()) return true;
  if (!document.body.classList.contains("open")) at("more").click();
  return at("settings").reportValidity();
}

// The first `count` turns as messages, without questions that got no answer and turns that the user has left out.
function messages(count) {
  const system = at("system").value.trim();
  const sent = turns.slice(0, count).filter((turn, i) =>
    !turn.left && !(turn.role === "user" && i + 1 < count && turns[i + 1].role === "user"));
  return [...(system ? [{ role: "system", content: system }] : []), ...sent.map(message)];
}

function message(turn) {
  if (!turn.images) return { role: turn.role, content: turn.text };
  const images = turn.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: turn.role, content: [...(turn.text ? [{ type: "text", text: turn.text }] : []), ...images] };
}

async function post(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: running.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: has it been ended?");
  }
  if (response.ok) return response;
  let error;
  try { error = (await response.json()).error; } catch { error = { message: "the server answered " + response.status }; }
  throw Object.assign(new Error(error.message), { isFull: error.code === "context_length_exceeded" });
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function ask(path, body, onChunk) {
  const asked = { ...body, stream: true, return_origins: true, return_progress: true, timings_per_token: true };
  const all = { text: "", thought: "", timings: null, ended: null };
  for await (const event of events(await post(path, asked))) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0], delta = choice.delta || { content: choice.text };
    const piece = delta.content || "";
    all.text += piece;
    all.thought += delta.reasoning_content || "";
    all.timings = event.timings || all.timings;
    all.ended = choice.finish_reason || all.ended;
    onChunk(piece, event.tokens || [], all, event.prompt_progress);
  }
  return all;
}
