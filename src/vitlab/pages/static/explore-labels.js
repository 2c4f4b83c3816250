/* Labeling: give images of the map a class; a linear head refits, and the next ones are proposed. */

import { Problem, ask, post } from "./explore-asking.js";
import { PLAIN, markOf, thumb } from "./explore-points.js";

const { element } = vitlab;
const SURE = 0.3; // a margin between the head's two best classes below it is a doubt
const LISTS = 1 << 26; // bytes of a list of labels

function button(words, act, name = "button slim") {
  const made = element("button", name, words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

export class Labels {
  /* map: of explore-map.js; active: the number of the class that a click gives, null for none */
  constructor(map) {
    Object.assign(this, { map, active: null, asked: 0, unsaved: false });
    this.state = { classes: [], labels: [], guess: [], margin: [], next: [], accuracy: null, folder: "" };
    this.root = element("section", "box labels");
    this.root.setAttribute("aria-labelledby", "labels-title");
    const title = this.root.appendChild(element("h2", "", "Label images"));
    title.id = "labels-title";
    this.says = this.root.appendChild(element("p", "small"));
    this.chips = this.root.appendChild(element("div", "row chips"));
    this.chips.setAttribute("role", "group");
    this.chips.setAttribute("aria-label", "Class that a click gives");
    this.root.append(this.form());
    this.news = this.root.appendChild(element("p", "small"));
    this.head = this.root.appendChild(element("h3", "", "Look at these next"));
    this.list = this.root.appendChild(element("ol", "next"));
    this.list.addEventListener("keydown", (event) => {
      const item = event.target.closest("[data-index]");
      if (item && this.key(event.key, Number(item.dataset.index))) event.preventDefault();
    });
    this.root.append(this.files());
    addEventListener("beforeunload", (event) => this.unsaved && event.preventDefault());
    this.send(() => ask("api/labels"));
  }

  form() {
    const form = element("form", "row new-class");
    const input = form.appendChild(document.createElement("input"));
    Object.assign(input, { type: "text", maxLength: 200, placeholder: "New class", autocomplete: "off" });
    input.setAttribute("aria-label", "Name of a new class");
    form.append(element("button", "button slim", "Add"));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const name = input.value.trim();
      if (!name) return;
      if (!this.state.classes.includes(name)) await this.give([], name);
      input.value = "";
      this.active = null;
      this.choose(this.state.classes.indexOf(name));
    });
    return form;
  }

  files() {
    const row = element("div", "row");
    row.append(button("Save labels", () => this.save()));
    const label = row.appendChild(element("label", "button slim", "Load labels"));
    const input = label.appendChild(element("input", "quiet"));
    Object.assign(input, { type: "file", accept: ".csv,text/csv" });
    input.addEventListener("change", async () => {
      const [file] = input.files;
      if (file) await this.load(file);
      input.value = "";
    });
    return row;
  }

  /* A class that clicks give from now on; the same again: none, and clicks open images. */
  choose(number) {
    this.active = number === this.active || number < 0 ? null : number;
    this.show();
    const name = this.state.classes[this.active];
    vitlab.say(name === undefined ? "A click opens an image." : `A click gives the class ${name}.`);
  }

  /* Give images the active class, or another by name; "": take their labels away. */
  async give(places, name = this.state.classes[this.active]) {
    if (name === undefined) return vitlab.say("Choose a class first, or add one.");
    if (places.length) this.unsaved = true;
    await this.send(() => post("api/labels", JSON.stringify({ images: places, class: name })));
    if (places.length === 1) vitlab.say(`${this.map.data.names[places[0]]}: ${name || "no label"}`);
  }

  /* What was asked last is shown, whichever answer comes last. */
  async send(request) {
    const number = ++this.asked;
    try {
      const state = await (await request()).json();
      if (number !== this.asked) return;
      this.state = state;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      vitlab.say(error.message);
    }
    this.show();
    this.map.relabeled();
  }

  /* A key over an image: 1 to 9 give a class, 0 or Delete take it away, Enter gives the active one. */
  key(key, index) {
    if (index < 0) return false;
    const name = this.state.classes[Number(key) - 1];
    if (/^[1-9]$/.test(key) && name !== undefined) this.give([index], name);
    else if (["0", "Delete", "Backspace"].includes(key)) this.give([index], "");
    else if (key === "Enter" && this.active !== null) this.give([index]);
    else return false;
    return true;
  }

  show() {
    const { classes, labels, accuracy, next } = this.state;
    const known = labels.filter((label) => label >= 0).length;
    this.says.textContent = "Choose a class, then click its images on the map or below; choose it again to stop. Keys over an image: 1 to 9 give a class, 0 takes it away.";
    this.chips.replaceChildren(...classes.slice(0, 60).map((name, number) => {
      const chip = button("", () => this.choose(number), "button slim chip");
      const mark = markOf(number);
      mark.setAttribute("aria-hidden", "true");
      chip.append(mark, element("bdi", "", name));
      if (number < 9) chip.append(element("kbd", "small", String(number + 1)));
      chip.setAttribute("aria-pressed", String(number === this.active));
      return chip;
    }));
    const right = accuracy === null ? "With a second class, the others are guessed." : `When each is left out in turn, ${vitlab.percent(accuracy)} of them are guessed right.`;
    this.news.textContent = `${known} of ${labels.length} images have a label. ${known ? right : ""}`;
    this.head.hidden = !next.length;
    const at = [...this.list.children].findIndex((item) => item.contains(document.activeElement));
    this.list.replaceChildren(...next.map((index) => this.item(index)));
    if (at >= 0) this.list.children[Math.min(at, next.length - 1)]?.firstElementChild.focus();
  }

  item(index) {
    const item = element("li");
    const made = item.appendChild(button("", () => this.give([index]), "proposal"));
    made.dataset.index = index;
    const canvas = made.appendChild(document.createElement("canvas"));
    thumb(canvas, this.map.sheet, this.map.data.sheet, index);
    const { guess, classes } = this.state;
    made.append(element("bdi", "small", guess.length ? `${classes[guess[index]]}?` : ""));
    made.setAttribute("aria-label", `${this.map.data.names[index]}${this.words(index) && `: ${this.words(index)}`}`);
    made.addEventListener("focus", () => this.map.point(index, true));
    made.addEventListener("pointerenter", () => this.map.point(index));
    return item;
  }

  /* What is known of an image: its label, or what the head guesses. */
  words(index) {
    const { classes, labels, guess, margin } = this.state;
    if (labels[index] >= 0) return `your label ${classes[labels[index]]}`;
    if (!guess.length) return "";
    return `guessed ${classes[guess[index]]}${margin[index] < SURE ? ", in doubt" : ""}`;
  }

  /* The marks of the map: by label, or by what the head says of those without one too. */
  marks(guessed) {
    const { classes, labels, guess } = this.state;
    const own = classes.map((_, number) => markOf(number));
    const plain = PLAIN();
    const of = (index) => own[labels[index] >= 0 || !guessed ? labels[index] : guess[index]] ?? plain;
    return { of, order: (index) => Number(labels[index] >= 0), legend: own.slice(0, 60).map((mark, number) => [mark, classes[number]]) };
  }

  async save() {
    try {
      const text = await (await ask("api/labels.csv")).text();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = "labels.csv";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return vitlab.say(error.message);
    }
    this.unsaved = false;
    vitlab.say(`Saved. labels.csv is data of every command: vitlab probe labels.csv --images ${this.state.folder}`);
  }

  /* Labels of a list that was saved: its paths are found at the ends of the images' names. */
  async load(file) {
    if (file.size > LISTS) return vitlab.say("This list is too large.");
    const [header, ...rows] = parsed(await file.text());
    const [path, label] = ["path", "label"].map((name) => header?.indexOf(name) ?? -1);
    if (path < 0 || label < 0) return vitlab.say("This is no list of labels: it needs the columns path and label.");
    const byName = new Map();
    this.map.data.names.forEach((name, index) => {
      const last = name.split("/").at(-1);
      byName.set(last, [...(byName.get(last) ?? []), [`/${name}`, index]]);
    });
    const groups = new Map();
    let found = 0;
    for (const row of rows) {
      const place = (row[path] ?? "").replace(/^(\.?\/)+/, "");
      const [, index] = (byName.get(place.split("/").at(-1)) ?? []).find(([name]) => name.endsWith(`/${place}`)) ?? [];
      if (index === undefined || !row[label]) continue;
      groups.set(row[label], [...(groups.get(row[label]) ?? []), index]);
      found += 1;
    }
    for (const [name, places] of groups) await this.give(places, name);
    vitlab.say(`${found} of ${rows.length} labels are of images on this map.`);
  }
}

/* The rows of a list with commas, whose cells may be in quotes. */
export function parsed(text) {
  const rows = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    rows.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
    if (end !== ",") rows.push([]);
  }
  return rows.filter((row) => row.some(Boolean));
}
