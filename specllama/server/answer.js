// Answers: markdown, whose text is coloured by the origin of its tokens.
"use strict";

// HTML in an answer is shown as text, and no picture is fetched: a model must not run scripts or call servers.
const markdown = markdownit({ html: false, breaks: true }).disable("image");
markdown.renderer.rules.link_open = (tokens, i, options, env, renderer) => {
  tokens[i].attrSet("target", "_blank");
  tokens[i].attrSet("rel", "noopener noreferrer nofollow");
  tokens[i].attrSet("title", tokens[i].attrGet("href"));
  return renderer.renderToken(tokens, i, options);
};
// The page's Content-Security-Policy allows no style attributes, so the alignment of a cell goes into data-align.
for (const cell of ["th_open", "td_open"])
  markdown.renderer.rules[cell] = (tokens, i, options, env, renderer) => {
    const style = tokens[i].attrGet("style");
    tokens[i].attrs = style ? [["data-align", style.replace("text-align:", "")]] : [];
    return renderer.renderToken(tokens, i, options);
  };

// An answer: its text, the origin of each piece of the text, and the blocks that the page shows.
class Answer {
  constructor(body) {
    this.body = body;
    body.className = "markdown";
    this.text = "";
    this.pieces = [];  // for each piece of the text, its end and its origin
    this.rendered = [];  // for each block, its HTML, its start in the text, and its element
  }

  add(piece, tokens) {
    if (!piece) return;
    this.text += piece;
    this.pieces.push({ end: this.text.length, origin: tokens.length ? tokens[tokens.length - 1].origin : "plain" });
  }

  // Draws only the blocks that have changed, so that selected text in all other blocks stays selected.
  draw() {
    const blocks = this.blocks();
    blocks.forEach((block, i) => {
      if (this.rendered[i] && this.rendered[i].html === block.html && this.rendered[i].start === block.start) return;
      const element = this.element(block);
      if (this.rendered[i]) this.rendered[i].element.replaceWith(element); else this.body.append(element);
      this.rendered[i] = { html: block.html, start: block.start, element };
    });
    for (const { element } of this.rendered.splice(blocks.length)) element.remove();
  }

  blocks() {
    const starts = [0];  // where each line of the text starts
    for (const line of this.text.split("\n")) starts.push(starts[starts.length - 1] + line.length + 1);
    const tokens = markdown.parse(this.text, {}), blocks = [];
    for (let i = 0, first = 0; i < tokens.length; i++) {
      if (tokens[i].level > 0 || tokens[i].nesting > 0) continue;
      const [from, to] = tokens[first].map || [0, starts.length - 1];
      const html = markdown.renderer.render(tokens.slice(first, i + 1), markdown.options, {}).trim();
      if (html) blocks.push({ html, start: starts[from], end: starts[Math.min(to, starts.length - 1)] });
      first = i + 1;
    }
    return blocks;
  }

  element(block) {
    const made = document.createElement("template");
    made.innerHTML = block.html;
    let element = made.content.firstElementChild;
    for (const pre of made.content.querySelectorAll("pre")) {
      const framed = frame(pre);
      if (pre === element) element = framed;
      pre.replaceWith(framed);
      framed.append(pre);
    }
    this.colour(element, block);
    return element;
  }

  // Colours the shown text by origins, which belong to places in the markdown. So each shown line is searched there.
  colour(element, block) {
    let at = block.start;
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), nodes = [];
    while (walker.nextNode()) if (!walker.currentNode.parentElement.closest("figcaption")) nodes.push(walker.currentNode);
    for (const node of nodes) {
      const parts = document.createDocumentFragment();
      for (const line of node.data.split(/(?<=\n)/)) {
        if (!line.trim()) { parts.append(line); continue; }
        const found = this.text.indexOf(line, at);
        const from = found >= 0 && found < block.end ? found : at;
        this.paint(parts, line, from);
        at = Math.min(from + line.length, block.end);
      }
      node.replaceWith(parts);
    }
  }

  paint(parts, line, from) {
    let i = this.pieceAt(from);
    for (let done = 0; done < line.length; i++) {
      const piece = this.pieces[i];
      const end = piece ? Math.min(Math.max(piece.end - from, done), line.length) : line.length;
      if (end === done) continue;
      const span = document.createElement("span");
      span.title = span.dataset.origin = piece ? piece.origin : "plain";
      span.textContent = line.slice(done, end);
      parts.append(span);
      done = end;
    }
  }

  pieceAt(offset) {
    let low = 0, high = this.pieces.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pieces[middle].end <= offset) low = middle + 1; else high = middle;
    }
    return low;
  }
}

// Makes the frame of a block of code, with the language's name and a button that copies the code.
function frame(pre) {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  const language = document.createElement("span"), button = document.createElement("button");
  language.textContent = (/language-(\S+)/.exec(pre.firstElementChild.className) || ["", "code"])[1];
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", () => copied(pre.textContent, button));
  caption.append(language, button);
  figure.append(caption);
  return figure;
}
