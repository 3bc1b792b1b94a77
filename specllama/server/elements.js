// Finds and makes elements of the page, and copies text.
"use strict";
const at = (id) => document.getElementById(id);

function made(kind, text, more) {
  const element = document.createElement(kind);
  if (text) element.textContent = text;
  return Object.assign(element, more);
}

function say(text) { at("status").textContent = text; }

async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // there is no clipboard if the page came over plain HTTP from another machine
    const area = made("textarea", "", { value: text, className: "hidden" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
