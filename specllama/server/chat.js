// The conversation: its turns, what is shown of them, and what is kept over a reload.
"use strict";
const STORE = "specllama";
// A turn has a role and a text. It may have pieces (ends and origins of parts of the text), thought, images, ended,
// note, error, and left (true if the turn is not sent any more).
let turns = [];
let running = null;
let model = { name: "answer", context: 0, sees: false, template: "" };
const views = new WeakMap();  // for each turn its article and, for an answer, its Answer

// What is kept over a reload

function keep() {
  const settings = {};
  for (const field of at("settings").elements) if (field.id) settings[field.id] = field.type === "checkbox" ? field.checked : field.value;
  const kept = turns.map((turn) => ({ ...turn, pieces: turn.pieces && merged(turn.pieces) }));
  try {
    localStorage.setItem(STORE, JSON.stringify({ turns: kept, settings, message: at("message").value }));
  } catch {  // the browser stores nothing, or the conversation is too large
    try { localStorage.removeItem(STORE); } catch { return; }
    say("this conversation is too large to be kept over a reload");
  }
}

let soon = 0;
function keepSoon() {
  clearTimeout(soon);
  soon = setTimeout(keep, 300);
}

function merged(pieces) {
  return pieces.filter((piece, i) => i === pieces.length - 1 || pieces[i + 1].origin !== piece.origin);
}

function restore() {
  let kept;
  try { kept = JSON.parse(localStorage.getItem(STORE)); } catch { return; }
  if (!kept || !Array.isArray(kept.turns)) return;
  for (const [id, value] of Object.entries(kept.settings || {})) {
    const field = at(id);
    if (field && field.form === at("settings")) field[field.type === "checkbox" ? "checked" : "value"] = value;
  }
  at("message").value = kept.message || "";
  turns = kept.turns.filter((turn) => turn && ["user", "assistant"].includes(turn.role) && typeof turn.text === "string");
  const last = turns[turns.length - 1];
  if (last && last.role === "assistant" && !last.ended) Object.assign(last, { ended: "stopped", note: "ended by a reload" });
  turns.forEach(draw);
}

// What is shown

const log = () => at("log");
// New text scrolls the log only if its end is in view: a reader who has scrolled up is not disturbed.
const atEnd = () => log().scrollHeight - log().scrollTop - log().clientHeight < 40;
const follow = (wasAtEnd) => { if (wasAtEnd) log().scrollTop = log().scrollHeight; };

// Draws the article of a turn, in place of the turn's earlier article.
function draw(turn) {
  const wasAtEnd = atEnd(), old = views.get(turn), isAnswer = turn.role === "assistant";
  const article = made("article"), body = made("div");
  article.classList.toggle("left", Boolean(turn.left));
  article.append(made("h2", isAnswer ? model.name : "you"), body);
  let answer = null;
  if (isAnswer) {
    answer = new Answer(body);
    let begin = 0;
    for (const piece of turn.pieces || []) {
      answer.add(turn.text.slice(begin, piece.end), [piece]);
      begin = piece.end;
    }
    answer.add(turn.text.slice(begin), []);
    answer.draw();
    if (turn.thought) think(article, turn.thought);
  } else body.textContent = turn.text;
  for (const address of turn.images || []) body.append(made("img", "", { src: address, alt: "image" }));
  views.set(turn, { article, answer });
  if (old) old.article.replaceWith(article); else log().append(article);
  notes(turn, article);
  follow(wasAtEnd || (!isAnswer && !old));
  return article;
}

// Adds the notes and the buttons below a turn.
function notes(turn, article) {
  const isLast = turn === turns[turns.length - 1], next = turns[turns.indexOf(turn) + 1];
  if (turn.left) article.append(made("small", "left out: the model does not see this any more"));
  else if (turn.role === "user" && next && next.role === "user") article.append(made("small", "not answered, and not sent again"));
  if (turn.ended === "length") article.append(made("small", cutOff(turn)));
  if (turn.note) article.append(made("p", turn.note));
  if (turn.error) {
    const line = made("p", turn.error.text, { className: "error" });
    line.setAttribute("role", "alert");
    article.append(line);
  }
  const tools = made("menu", "", { className: "tools" });
  const tool = (name, act) => {
    const button = made("button", name, { type: "button" });
    button.addEventListener("click", () => { if (!running) act(button); });
    tools.append(made("li"));
    tools.lastChild.append(button);
  };
  const asking = (name, act) => tool(name, () => { if (valid()) act(); });
  if (turn.role === "user" && isLast) asking("Send again", respond);
  if (canGoOn(turn)) asking("Continue", () => goOn(turn));
  if (turn.error && turn.error.isFull && oldest()) asking("Leave out the oldest turn, and send again", () => leaveOut(turn));
  if (turn.role === "assistant") asking("Regenerate", () => { cutBack(turns.indexOf(turn)); respond(); });
  tool("Edit", () => edit(turn));
  tool("Copy", (button) => copied(turn.text, button));
  article.append(tools);
}

function cutOff(turn) {
  return turn.isFull
    ? `cut off: the conversation fills the ${model.context} tokens that the model reads at once. Begin a new one, or edit an earlier message.`
    : `cut off after ${turn.count} tokens, the most that the settings allow`;
}

// Shows the model's thoughts above its answer, folded.
function think(article, text) {
  let details = article.querySelector("details");
  if (!details) {
    details = made("details");
    details.append(made("summary", "thoughts"), made("p"));
    article.querySelector("h2").after(details);
  }
  details.querySelector("p").textContent = text;
}

// Shows how much of the prompt is read.
function read(article, progress) {
  let line = article.querySelector(".reading");
  if (!progress) { if (line) line.remove(); return; }
  if (!line) {
    line = made("p", "", { className: "reading" });
    line.append(made("progress"), made("span"));
    article.append(line);
  }
  Object.assign(line.querySelector("progress"), { max: progress.total, value: progress.processed });
  line.querySelector("span").textContent = `reading ${progress.processed} of ${progress.total} tokens`;
}

function edit(turn) {
  const { article } = views.get(turn), form = made("form", "", { className: "editor" });
  const text = made("textarea", "", { value: turn.text, rows: Math.min(20, turn.text.split("\n").length + 2) });
  text.setAttribute("aria-label", "Text");
  const save = made("button", turn.role === "user" ? "Send" : "Save", { className: "first" });
  const cancel = made("button", "Cancel", { type: "button" });
  cancel.addEventListener("click", () => draw(turn));
  form.append(text, save, cancel);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running || !valid() || (!text.value.trim() && !turn.images)) return;
    turn.text = text.value;
    for (const name of ["error", "note", "pieces"]) delete turn[name];
    if (turn.role === "user") cutBack(turns.indexOf(turn) + 1);
    else turn.ended = "edited";
    draw(turn);
    keep();
    if (turn.role === "user") respond();
  });
  article.querySelector("div").replaceWith(form);
  article.querySelector(".tools").remove();
  text.focus();
}

// Removes all turns after the first `count`.
function cutBack(count) {
  for (const turn of turns.splice(count)) views.get(turn).article.remove();
}

function oldest() {
  const found = turns.find((turn) => !turn.left);
  return found && found !== turns[turns.length - 1] ? found : null;
}

function leaveOut(turn) {
  const first = turns.indexOf(oldest());
  turns[first].left = true;
  for (let i = first + 1; i < turns.length - 1 && turns[i].role === "assistant"; i++) turns[i].left = true;
  turns.forEach(draw);
  if (turn.role === "user") respond(); else goOn(turn);
}

// Answers

// Adds the server's answer to a turn while it arrives.
async function grow(turn, path, body) {
  const { article, answer } = views.get(turn);
  let latest = null, progress = null, added = false, saved = Date.now();
  const redraw = () => {
    if (!turns.includes(turn)) return;  // the conversation was cleared: the figures must not show this answer
    const wasAtEnd = atEnd();
    if (added) answer.draw();
    if (turn.thought) think(article, turn.thought);
    read(article, progress);
    if (progress) say("reading");
    else if (added) say("answering");
    if (latest && latest.timings) figures(latest.timings);
    added = false;
    follow(wasAtEnd);
    if (Date.now() - saved > 2000) { keep(); saved = Date.now(); }
  };
  // Draws by a timer, not at every token, because the model may need the processor.
  const timer = setInterval(redraw, 150);
  try {
    const all = await ask(path, body, (piece, tokens, so_far, prompt) => {
      answer.add(piece, tokens);
      turn.text = answer.text;
      turn.pieces = answer.pieces;
      if (so_far.thought) turn.thought = so_far.thought;
      progress = prompt || null;
      latest = so_far;
      added = true;
    });
    turn.ended = all.ended || "stopped";
    turn.count = all.timings && all.timings.predicted_n;
    turn.isFull = all.ended === "length" && turn.count < (body.max_tokens > 0 ? body.max_tokens : Infinity);
    return all;
  } finally {
    clearInterval(timer);
    progress = null;
    redraw();
  }
}

// Runs `work`, which makes a turn grow. If it fails or is stopped, the turn keeps its text and shows the reason.
async function answering(turn, work) {
  reset();
  delete turn.note;
  delete turn.error;
  busy(new AbortController());
  const mine = turns, asked = turns[turns.indexOf(turn) - 1];
  for (const name of ["note", "error"]) delete asked[name];
  let wrong = null;
  try {
    await work();
  } catch (error) {
    wrong = error;
    turn.ended = "stopped";
  }
  busy(null);
  if (turns === mine && !isLeft) {  // else the conversation was cleared, or the page is being left
    const isThere = !wrong || turn.text || turn.thought, marked = isThere ? turn : asked;
    if (!isThere) cutBack(turns.indexOf(turn));  // the question stays, and can be sent again
    if (wrong && wrong.name === "AbortError") marked.note = "stopped";
    else if (wrong) marked.error = turnError(wrong);
    for (const one of new Set([asked, marked])) draw(one);
    keep();
  }
  at("message").focus();
}

function turnError(error) {
  if (!error.isFull) return { text: String(error.message || error) };
  const room = model.context ? `${model.context} tokens at once, which are about ${Math.round(model.context * 3 / 4)} words`
    : "a limited number of tokens at once";
  return {
    isFull: true,
    text: `This conversation has become too long for the model, which reads ${room}. ` +
      (oldest() ? "Leave out its oldest turn, begin a new conversation, or shorten your message. " : "Shorten the message. ") +
      "Whoever runs the server can give it more room (--ctx-size).",
  };
}

async function respond() {
  const request = { ...settings(), messages: messages(turns.length) };
  // The answers with and without a draft get one seed, so that their texts can be compared.
  if (at("compare").checked && request.seed === undefined) request.seed = Math.floor(Math.random() * 2 ** 31);
  const turn = { role: "assistant", text: "" };
  turns.push(turn);
  draw(turns[turns.length - 2]);  // drawn without the buttons that only the last turn has
  draw(turn);
  await answering(turn, async () => {
    const drafted = await grow(turn, "v1/chat/completions", request);
    if (at("compare").checked) turn.note = await compared(request, drafted);
  });
}

async function compared(request, drafted) {
  say("decoding the same plainly");
  const plain = await ask("v1/chat/completions", { ...request, num_draft_tokens: 0 }, () => {});
  const speed = plain.timings.predicted_per_second;
  figures(drafted.timings, speed);
  return `plainly ${rate(speed)} tokens/s: the draft made it ${(drafted.timings.predicted_per_second / speed).toFixed(2)} times as fast; ` +
    (plain.text === drafted.text && plain.thought === drafted.thought ? "the same text" : "another text");
}

// An unfinished last answer can be continued, unless there are images, or its thoughts have unknown marks.
function canGoOn(turn) {
  return turn.role === "assistant" && turn === turns[turns.length - 1] && Boolean(turn.text) &&
    (turn.ended !== "stop" || Boolean(turn.error)) && !turns.some((one) => one.images) &&
    (!turn.thought || model.template.includes("<think>"));
}

async function goOn(turn) {
  turn.ended = null;
  draw(turn);
  await answering(turn, async () => {
    const { prompt } = await (await post("apply-template", { messages: messages(turns.indexOf(turn)) })).json();
    const opened = prompt.trimEnd().endsWith("<think>") ? "" : "<think>\n";
    const thought = turn.thought ? `${opened}${turn.thought}\n</think>\n\n` : "";
    const content = prompt + thought + turn.text;
    const { tokens } = await (await post("tokenize", { content, add_special: false, parse_special: true })).json();
    await grow(turn, "v1/completions", { max_tokens: -1, ...settings(), prompt: tokens });
  });
}

function busy(controller) {
  running = controller;
  document.body.classList.toggle("busy", controller !== null);
  at("send").disabled = controller !== null;
  at("stop").disabled = controller === null;
  say(controller ? "waiting for the first token" : "");
}

// What the user does

async function send() {
  const text = at("message").value.trim();
  if ((!text && !chosen.length) || running || !valid()) return;
  at("message").value = "";
  const turn = { role: "user", text };
  if (chosen.length) turn.images = chosen;
  chosen = [];
  showChosen();
  const before = turns[turns.length - 1];
  turns.push(turn);
  if (before) draw(before);  // drawn without the buttons that only the last turn has
  draw(turn);
  keep();
  await respond();
}

at("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("settings").addEventListener("submit", (event) => event.preventDefault());
at("settings").addEventListener("input", () => { colour(); keepSoon(); });
at("message").addEventListener("input", keepSoon);
at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
at("message").addEventListener("paste", (event) => choose(event.clipboardData.files));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); choose(event.dataTransfer.files); });
at("image").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", async () => { await choose([...at("files").files]); at("files").value = ""; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && running) running.abort(); });
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", () => {
  if (running) running.abort();
  turns = [];  // an answer under way keeps the old array
  log().replaceChildren();
  reset();
  keep();
  at("message").focus();
});
at("more").addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("open");
  at("more").setAttribute("aria-expanded", String(isOpen));
});
// An answer that ends because the page is left shows no error.
let isLeft = false;
addEventListener("beforeunload", () => { keep(); isLeft = true; setTimeout(() => { isLeft = false; }, 1000); });
addEventListener("pagehide", () => { if (!isLeft) keep(); });

function colour() { document.body.classList.toggle("uncoloured", !at("coloured").checked); }

function learnedText(draft) {
  if (!draft) return "A draft learns from the answers: it begins when there are enough.";
  const right = draft.greedy.map((one) => (100 * one).toFixed(0)).join(" / ");
  const gain = draft.gain === null ? "" : `, ${draft.gain.toFixed(2)} times as fast as plain decoding`;
  return `A draft has learned from ${draft.num_tokens} tokens of answers: right at ${right} % of the places${gain}.`;
}

async function begin() {
  restore();
  colour();
  const [models, props] = await Promise.all(["v1/models", "props"].map(async (path) => (await fetch(path)).json()));
  model = {
    name: models.data[0].id,
    context: props.default_generation_settings.n_ctx,
    sees: props.modalities.vision,
    template: props.chat_template,
  };
  at("model").textContent = model.name;
  at("image").hidden = !model.sees;
  at("learned").hidden = !props.learning;
  if (props.learning) at("learned").textContent = learnedText(props.learning.draft);
  if (!running) turns.forEach(draw);
}

begin().catch(() => say("the server does not answer: has it been ended?"));
