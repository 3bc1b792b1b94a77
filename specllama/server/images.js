// Images that go with the next message.
"use strict";
let chosen = [];

function showChosen() {
  at("chosen").replaceChildren(...chosen.map((address, i) => {
    const button = made("button", "", { type: "button", title: "take it away" });
    button.setAttribute("aria-label", `image ${i + 1}: take it away`);
    button.append(made("img", "", { src: address, alt: "" }));
    button.addEventListener("click", () => { chosen.splice(i, 1); showChosen(); });
    return button;
  }));
}

async function choose(files) {
  if (!model.sees) return;
  for (const file of files) {
    if (!file.type.startsWith("image/")) continue;
    try { chosen.push(await readable(file)); } catch { say(`${file.name} is no image that this browser reads`); }
  }
  showChosen();
}

const MOST_BYTES = 2 << 20, MOST_SIDE = 1600;

// The image as an address with data that the server accepts: PNG, JPEG or GIF, and small enough for a request.
async function readable(file) {
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(file);
  });
  const image = made("img", "", { src: address });
  await image.decode();
  if (/^image\/(png|jpeg|gif)$/.test(file.type) && file.size <= MOST_BYTES) return address;
  const scale = Math.min(1, MOST_SIDE / Math.max(image.naturalWidth, image.naturalHeight));
  const canvas = made("canvas", "", { width: image.naturalWidth * scale, height: image.naturalHeight * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}
