/* The map of a data set: a point an image, alike ones near each other; and its likely label errors. */

import { Problem, api, ask, post } from "./explore-asking.js";
import { MOST_CLASSES, PLAIN, RIGHT, WRONG, Window, markOf, nearest, neighbor, paintThumb, thumb } from "./explore-points.js";
import { Labels } from "./explore-labels.js";
import { Suspects } from "./explore-suspects.js";

const STEPS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
const MOST_PICTURES = 300; // on the screen at once
const WAIT = 500; // milliseconds between two looks at the progress

export class DataMap {
  /* opened(image) is called with the image that a person opens. */
  constructor(host, opened) {
    Object.assign(this, { host, opened, data: null, asked: false, index: -1, window: new Window() });
  }

  async open() {
    if (this.asked) return;
    this.asked = true;
    const news = vitlab.element("p", "small", "Asking for the map …");
    const bar = document.createElement("progress");
    bar.max = 1;
    this.host.replaceChildren(news, bar);
    try {
      this.data = await made((part, what) => {
        bar.value = part;
        news.textContent = `${what} …`;
      });
      this.sheet = await api.bitmap("api/map/sheet");
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      news.textContent = error.message;
      news.className = "wrong";
      bar.remove();
      this.asked = false; // and again when the map is chosen again
      return;
    }
    this.build();
  }

  build() {
    const { data } = this;
    const wide = vitlab.element("section", "box plane");
    wide.setAttribute("aria-label", "Map");
    const words = data.images < data.of ? `${data.images} of ${data.of} images` : `${data.images} images`;
    wide.append(vitlab.element("h2", "", "Map of the data"), vitlab.element("p", "small", `${words}: near each other where the model’s features are alike. ${data.note}`));
    this.tools = wide.appendChild(vitlab.element("div", "row controls"));
    this.canvas = wide.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "map of images");
    this.canvas.setAttribute("aria-label", `${words}. Arrow keys go to the next image, Enter opens it, plus and minus zoom.`);
    this.legend = wide.appendChild(vitlab.element("ul", "marks small"));
    this.card = wide.appendChild(vitlab.element("div", "detail"));
    this.card.hidden = true;
    this.suspects = new Suspects(data, this.sheet, (index) => this.point(index, true), (index) => this.show(index));
    this.labels = new Labels(this);
    const beside = vitlab.element("div", "beside-map");
    beside.append(this.labels.root, this.suspects.root);
    this.host.replaceChildren(wide, beside);
    this.choices();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  choices() {
    const { data } = this;
    const few = data.classes.length <= MOST_CLASSES;
    const known = data.truth.some((each) => each >= 0);
    const guessed = data.guess.some((each) => each >= 0);
    const ways = [];
    if (few && known) ways.push(["label", "label"]);
    if (known && guessed) ways.push(["mistake", "right or wrong"]);
    if (few && guessed) ways.push(["guess", "prediction"]);
    if (!ways.length) ways.push(["none", "nothing"]);
    ways.push(["own", "your labels"], ["head", "your labels and guesses"]);
    this.way = this.select("Color by", ways);
    const names = data.classes.map((name, number) => [String(number), name]);
    this.only = this.select("Highlight", [["", "all"], ...names]);
    for (const [words, label, factor] of [["+", "Closer", 1.6], ["−", "Farther", 1 / 1.6], ["Whole map", "Whole map", 0]]) {
      const button = this.tools.appendChild(vitlab.element("button", "button slim", words));
      button.type = "button";
      button.setAttribute("aria-label", label);
      button.addEventListener("click", () => this.zoom(factor));
    }
  }

  select(title, options) {
    const label = this.tools.appendChild(vitlab.element("label", "", title));
    const made = label.appendChild(document.createElement("select"));
    made.append(...options.map(([value, words]) => new Option(words, value)));
    made.addEventListener("change", () => this.draw());
    return made;
  }

  listen() {
    const place = (event) => {
      const area = this.canvas.getBoundingClientRect();
      return [event.clientX - area.left, event.clientY - area.top];
    };
    const on = (name, act, options) => this.canvas.addEventListener(name, act, options);
    let from = null;
    let moved = false;
    on("pointerdown", (event) => {
      [from, moved] = [place(event), false];
      this.canvas.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => {
      const here = place(event);
      if (from && this.window.zoom > 1 && (moved || Math.hypot(here[0] - from[0], here[1] - from[1]) > 4)) {
        moved = true;
        this.window.move(here[0] - from[0], here[1] - from[1], this.width, this.height);
        from = here;
        this.draw();
      } else if (!from && event.pointerType === "mouse") this.point(nearest(this.places, here, 16));
    });
    on("pointerup", (event) => {
      const index = nearest(this.places, place(event), 22);
      if (from && !moved && index >= 0) {
        if (this.labels.active !== null) this.labels.give([index]);
        else if (event.pointerType === "mouse") this.show(index);
        else this.point(index); // a finger first sees what it would open
      }
      from = null;
    });
    on("pointercancel", () => (from = null));
    on("wheel", (event) => {
      if (this.window.zoom === 1 && event.deltaY > 0) return; // it is the page that scrolls
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), place(event));
    }, { passive: false });
    on("keydown", (event) => this.key(event));
  }

  key(event) {
    const step = STEPS[event.key];
    if (this.labels.key(event.key, this.index)) {
      // a label was given
    } else if (step) this.point(this.index < 0 ? nearest(this.places, [this.width / 2, this.height / 2], Infinity) : neighbor(this.places, this.index, step), true);
    else if (event.key === "Enter" && this.index >= 0) this.show(this.index);
    else if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? 1.6 : 1 / 1.6, this.places[this.index]);
    else if (event.key === "Escape") this.point(-1);
    else return;
    event.preventDefault();
  }

  zoom(factor, at = [this.width / 2, this.height / 2]) {
    if (factor) this.window.closer(factor, ...at, this.width, this.height);
    else this.window.whole();
    this.canvas.style.touchAction = this.window.zoom > 1 ? "none" : "pan-y";
    this.draw();
  }

  /* Point at an image, -1 for none; seek: bring it onto the screen, and say what it is. */
  point(index, seek = false) {
    if (index === this.index && !seek) return;
    this.index = index;
    if (seek && index >= 0) {
      this.window.towards(this.data.points[index]);
      vitlab.say(this.words(index));
    }
    this.draw();
    this.detail();
  }

  words(index) {
    const { names, classes, truth, guess, confidence } = this.data;
    const said = [];
    if (truth[index] >= 0) said.push(`labeled ${classes[truth[index]]}`);
    if (guess[index] >= 0) said.push(`predicted ${classes[guess[index]]}, ${vitlab.percent(confidence[index])}`);
    said.push(this.labels.words(index));
    return [names[index], said.filter(Boolean).join(", ")].filter(Boolean).join(": ");
  }

  /* The image that is pointed at, larger, with its name and classes. */
  detail() {
    const { index, card } = this;
    card.hidden = index < 0;
    if (index < 0) return;
    const canvas = document.createElement("canvas");
    thumb(canvas, this.sheet, this.data.sheet, index);
    const text = vitlab.element("p", "small", this.words(index));
    const button = vitlab.element("button", "button slim", "Look inside");
    button.type = "button";
    button.addEventListener("click", () => this.show(index));
    card.replaceChildren(canvas, text, button);
    const [x, y] = this.places[index];
    card.style.left = `${this.canvas.offsetLeft + (x > this.width / 2 ? x - 14 - card.offsetWidth : x + 14)}px`;
    card.style.top = `${this.canvas.offsetTop + Math.min(Math.max(0, y - card.offsetHeight / 2), this.height - card.offsetHeight)}px`;
  }

  /* Labels have changed: where nobody chose another way, colors are theirs. */
  relabeled() {
    const { labels } = this.labels.state;
    if (this.way.value === "none" && labels.some((each) => each >= 0)) this.way.value = "own";
    this.draw();
    this.detail();
  }

  /* Open an image in the explorer. */
  async show(index) {
    vitlab.say(`Opening ${this.data.names[index]} …`);
    try {
      this.opened(await (await post(`api/map/${index}`, "")).json());
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      vitlab.say(`${this.data.names[index]}: ${error.message}`);
    }
  }

  draw() {
    const { canvas, data, window: view } = this;
    [this.width, this.height] = [canvas.clientWidth, canvas.clientHeight];
    if (!this.width) return;
    const dense = Math.min(2, devicePixelRatio);
    [canvas.width, canvas.height] = [dense * this.width, dense * this.height];
    const context = canvas.getContext("2d");
    context.scale(dense, dense);
    this.places = data.points.map((point) => view.onScreen(point, this.width, this.height));
    const seen = this.places.flatMap(([x, y], index) => (x > -20 && y > -20 && x < this.width + 20 && y < this.height + 20 ? [index] : []));
    const marks = this.marks();
    const size = seen.length <= MOST_PICTURES ? Math.min(48, 18 * Math.sqrt(view.zoom)) : 0;
    const high = this.only.value === "" ? null : Number(this.only.value);
    // what stands out comes last, on top
    const stands = (index) => high === null || data.truth[index] === high || data.guess[index] === high;
    seen.sort((one, other) => stands(one) - stands(other) || marks.order(one) - marks.order(other));
    const clear = (index) => (context.globalAlpha = stands(index) ? 0.9 : 0.12);
    for (const index of size ? seen : []) {
      clear(index);
      const [x, y] = this.places[index];
      paintThumb(context, this.sheet, data.sheet, index, x - size / 2, y - size / 2, size);
    }
    for (const index of seen) {
      clear(index);
      const [x, y] = this.places[index].map((each) => each - 0.4 * size); // at the corner of its picture
      context.drawImage(marks.of(index), x - 5, y - 5, 10, 10);
    }
    context.globalAlpha = 1;
    if (this.index >= 0) ring(context, this.places[this.index], Math.max(9, size / 1.3));
    this.showLegend(marks.legend);
  }

  /* The mark of every image by what colors it: {of(index), order(index), legend: [[mark, words], …]} */
  marks() {
    const { truth, guess, classes } = this.data;
    const way = this.way.value;
    if (way === "mistake") {
      const [right, wrong] = [RIGHT(), WRONG()];
      const isWrong = (index) => truth[index] >= 0 && truth[index] !== guess[index];
      const count = truth.filter((_, index) => isWrong(index)).length;
      const legend = [[right, `right (${truth.length - count})`], [wrong, `wrong (${count})`]];
      return { of: (index) => (isWrong(index) ? wrong : right), order: (index) => Number(isWrong(index)), legend };
    }
    if (way === "own" || way === "head") return this.labels.marks(way === "head");
    const plain = PLAIN();
    if (way === "none") return { of: () => plain, order: () => 0, legend: [] };
    const own = classes.map((_, number) => markOf(number));
    const labels = way === "label" ? truth : guess;
    return { of: (index) => own[labels[index]] ?? plain, order: () => 0, legend: own.map((mark, number) => [mark, classes[number]]) };
  }

  showLegend(entries) {
    const key = entries.map(([, words]) => words).join("\n");
    if (key === this.listed) return;
    this.listed = key;
    this.legend.replaceChildren(...entries.map(([mark, words]) => {
      const item = vitlab.element("li");
      mark.setAttribute("aria-hidden", "true");
      item.append(mark, vitlab.element("bdi", "", words));
      return item;
    }));
  }
}

/* White between black, around the image that is pointed at. */
function ring(context, [x, y], radius) {
  for (const [color, width] of [["#000", 5], ["#fff", 2.5]]) {
    Object.assign(context, { strokeStyle: color, lineWidth: width });
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.stroke();
  }
}

/* Wait until the server has made the map. */
async function made(progress) {
  for (;;) {
    const response = await ask("api/map");
    const answer = await response.json();
    if (response.status !== 202) return answer;
    progress(answer.progress, answer.what);
    await new Promise((resolve) => setTimeout(resolve, WAIT));
  }
}
