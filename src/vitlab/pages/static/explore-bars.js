/* The likeliest classes as bars, before and after patches were brushed out. */
/* look: what the first pass says; less: the same without some patches, or null. Classes of both are
   listed, the likeliest before first.
   -> [{class, name, before, after}], before and after null where the server did not say them */
export function comparedRows(look, less) {
  const rows = look.top.map((each, place) => ({
    class: each.class, name: each.name, before: each.probability, after: less ? less.chances[place] : null,
  }));
  for (const each of less?.top ?? []) {
    if (rows.some((row) => row.class === each.class)) continue;
    rows.push({ class: each.class, name: each.name, before: null, after: each.probability });
  }
  return rows;
}

export class PredictionBars {
  /* choose(class) is called when a person picks one to explain. */
  constructor(host, choose) {
    this.choose = choose;
    this.legend = host.appendChild(vitlab.element("p", "small legend"));
    this.list = host.appendChild(vitlab.element("ol", "bars"));
    this.note = host.appendChild(vitlab.element("p", "small"));
  }

  /* model: of the state; chosen: the class that is explained, or null */
  show(model, look, less, chosen) {
    this.model = model;
    this.rows = comparedRows(look, less);
    this.chosen = chosen;
    this.legend.replaceChildren(...(less ? key() : []));
    this.list.replaceChildren(...this.rows.map((row) => this.item(row, Boolean(less))));
    this.note.textContent = !look.top.length ? "This model has no classes." : model.several ? "Several classes may apply; the mark on a bar is the class’s threshold." : "";
  }

  clear() {
    for (const each of [this.legend, this.list, this.note]) each.replaceChildren();
  }

  item(row, both) {
    const item = document.createElement("li");
    const name = vitlab.element("button", "name");
    name.type = "button";
    name.append(vitlab.element("bdi", "", row.name));
    name.title = "Explain this class";
    name.setAttribute("aria-pressed", String(row.class === this.chosen));
    name.addEventListener("click", () => this.choose(row.class));
    item.append(name, vitlab.element("span", "value", valueWords(row, both)));
    const mark = this.model.several ? this.model.thresholds[row.class] : undefined;
    item.append(track(row.before, "before", mark));
    if (both) item.append(track(row.after, "after", mark));
    return item;
  }

  /* In words, for those who do not see the bars. */
  words() {
    const [first] = this.rows;
    if (!first) return "no classes";
    if (first.after === null) return `${first.name}, ${vitlab.percent(first.before)}`;
    const best = this.rows.reduce((one, other) => (other.after > one.after ? other : one));
    const was = `${first.name} ${vitlab.percent(first.before)} before, ${vitlab.percent(first.after)} after`;
    return best === first ? was : `${was}; now ${best.name}, ${vitlab.percent(best.after)}`;
  }
}

function valueWords({ before, after }, both) {
  const words = (share) => (share === null ? "–" : vitlab.percent(share));
  return both ? `${words(before)} → ${words(after)}` : words(before);
}

function track(share, kind, mark) {
  const made = vitlab.element("span", `track ${kind}`);
  made.setAttribute("aria-hidden", "true");
  const bar = made.appendChild(document.createElement("span"));
  bar.style.width = `${100 * Math.min(1, Math.max(0, share ?? 0))}%`;
  bar.hidden = share === null;
  if (mark === undefined) return made;
  made.append(vitlab.element("i", "mark"));
  made.lastChild.style.left = `${100 * mark}%`;
  return made;
}

function key() {
  return ["before", "after"].map((kind) => {
    const words = kind === "before" ? "the whole photo" : "without the patches";
    const made = vitlab.element("span", "key", words);
    made.prepend(vitlab.element("i", `swatch ${kind}`));
    return made;
  });
}
