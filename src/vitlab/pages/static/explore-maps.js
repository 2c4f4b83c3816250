/* From what the server sent to a map over the photo, and to words that read it. */

import { middleOf, patchAt } from "./explore-brush.js";
import { readHeads } from "./explore-heads.js";
import { colorTile, heatTile, scaleOf } from "./explore-paint.js";
import { capital, largestOf, patchWords, quantityWords } from "./explore-words.js";

/* look: the first pass; data: {view, value, …} of a panel; seen: what a person chose
   -> {values, grid, tile, scale, unit, label}, with {found, one} of attention; colors have no scale */
export function mapOf({ look, data, seen }) {
  const { value } = data;
  if (data.view === "colors") return { tile: colorTile(value.colors, seen.strength), colored: true };
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

/* One line under the picture. at: the patch that is pointed at, or null */
export function readingOf(panel, map, at) {
  const { look, seen } = panel;
  const place = at === null ? "" : capital(patchWords(at, look.grid));
  if (map.colored) return place;
  if (map.one) return attentionWords(panel, map, place);
  if (at !== null) {
    const cell = patchAt(middleOf(at, look), { box: look.box, grid: map.grid }); // a layer may have its own
    return `${place}: ${quantityWords(map.values[cell])}`; // the unit is on the scale
  }
  const [[value, patch]] = largestOf(map.values, 1);
  return `Highest at ${patchWords(patch, map.grid)}: ${quantityWords(value)}`;
}

function attentionWords({ look, seen, data }, { one, values }, place) {
  const from = data.token === "pool" ? "attention pool" : place || seen.token;
  const [[value, patch]] = largestOf(values, 1);
  const layer = data.token === "pool" ? "" : `, layer ${look.layers[data.layer]}`;
  if (!value && !one.before.some(Boolean)) return `${capital(from)}${layer}: it takes no part in this layer.`;
  const most = value ? ` looks most at ${patchWords(patch, look.grid)} (${vitlab.percent(value)})` : " looks at no patch";
  const before = Array.from(one.before, (share, token) => `${vitlab.percent(share)} to ${named(look.prefix[token])}`);
  return `${capital(from)}${layer}:${most}${listed(before)}`;
}

const named = (token) => (token === "class token" ? "the class token" : token);

/* Not more than a line can take. */
function listed(words) {
  if (!words.length) return "";
  return `; ${words.slice(0, 3).join(", ")}${words.length > 3 ? ", …" : ""}`;
}

/* The same for those who do not see the picture: the heads with the highest peaks, too. */
export function toldOf(panel, map, at) {
  const line = readingOf(panel, map, at);
  if (!map.found) return line;
  const peaks = map.found.heads.map(({ patches }) => largestOf(patches, 1)[0]);
  const heads = largestOf(peaks.map(([value]) => value), 4).map(([value, head]) =>
    `head ${head + 1}: ${patchWords(peaks[head][1], panel.look.grid)}, ${vitlab.percent(value)}`,
  );
  return `${line}. Peaks: ${heads.join("; ")}`;
}
