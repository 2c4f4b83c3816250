/* One model and one photo: what the model sees of it, drawn over it, and what it says. */

import { Newest, Problem, api } from "./explore-asking.js";
import { PredictionBars } from "./explore-bars.js";
import { patchAt } from "./explore-brush.js";
import { Heads } from "./explore-heads.js";
import { mapOf, readingOf } from "./explore-maps.js";
import { faint } from "./explore-paint.js";
import { Picture } from "./explore-picture.js";
import { classOf, requestFor } from "./explore-wanted.js";
import { VIEWS } from "./explore-words.js";

export class Panel {
  /* hands: what people do with it: point(panel, place, event), press(panel, place, event), lift(),
     key(panel, event), head(number), explain(panel, class); and what becomes of it: changed(panel) */
  constructor(number, hands) {
    this.hands = hands;
    this.root = vitlab.element("section", "box panel");
    this.title = this.root.appendChild(vitlab.element("h2"));
    this.title.id = `panel-${number}`;
    this.root.setAttribute("aria-labelledby", this.title.id);
    this.picture = new Picture(this.root.appendChild(vitlab.element("div", "see")));
    const side = this.root.appendChild(vitlab.element("div", "side"));
    this.heads = new Heads(side, (head) => hands.head(head));
    this.bars = new PredictionBars(side.appendChild(vitlab.element("div", "found")), (each) => hands.explain(this, each));
    this.fetching = new Newest((wanted, signal) => this.fetch(wanted, signal));
    this.brushing = new Newest((patches) => this.ask(patches));
    this.turn = 0;
    this.forget();
    this.listen();
  }

  listen() {
    const { picture, hands } = this;
    const on = (name, act) => picture.canvas.addEventListener(name, (event) => this.look && act(event));
    on("pointermove", (event) => hands.point(this, picture.place(event), event));
    on("pointerdown", (event) => event.button === 0 && hands.press(this, picture.place(event), event));
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) on(name, () => hands.lift());
    on("keydown", (event) => hands.key(this, event));
  }

  forget() {
    Object.assign(this, { photo: null, look: null, data: null, map: null, less: null });
    this.fetching.forget();
    this.brushing.forget();
    this.tell("");
  }

  /* Another model or photo: the first pass, which may take seconds. Return whether it is there. */
  async open(number, model, image) {
    const turn = (this.turn += 1);
    this.forget();
    Object.assign(this, { number, model, image, base: `api/look/${number}/${encodeURIComponent(image.id)}` });
    this.title.replaceChildren(vitlab.element("bdi", "", model.name), " ", vitlab.element("span", "small", model.notation));
    this.picture.canvas.setAttribute(
      "aria-label",
      `${image.name} as ${model.name} sees it. Arrow keys point at a patch, Space brushes it out, Enter holds it.`,
    );
    this.wait(`Looking at ${image.name} …`);
    this.draw();
    try {
      const photo = await api.picture(image.id);
      if (turn !== this.turn) return false;
      Object.assign(this, { photo, gray: faint(photo, 1024), small: faint(photo, 320) });
      this.draw();
      const look = await api.json(this.base);
      if (turn !== this.turn) return false;
      this.look = look;
      this.tell("");
      return true;
    } catch (error) {
      if (turn === this.turn) this.fail(error);
      return false;
    }
  }

  wait(text) {
    this.root.setAttribute("aria-busy", String(Boolean(text)));
    this.picture.news.textContent = text || this.why;
    this.picture.news.classList.toggle("wrong", !text && this.failed);
  }

  /* Why nothing is shown, or "". */
  tell(why, failed = false) {
    Object.assign(this, { why, failed });
    this.wait("");
  }

  fail(error) {
    if (!(error instanceof Problem)) throw error;
    this.data = null;
    this.tell(error.message, true);
    this.draw();
    vitlab.say(`${this.model.name}: ${error.message}`);
  }

  /* Show what a person chose: at once if it is here, else when it has come.
     seen: {view, depth, head, at, token, out, chosen, same, strength, lines}; out: patches of this model */
  update(seen) {
    this.seen = seen;
    if (!this.look) return this.draw();
    const wanted = this.model.views[seen.view] ? { why: this.model.views[seen.view] } : requestFor(this);
    this.tell(wanted.why ?? "");
    if (wanted.why) {
      this.data = null;
      this.fetching.forget();
      return this.draw();
    }
    const kept = api.kept.get(wanted.path);
    if (kept) {
      this.fetching.forget();
      return this.take(wanted, kept);
    }
    this.fetching.want(wanted);
    this.draw(); // the frame around the patch does not wait
  }

  take(wanted, value) {
    this.data = { ...wanted, value };
    this.tell("");
    this.draw();
    this.hands.changed(this);
  }

  async fetch(wanted, signal) {
    const { turn } = this;
    const late = setTimeout(() => this.wait(`Computing ${VIEWS[wanted.view].title.toLowerCase()} …`), 150);
    try {
      const value = await (wanted.rows ? api.attention(wanted.path, wanted.rows, signal) : api.json(wanted.path, signal));
      if (turn === this.turn && wanted.view === this.seen.view && !this.why) this.take(wanted, value);
    } catch (error) {
      if (turn === this.turn && !signal.aborted) this.fail(error);
    } finally {
      clearTimeout(late);
    }
  }

  /* The prediction without the patches that are brushed out. */
  brush(out) {
    this.brushing.forget();
    if (!this.look) return;
    if (out.size) return this.brushing.want([...out]);
    this.less = null;
    this.drawBars();
  }

  async ask(patches) {
    const { turn } = this;
    const classes = this.look.top.map((each) => each.class);
    const late = setTimeout(() => this.wait("Predicting without the patches …"), 150);
    try {
      const less = await api.without(this.number, this.image.id, patches, classes);
      if (turn !== this.turn || !this.seen.out.size) return;
      this.less = less;
      this.drawBars();
      this.hands.changed(this);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (turn === this.turn) vitlab.say(`${this.model.name}: ${error.message}`);
    } finally {
      clearTimeout(late);
      if (turn === this.turn) this.wait("");
    }
  }

  draw() {
    const { photo, look, data, seen } = this;
    this.map = look && data?.view === seen.view ? mapOf(this) : null;
    if (this.map?.found) this.drawHeads();
    else this.heads.clear();
    this.drawBars();
    this.picture.readout.textContent = this.map ? readingOf(this) : "";
    if (!photo) return this.picture.show(null, null);
    if (!look) return this.picture.show({ photo, box: [0, 0, 1, 1], grid: null, tile: null }, null);
    const scene = { ...this.scene(), photo: this.map && !this.map.colored ? this.gray : photo, tile: this.map?.tile ?? null };
    this.picture.show(scene, this.map?.scale ? this.map : null);
    this.root.dataset.shown = this.map ? `${data.path} ${data.row ?? ""}`.trim() : "";
  }

  drawHeads() {
    const { small, map, data, look, seen } = this;
    const at = data.token >= look.prefix.length ? data.token - look.prefix.length : null;
    const { strength, same, head: chosen } = seen;
    this.heads.show(map.found, { photo: small, box: look.box, grid: look.grid, at, strength, same, chosen });
  }

  scene() {
    const { look, seen } = this;
    return { box: look.box, grid: look.grid, lines: seen.lines, out: seen.out, at: this.patch() };
  }

  /* The patch that is pointed at, or null. */
  patch() {
    return this.seen.token || !this.seen.at ? null : patchAt(this.seen.at, this.look);
  }

  drawBars() {
    const { look, less, seen, model } = this;
    const chosen = look && VIEWS[seen.view].by.includes("class") ? classOf(this) : null;
    const now = [look, less, chosen];
    if (this.barred?.every((each, place) => each === now[place])) return;
    this.barred = now;
    if (look) this.bars.show(model, look, less, chosen);
    else this.bars.clear();
  }
}
