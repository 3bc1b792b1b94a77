// Shows how fast the last answer came, and how much of it was drafted.
"use strict";
const rate = (value) => value ? value.toFixed(1) : "–";
const percent = (part, whole) => whole ? (100 * part / whole).toFixed(0) + " %" : "–";

// `plain` is the speed of plain decoding, which "auto" or a comparison has measured.
function figures(timings, plain = timings.plain_per_second) {
  const speed = timings.predicted_per_second, faster = speed && plain ? (speed / plain).toFixed(2) + " ×" : "–";
  const accepted = percent(timings.draft_n_accepted, timings.draft_n);
  at("speed").textContent = rate(speed);
  at("plain").textContent = rate(plain);
  at("accepted").textContent = accepted;
  at("speedup").textContent = faster;
  at("length").textContent = timings.draft_n ? timings.mean_acceptance_length.toFixed(2) : "–";
  at("tokens").textContent = timings.predicted_n;
  at("rule").textContent = timings.verify || "–";
  at("brief").textContent = [
    `${rate(speed)} tokens/s`, ...(plain ? [`${faster} plain`] : []), ...(timings.draft_n ? [`${accepted} accepted`] : []),
  ].join(", ");
  at("fallback").hidden = !timings.fallback_reason;
  at("fallback").textContent = timings.fallback_reason ? "decoded plainly: " + timings.fallback_reason : "";
  const rates = timings.draft_n_per_pos.map((drafted, i) => timings.draft_n_accepted_per_pos[i] / drafted);
  at("positions").setAttribute("aria-label", rates.length
    ? "accepted by position: " + rates.map((r) => percent(r, 1)).join(", ") : "no draft yet");
  at("positions").replaceChildren(...rates.map((r, i) => {
    const bar = made("span", "", { title: `position ${i + 1}: ${percent(r, 1)} accepted` });
    bar.style.height = 100 * r + "%";
    return bar;
  }));
}

function reset() {
  for (const id of ["speed", "plain", "accepted", "speedup", "length", "tokens", "rule"]) at(id).textContent = "–";
  at("brief").textContent = "";
  at("fallback").hidden = true;
  at("positions").setAttribute("aria-label", "no draft yet");
  at("positions").replaceChildren();
}
