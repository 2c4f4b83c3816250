/* What hands do on a photo: point, hold, brush out, by mouse, finger or keyboard. */

import { middleOf, patchAt, samePart } from "./explore-brush.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Hands {
  /* page: {seen, brush, panels, set(changes), brushed(), head(number), explain(panel, class),
     changed(panel)} */
  constructor(page) {
    Object.assign(this, { page, brushing: false, stroke: null });
    this.head = (number) => page.head(number);
    this.explain = (panel, number) => page.explain(panel, number);
    this.changed = (panel) => page.changed(panel);
  }

  /* The patch that is pointed at now, drawn or not yet; null for none. */
  where(panel) {
    const { token, at } = this.page.seen;
    return token || !at ? null : patchAt(at, panel.look);
  }

  point(panel, place, event) {
    if (this.stroke) return this.sweep(panel, place);
    const pressed = event.pointerType === "mouse" || event.buttons > 0;
    if (pressed && !this.page.seen.held) this.aim(panel, patchAt(place, panel.look));
  }

  press(panel, place, event) {
    const patch = patchAt(place, panel.look);
    if (patch === null) return;
    if (this.brushing) {
      event.preventDefault();
      panel.picture.canvas.setPointerCapture(event.pointerId);
      this.page.brush.start(this.firsts(panel, patch).next().value);
      this.stroke = place;
      return this.sweep(panel, place);
    }
    const again = this.page.seen.held && patch === this.where(panel);
    this.aim(panel, patch, event.pointerType === "mouse" && !again);
  }

  lift() {
    this.stroke = null;
  }

  /* Every patch between the last place and this one: a quick hand skips none. */
  sweep(panel, place) {
    const [rows, columns] = panel.look.grid;
    const [from, to] = [this.stroke, place];
    const steps = Math.max(1, Math.ceil(2 * Math.max(Math.abs(to[0] - from[0]) * columns, Math.abs(to[1] - from[1]) * rows)));
    let changed = false;
    for (let step = 1; step <= steps; step += 1) {
      const patch = patchAt(from.map((start, axis) => start + ((to[axis] - start) * step) / steps), panel.look);
      if (patch !== null) changed = this.page.brush.touch(this.firsts(panel, patch)) || changed;
    }
    this.stroke = place;
    if (changed) this.page.brushed();
  }

  /* A patch of any panel, as patches of the first one, by which they are kept. */
  firsts(panel, patch) {
    const [first] = this.page.panels;
    return (panel === first || !first.look ? new Set([patch]) : samePart(new Set([patch]), panel.look, first.look)).values();
  }

  aim(panel, patch, held = false) {
    if (patch === null) return;
    const { seen } = this.page;
    if (patch === this.where(panel) && held === seen.held) return;
    this.page.set({ at: middleOf(patch, panel.look), token: null, held });
  }

  key(panel, event) {
    const [rows, columns] = panel.look.grid;
    const patch = this.where(panel) ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const step = STEPS[event.key];
    if (step) {
      const started = this.where(panel) !== null;
      const row = Math.floor(patch / columns) + (started ? step[0] : 0);
      const column = (patch % columns) + (started ? step[1] : 0);
      if (row >= 0 && row < rows && column >= 0 && column < columns) this.aim(panel, row * columns + column, this.page.seen.held);
    } else if (event.key === " ") {
      this.aim(panel, patch, this.page.seen.held);
      this.page.brush.start(this.firsts(panel, patch).next().value);
      if (this.page.brush.touch(this.firsts(panel, patch))) this.page.brushed();
    } else if (event.key === "Enter") {
      this.aim(panel, patch, !this.page.seen.held);
    } else return;
    event.preventDefault(); // the page does not scroll
  }
}
