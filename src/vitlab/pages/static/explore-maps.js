/* From what the server sent to a map over the photo, and to words that read it. */

import { middleOf, patchAt } from "./explore-brush.js";
import { readHeads } from "./explore-heads.js";
import { colorTile, heatTile, scaleOf } from "./explore-paint.js";
import { classOf } from "./explore-wanted.js";
import { VIEWS, capital, largestOf, patchWords, quantityWords, shortPercent } from "./explore-words.js";

/* look: the first pass; data: {view, value, …} of a panel; seen: what a person chose
   -> {values, grid, tile, scale, unit, label}, with {found, one} of attention; colors have no scale */
export function mapOf({ look, data, seen }) {
  const { value } = data;
  if (data.view === "colors") return { tile: colorTile(value.colors, seen.strength), colored: true };
  if (data.view === "mask") {
    const colors = value.labels.map((row) => row.map((label) => value.colors[label]));
    return { tile: colorTile(colors, seen.strength), colored: true };
  }
  const map = data.view === "attention" ? attention(look, data, seen) : {
    values: value.values.flat(), grid: value.grid, unit: value.unit, label: value.unit,
  };
  map.scale ??= scaleOf(map.values);
  map.tile = heatTile(map.values, map.grid, map.scale, seen.strength);
  return map;
}

function attention({ prefix, grid }, { value, row, heads }, { head }) {
  const found = readHeads(value, row, heads, prefix.length);
  const one = found.heads[head] ?? found.mean;
  const high = one.patches.reduce((low, other) => Math.max(low, other), 0);
  const whose = found.heads[head] ? `head ${head + 1}` : "mean of the heads";
  return { found, one, grid, values: one.patches, unit: "%", label: `share of the attention, ${whose}`, scale: { low: 0, high, ramp: "rising" } };
}

/* One line under the picture of a panel that shows a map: of what is drawn, though the pointer may
   be further. */
export function readingOf(panel) {
  const { map, look, model, data } = panel;
  const { by } = VIEWS[data.view];
  if (map.one) return attentionWords(panel);
  if (data.view === "mask") return maskWords(panel);
  if (map.colored) return "";
  if (by.includes("place")) return similarityWords(panel);
  const whose = by.includes("class") ? `${model.classes[classOf(panel)]} · ` : "";
  const at = panel.patch();
  if (at === null) {
    const [[value, patch]] = largestOf(map.values, 1);
    return `${whose}highest at ${patchWords(patch, map.grid)}: ${quantityWords(value)}`;
  }
  const cell = patchAt(middleOf(at, look), { box: look.box, grid: map.grid }); // a layer may have its own
  return `${whose}${patchWords(at, look.grid)}: ${quantityWords(map.values[cell])}`; // the unit is on the scale
}

/* The class in the middle of the patch that is pointed at; else the share of each. */
function maskWords(panel) {
  const { look, data: { value: { labels, names } } } = panel;
  const at = panel.patch();
  if (at !== null) {
    const [row, column] = [Math.floor(at / look.grid[1]), at % look.grid[1]].map((place, axis) =>
      Math.floor(((place + 0.5) / look.grid[axis]) * (axis ? labels[0] : labels).length));
    return `${patchWords(at, look.grid)}: ${names[labels[row][column]]}`;
  }
  const shares = new Float64Array(names.length);
  for (const label of labels.flat()) shares[label] += 1 / (labels.length * labels[0].length);
  const most = largestOf(shares, 5).filter(([share]) => share > 0);
  return most.map(([share, label]) => `${names[label]} ${vitlab.percent(share)}`).join(", ");
}

/* The token that the map is of. */
function fromWords({ look, data: { token } }) {
  if (token === "pool") return "attention pool";
  const patch = token - look.prefix.length;
  return patch < 0 ? look.prefix[token] : patchWords(patch, look.grid);
}

function similarityWords(panel) {
  const { map, look, data } = panel;
  const own = patchAt(middleOf(Math.max(0, data.token - look.prefix.length), look), { box: look.box, grid: map.grid });
  const [best] = largestOf(map.values, 2).filter(([, patch]) => patch !== own);
  const most = best ? ` is most like ${patchWords(best[1], map.grid)}: ${quantityWords(best[0])}` : "";
  return capital(`${fromWords(panel)}${most}`);
}

function attentionWords(panel) {
  const { look, data } = panel;
  const { one, values } = panel.map;
  const [[value, patch]] = largestOf(values, 1);
  const layer = data.token === "pool" ? "" : `, layer ${look.layers[data.layer]}`;
  const from = capital(`${fromWords(panel)}${layer}`);
  if (!value && !one.before.some(Boolean)) return `${from}: it takes no part in this layer.`;
  const most = value ? ` looks most at ${patchWords(patch, look.grid)} (${shortPercent(value)})` : " looks at no patch";
  const before = Array.from(one.before, (share, token) => `${shortPercent(share)} to ${named(look.prefix[token])}`);
  return `${from}:${most}${listed(before)}`;
}

const named = (token) => (token === "class token" ? "the class token" : token);

/* Not more than a line can take. */
function listed(words) {
  if (!words.length) return "";
  return `; ${words.slice(0, 3).join(", ")}${words.length > 3 ? ", …" : ""}`;
}

/* The same for those who do not see the picture: the heads with the highest peaks, too. */
export function toldOf(panel) {
  if (!panel.map) return panel.why;
  const line = readingOf(panel);
  const { found } = panel.map;
  if (!found) return line;
  const peaks = found.heads.map(({ patches }) => largestOf(patches, 1)[0]);
  const heads = largestOf(peaks.map(([value]) => value), 4).map(([value, head]) =>
    `head ${head + 1}: ${patchWords(peaks[head][1], panel.look.grid)}, ${shortPercent(value)}`,
  );
  return `${line}. Peaks: ${heads.join("; ")}`;
}
