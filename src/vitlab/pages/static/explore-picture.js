/* The large picture of a panel: the photo with a map over it, its scale, and a line that reads it. */

import { paintPhoto, paintScale } from "./explore-paint.js";
import { quantityWords } from "./explore-words.js";

export class Picture {
  constructor(host) {
    this.frame = host.appendChild(vitlab.element("div", "frame"));
    this.canvas = this.frame.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "photo with patches");
    this.news = host.appendChild(vitlab.element("p", "small news-line"));
    this.scale = host.appendChild(vitlab.element("div", "scale small"));
    this.low = this.scale.appendChild(document.createElement("span"));
    this.ramp = this.scale.appendChild(document.createElement("canvas"));
    [this.ramp.width, this.ramp.height] = [256, 12];
    this.ramp.setAttribute("aria-hidden", "true");
    this.high = this.scale.appendChild(document.createElement("span"));
    this.unit = this.scale.appendChild(document.createElement("span"));
    this.readout = host.appendChild(vitlab.element("p", "readout"));
    this.what = null;
    new ResizeObserver(() => this.paint()).observe(this.frame);
  }

  /* Where an event is on the photo, as fractions from its upper left. */
  place(event) {
    const area = this.canvas.getBoundingClientRect();
    return [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height];
  }

  /* what: of paintPhoto, or null; map: {scale, unit} of the tile, or null */
  show(what, map) {
    this.what = what;
    this.paint();
    this.scale.hidden = !map;
    if (!map) return;
    const { scale, unit } = map;
    paintScale(this.ramp.getContext("2d"), 0, 0, 256, 12, scale.ramp);
    this.low.textContent = quantityWords(scale.low, unit);
    this.high.textContent = quantityWords(scale.high, unit);
    this.unit.textContent = map.label;
  }

  paint() {
    const { photo } = this.what ?? {};
    this.canvas.hidden = !photo;
    if (!photo) return;
    const ratio = photo.width / photo.height;
    const most = Math.max(240, Math.min(0.62 * innerHeight, 560));
    const width = Math.max(40, Math.min(this.frame.clientWidth, most * ratio));
    const dense = Math.min(2, devicePixelRatio);
    const size = [Math.round(dense * width), Math.round((dense * width) / ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) {
      [this.canvas.width, this.canvas.height] = size;
      this.canvas.style.width = `${width}px`;
    }
    paintPhoto(this.canvas.getContext("2d"), ...size, this.what);
  }
}
