/* What is shown of each photo: the picture, its classes with their bars, or why there are none.
   Names of files and classes are other people's: they are only ever set as text. */
"use strict";
window.vitlab ??= {};

/* One decimal; only all is 100.0% and only nothing is 0.0%. */
vitlab.percent = function (share) {
  const text = `${(100 * share).toFixed(1)}%`;
  if (text === "100.0%" && share < 1) return "> 99.9%";
  return text === "0.0%" && share > 0 ? "< 0.1%" : text;
};

vitlab.element = function (tag, classes = "", text = "") {
  const made = document.createElement(tag);
  made.className = classes;
  made.textContent = text;
  return made;
};

/* Tell the reader of the page, and of the screen, in one line. */
vitlab.say = function (text) {
  document.getElementById("state").textContent = text;
};

/* top: [{class, probability}, …]; color: of a class, for its bar */
vitlab.bars = function (top, color = () => "") {
  const list = vitlab.element("ol", "bars");
  for (const { class: name, probability } of top) {
    const item = document.createElement("li");
    const label = vitlab.element("bdi", "name", name);
    const track = vitlab.element("span", "track");
    const bar = track.appendChild(document.createElement("span"));
    const value = vitlab.element("span", "value", vitlab.percent(probability));
    value.title = String(probability);
    bar.style.background = color(name);
    bar.style.width = `${100 * Math.min(1, Math.max(0, probability))}%`;
    track.setAttribute("aria-hidden", "true");
    item.append(label, value, track);
    list.append(item);
  }
  return list;
};

/* A card for one photo, above those of earlier choices. */
vitlab.Card = class {
  constructor(file, before) {
    this.file = file;
    this.name = file.name || "photo";
    this.root = vitlab.element("li", "box answer");
    this.photo = this.root.appendChild(vitlab.element("div", "photo"));
    this.found = this.root.appendChild(vitlab.element("div", "found"));
    this.url = URL.createObjectURL(file);
    this.image = this.photo.appendChild(document.createElement("img"));
    this.image.alt = `The photo ${this.name}`;
    this.image.addEventListener("error", () => this.blank());
    this.image.src = this.url;
    document.getElementById("answers").insertBefore(this.root, before);
    this.wait("Waiting …");
  }

  /* There is no picture to show. */
  blank() {
    this.photo.classList.add("empty");
    this.root.classList.add("blank");
  }

  fill(...parts) {
    this.found.replaceChildren(vitlab.element("h2", "", this.name), ...parts);
  }

  wait(text) {
    this.root.setAttribute("aria-busy", "true");
    this.fill(vitlab.element("p", "small", text));
  }

  /* top: [{class, probability}, …], best first; notes: lines in small print */
  show(top, notes, unlike = false) {
    const doubt = "Unlike the training images: none of these classes may be right.";
    const warning = unlike ? [vitlab.element("p", "wrong", doubt)] : [];
    const [best] = top;
    this.tell([...warning, vitlab.bars(top)], notes, `${best.class}, ${vitlab.percent(best.probability)}${unlike ? `. ${doubt}` : ""}`);
  }

  /* parts: elements; notes: lines in small print; text: the same in a line */
  tell(parts, notes, text) {
    this.root.removeAttribute("aria-busy");
    this.fill(...parts, ...notes.map((line) => vitlab.element("p", "small", line)));
    vitlab.say(`${this.name}: ${text}`);
  }

  /* text: one sentence; again: what a second try does, if it can help */
  fail(text, notes = [], again = null) {
    this.root.removeAttribute("aria-busy");
    const parts = [vitlab.element("p", "wrong", text)];
    if (again) {
      const button = vitlab.element("button", "button slim", "Try again");
      button.type = "button";
      button.addEventListener("click", again);
      const row = vitlab.element("p");
      row.append(button);
      parts.push(row);
    }
    this.fill(...parts, ...notes.map((line) => vitlab.element("p", "small", line)));
    vitlab.say(`${this.name}: ${text}`);
  }

  remove() {
    URL.revokeObjectURL(this.url);
    this.root.remove();
  }
};

/* The cards on the page, and the button that takes them away. */
vitlab.Cards = class {
  constructor() {
    this.all = [];
    this.clear = document.getElementById("clear");
    this.clear.addEventListener("click", () => {
      for (const card of this.all.splice(0)) card.remove();
      this.clear.hidden = true;
      vitlab.say("Cleared.");
      document.querySelector("input[type=file]").focus();
    });
  }

  add(files) {
    const before = document.getElementById("answers").firstChild;
    const made = files.map((file) => new vitlab.Card(file, before));
    this.all.unshift(...made);
    this.clear.hidden = false;
    return made;
  }
};
