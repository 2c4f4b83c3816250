/* The heads of one layer, side by side: a small picture each, of where it looks. */

import { heatTile, paintHead } from "./explore-paint.js";
import { shortPercent } from "./explore-words.js";

/* Attention from one token in one layer, read out of what the server sent.
   data: as attentionRows reads it; row: of the layer's first head; heads: how many; prefix: tokens before
   the patches
   -> {heads: [{patches, before}], mean: {patches, before}}; before: the shares of the prefix tokens */
export function readHeads({ largest, bytes, tokens }, row, heads, prefix) {
  const mean = new Float32Array(tokens);
  const found = [];
  for (let head = 0; head < heads; head += 1) {
    const start = (row + head) * tokens;
    const step = largest[row + head] / 255;
    const values = Float32Array.from(bytes.subarray(start, start + tokens), (byte) => step * byte);
    values.forEach((value, place) => (mean[place] += value / heads));
    found.push(parted(values, prefix));
  }
  return { heads: found, mean: parted(mean, prefix) };
}

function parted(values, prefix) {
  return { patches: values.subarray(prefix), before: values.subarray(0, prefix) };
}

export class Heads {
  /* choose(head) is called with a head's number, or null for the mean of all. */
  constructor(host, choose) {
    this.choose = choose;
    this.list = host.appendChild(vitlab.element("ol", "heads"));
    this.list.setAttribute("aria-label", "Heads");
    this.tile = document.createElement("canvas");
    this.items = [];
  }

  clear() {
    this.list.hidden = true;
  }

  /* found: of readHeads; what: {photo, box, grid, at, strength, same, chosen} */
  show(found, what) {
    this.list.hidden = false;
    const all = [found.mean, ...found.heads];
    if (this.items.length !== all.length) this.build(all.length);
    const peaks = all.map(({ patches }) => patches.reduce((one, other) => Math.max(one, other), 0));
    const common = peaks.slice(1).reduce((one, other) => Math.max(one, other), 0);
    all.forEach(({ patches }, place) => {
      const item = this.items[place];
      const high = what.same && place ? common : peaks[place];
      const tile = heatTile(patches, what.grid, { low: 0, high, ramp: "rising" }, what.strength, this.tile);
      this.fit(item.canvas, what);
      paintHead(item.canvas, { ...what, tile });
      item.peak.textContent = shortPercent(peaks[place]);
      item.button.setAttribute("aria-pressed", String(place - 1 === (what.chosen ?? -1)));
    });
  }

  /* As many pixels as the screen shows, in the shape of what the model saw. */
  fit(canvas, { photo, box: [left, top, right, bottom] }) {
    const ratio = ((right - left) * photo.width) / ((bottom - top) * photo.height);
    const width = Math.round(120 * Math.min(2, devicePixelRatio));
    const height = Math.max(1, Math.round(width / ratio));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  }

  build(count) {
    this.items = Array.from({ length: count }, (_, place) => {
      const button = vitlab.element("button", "head");
      button.type = "button";
      const canvas = button.appendChild(document.createElement("canvas"));
      const words = button.appendChild(vitlab.element("span", "small"));
      const name = place ? `Head ${place}` : "Mean";
      const label = words.appendChild(vitlab.element("b", "", String(place || name)));
      if (place) label.prepend(vitlab.element("span", "", "Head "));
      const peak = words.appendChild(document.createElement("span"));
      peak.title = "The largest share of one patch";
      button.addEventListener("click", () => this.choose(place ? place - 1 : null));
      return { name, button, canvas, peak };
    });
    this.list.replaceChildren(...this.items.map(({ button }) => {
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  }
}
