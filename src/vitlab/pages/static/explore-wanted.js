/* Which request answers what a person chose, for one model: its own layers, tokens and classes. */

import { patchAt } from "./explore-brush.js";
import { VIEWS } from "./explore-words.js";

/* panel: {model, look, seen, base} -> {view, path, token, …}, or {why} it cannot be shown; attention
   also {rows: how many heads of all layers come, row: the first of them to show, heads: how many} */
export function requestFor(panel) {
  const { model, seen, base } = panel;
  const { by } = VIEWS[seen.view];
  const token = by.includes("place") ? tokenOf(panel) : { token: 0 };
  if (token.why) return token;
  if (seen.view === "attention") return attentionOf(panel, token);
  const asked = new URLSearchParams();
  if (seen.view === "rollout") asked.set("layer", attentionLayer(panel.look, seen.depth) + 1);
  if (by.includes("features")) asked.set("layer", Math.round(seen.depth * panel.look.depth));
  if (by.includes("place")) asked.set("token", token.token);
  if (by.includes("class")) {
    const number = classOf(panel);
    if (number === null) return { why: `${model.name} does not know ${seen.chosen ? `the class ${seen.chosen.name}` : "any class"}.` };
    asked.set("class", number);
  }
  const kind = ["colors", "mask"].includes(seen.view) ? seen.view : `map/${seen.view}`;
  return { view: seen.view, ...token, path: `${base}/${kind}?${asked}` };
}

function attentionOf({ look, base, seen }, { token }) {
  const path = `${base}/attention/${token}`;
  if (token === "pool") return { view: "attention", token, path, rows: look.pool, row: 0, heads: look.pool };
  const layer = attentionLayer(look, seen.depth);
  return { view: "attention", token, path, rows: look.layers.length * look.heads, row: layer * look.heads, heads: look.heads, layer };
}

/* depth: from 0, what enters the first block, to 1, the output of the last one: models of different
   depths are shown at the same share of it. -> the number of a layer in look.layers */
export const attentionLayer = (look, depth) => Math.max(0, Math.round(depth * look.layers.length) - 1);

function tokenOf({ look, seen }) {
  const { prefix, pool } = look;
  if (seen.token === "pool" && pool && seen.view === "attention") return { token: "pool" };
  if (seen.token) {
    const token = prefix.indexOf(seen.token);
    return token < 0 ? { why: `There is no ${seen.token === "pool" ? "attention pool" : seen.token} here.` } : { token };
  }
  const patch = seen.at && patchAt(seen.at, look);
  return patch === null ? { why: "This model does not see that part of the photo." } : { token: prefix.length + patch };
}

/* The class that is explained, by its number in this model: the likeliest unless one was chosen. */
export function classOf({ model, look, seen: { chosen } }) {
  if (!chosen) return look.top[0]?.class ?? null;
  if (model.classes[chosen.class] === chosen.name) return chosen.class; // one of several of that name
  const number = model.classes.indexOf(chosen.name);
  return number < 0 ? null : number;
}
