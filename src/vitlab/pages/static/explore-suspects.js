/* The images whose labels are likely wrong, the likeliest first. */

import { thumb } from "./explore-points.js";

const PAGE = 30; // at a time

export class Suspects {
  /* point(index): show where an image is on the map; open(index): look inside */
  constructor(data, sheet, point, open) {
    Object.assign(this, { data, sheet, point, open, shown: 0 });
    this.root = vitlab.element("section", "box suspects");
    this.root.setAttribute("aria-labelledby", "suspects-title");
    const title = this.root.appendChild(vitlab.element("h2", "", "Likely label errors"));
    title.id = "suspects-title";
    const count = data.suspects.length;
    const words = count ? "The model is sure enough of another class; behind each name stands the probability of the label."
      : data.guess.some((each) => each >= 0) ? "None stands out." : "To find them takes a model that knows these classes.";
    this.root.append(vitlab.element("p", "small", words));
    this.list = this.root.appendChild(vitlab.element("ol"));
    this.more = this.root.appendChild(vitlab.element("button", "button slim"));
    this.more.type = "button";
    this.more.addEventListener("click", () => this.show());
    this.show();
  }

  show() {
    const { suspects } = this.data;
    const next = suspects.slice(this.shown, this.shown + PAGE);
    this.list.append(...next.map((each) => this.item(each)));
    this.shown += next.length;
    this.more.hidden = this.shown >= suspects.length;
    this.more.textContent = `${suspects.length - this.shown} more`;
  }

  item({ index, truth, better, score }) {
    const { names, classes } = this.data;
    const own = `label ${vitlab.percent(score)}`; // its probability
    const item = document.createElement("li");
    const button = item.appendChild(vitlab.element("button", "suspect"));
    button.type = "button";
    button.title = "Look inside";
    const canvas = button.appendChild(document.createElement("canvas"));
    thumb(canvas, this.sheet, this.data.sheet, index);
    const text = button.appendChild(vitlab.element("span"));
    text.append(
      vitlab.element("b", "", `${classes[truth]} → ${classes[better]}`),
      vitlab.element("span", "small", `${names[index]} · ${own}`),
    );
    const asked = `${names[index]}: labeled ${classes[truth]}, more likely ${classes[better]}`;
    button.setAttribute("aria-label", `${asked}; probability of the label ${vitlab.percent(score)}`);
    button.addEventListener("click", () => this.open(index));
    button.addEventListener("pointerenter", () => this.point(index));
    button.addEventListener("focus", () => this.point(index));
    return item;
  }
}
