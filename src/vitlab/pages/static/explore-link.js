/* What is seen, as the end of the page's address: a link brings it back. */

import { VIEWS } from "./explore-words.js";

/* seen: of explore.js; -> "#view=attention&…"; what is as at the start is left out */
export function linkOf(seen) {
  const words = new URLSearchParams();
  if (seen.tab !== "photo") words.set("tab", seen.tab);
  words.set("models", seen.models.join());
  if (seen.image) words.set("image", seen.image);
  words.set("view", seen.view);
  if (seen.depth !== 1) words.set("depth", seen.depth.toFixed(4));
  if (seen.token) words.set("from", seen.token);
  if (seen.at) words.set("at", seen.at.map((each) => each.toFixed(4)).join());
  if (seen.held) words.set("held", "1");
  if (seen.head !== null) words.set("head", seen.head + 1);
  if (seen.chosen) words.set("class", seen.chosen.class);
  if (seen.out.size) words.set("out", [...seen.out].join());
  return `#${words}`;
}

/* What a link says, checked: it may come from anywhere. models: of the state; two are shown side by
   side if it names none -> the fields of `seen` that it names */
export function linkedFields(hash, models) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (name, low, high) => {
    const value = words.has(name) ? Number(words.get(name)) : NaN;
    return value >= low && value <= high ? value : undefined;
  };
  const numbers = (name) => (words.get(name) ?? "").split(",").filter(Boolean).map(Number);
  const shown = [...new Set(numbers("models"))].filter((each) => Number.isInteger(each) && each >= 0 && each < models.length).slice(0, 2);
  const at = numbers("at");
  const found = {
    tab: words.get("tab") === "map" ? "map" : "photo",
    models: shown.length ? shown : models.length === 2 ? [0, 1] : [0],
    image: words.get("image"),
    view: Object.hasOwn(VIEWS, words.get("view")) ? words.get("view") : undefined,
    depth: number("depth", 0, 1),
    head: number("head", 1, 1000),
    token: words.get("from") || null,
    at: at.length === 2 && at.every((each) => each >= 0 && each <= 1) ? at : null,
    held: words.has("held"),
    out: new Set(numbers("out").filter((each) => Number.isInteger(each) && each >= 0)),
  };
  if (found.head) found.head -= 1;
  const { classes } = models[found.models[0]];
  const chosen = number("class", 0, classes.length - 1);
  if (Number.isInteger(chosen)) found.chosen = { class: chosen, name: classes[chosen] };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}
