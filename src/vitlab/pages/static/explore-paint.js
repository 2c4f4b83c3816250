/* Painting on canvases: colors over a photo, patches, scales. It knows nothing of the server. */
/* 256 colors each, as [r, g, b]. Low to high: luminance rises throughout (heat.js). Around zero: blue
   to orange, which every kind of color vision tells apart, dark in the middle. */
export const RAMPS = {
  rising: Array.from({ length: 256 }, (_, place) => vitlab.color(place / 255)),
  signed: Array.from({ length: 256 }, (_, place) => {
    const share = Math.abs(place - 127.5) / 127.5;
    const end = place < 127.5 ? [96, 178, 255] : [255, 150, 46];
    return end.map((channel) => Math.round(16 + share * (channel - 16)));
  }),
};

/* From `low` to `high`, as {low, high, ramp}: signed values around a dark zero, others rising. */
export function scaleOf(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low < 0 && high > 0 && -low > high / 50) {
    const most = Math.max(-low, high);
    return { low: -most, high: most, ramp: "signed" };
  }
  return { low, high, ramp: "rising" };
}

/* A canvas of one pixel a patch: what is low is veiled in the dark, what is high glows.
   A flat map is even: stretched, its rounding errors would look like a pattern. */
export function heatTile(values, [rows, columns], { low, high, ramp }, strength, made = document.createElement("canvas")) {
  if (made.width !== columns || made.height !== rows) [made.width, made.height] = [columns, rows];
  const context = made.getContext("2d");
  const image = context.createImageData(columns, rows);
  const flat = high - low <= 1e-5 * Math.max(Math.abs(high), Math.abs(low));
  for (let place = 0; place < rows * columns; place += 1) {
    const share = flat ? 0.5 : Math.min(1, Math.max(0, (values[place] - low) / (high - low)));
    const [red, green, blue] = RAMPS[ramp][Math.round(255 * share)];
    const weight = ramp === "signed" ? Math.abs(2 * share - 1) : share;
    image.data[4 * place] = red;
    image.data[4 * place + 1] = green;
    image.data[4 * place + 2] = blue;
    image.data[4 * place + 3] = 255 * Math.min(1, strength * (0.5 + 0.75 * Math.sqrt(weight)));
  }
  context.putImageData(image, 0, 0);
  return made;
}

/* The same of colors, [[[r, g, b], …], …]. */
export function colorTile(colors, strength) {
  const made = document.createElement("canvas");
  [made.width, made.height] = [colors[0].length, colors.length];
  const context = made.getContext("2d");
  const image = context.createImageData(made.width, made.height);
  colors.flat().forEach((color, place) => image.data.set([...color, 255 * strength], 4 * place));
  context.putImageData(image, 0, 0);
  return made;
}

/* A photo without its colors, so that those of a map are the only ones. */
export function faint(bitmap, longest) {
  const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
  const made = document.createElement("canvas");
  made.width = Math.max(1, Math.round(scale * bitmap.width));
  made.height = Math.max(1, Math.round(scale * bitmap.height));
  const context = made.getContext("2d");
  context.fillStyle = "#fff"; // under what is transparent
  context.fillRect(0, 0, made.width, made.height);
  context.filter = "grayscale(1)";
  context.drawImage(bitmap, 0, 0, made.width, made.height);
  return made;
}

/* Very small images, of a data set of digits say, are shown pixel by pixel. */
export const isSmooth = (photo) => Math.max(photo.width, photo.height) > 64;

/* box: left, top, right and bottom as fractions -> x, y, width and height in pixels of a canvas. */
export function placedBox([left, top, right, bottom], width, height) {
  return [left * width, top * height, (right - left) * width, (bottom - top) * height];
}

/* The photo with a map over what the model saw of it. The rest of the photo is dimmed.
   what: {photo, tile, box, grid, lines, out, at, mark}; out: patches brushed out; at: the patch that is
   pointed at, or null. */
export function paintPhoto(context, width, height, what) {
  const [x, y, across, down] = placedBox(what.box, width, height);
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = isSmooth(what.photo);
  context.drawImage(what.photo, 0, 0, width, height);
  context.fillStyle = "rgb(0 0 0 / .7)";
  context.beginPath();
  context.rect(0, 0, width, height);
  context.rect(x, y, across, down);
  context.fill("evenodd");
  if (what.tile) {
    context.imageSmoothingEnabled = false;
    context.drawImage(what.tile, x, y, across, down);
  }
  if (!what.grid) return;
  context.strokeStyle = "rgb(255 255 255 / .6)";
  context.lineWidth = 1;
  if (across < width - 1 || down < height - 1) context.strokeRect(x, y, across, down);
  if (what.lines) paintLines(context, [x, y, across, down], what.grid);
  for (const patch of what.out) paintGone(context, patchArea(patch, what, width, height));
  if (what.at !== null) paintFrame(context, patchArea(what.at, what, width, height));
}

/* x, y, width and height of a patch on a canvas. */
export function patchArea(patch, { box, grid: [rows, columns] }, width, height) {
  const [x, y, across, down] = placedBox(box, width, height);
  const row = Math.floor(patch / columns);
  const column = patch % columns;
  return [x + (column / columns) * across, y + (row / rows) * down, across / columns, down / rows];
}

function paintLines(context, [x, y, across, down], [rows, columns]) {
  if (across / columns < 5) return; // they would hide the photo
  context.strokeStyle = "rgb(255 255 255 / .16)";
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 1; row < rows; row += 1) {
    context.moveTo(x, Math.round(y + (row / rows) * down) + 0.5);
    context.lineTo(x + across, Math.round(y + (row / rows) * down) + 0.5);
  }
  for (let column = 1; column < columns; column += 1) {
    context.moveTo(Math.round(x + (column / columns) * across) + 0.5, y);
    context.lineTo(Math.round(x + (column / columns) * across) + 0.5, y + down);
  }
  context.stroke();
}

/* A patch that the model no longer sees: gray and crossed out. */
function paintGone(context, [x, y, across, down]) {
  context.fillStyle = "#8b8f96";
  context.fillRect(x, y, across, down);
  context.strokeStyle = "rgb(0 0 0 / .45)";
  context.lineWidth = Math.max(1, across / 16);
  context.beginPath();
  context.moveTo(x, y + down);
  context.lineTo(x + across, y);
  context.stroke();
}

/* White between black: it stands out from every photo. */
function paintFrame(context, [x, y, across, down]) {
  const thick = Math.max(2, Math.min(5, across / 9, down / 9));
  for (const [color, width] of [["#000", 2 * thick], ["#fff", thick]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(x, y, across, down);
  }
}

/* A small picture of one head: its map over the faint photo, and the patch it looks from. */
export function paintHead(canvas, { photo, tile, box, grid, at }) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const [x, y, across, down] = placedBox(box, photo.width, photo.height);
  context.fillStyle = "#777";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingEnabled = isSmooth(photo);
  context.drawImage(photo, x, y, across, down, 0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(tile, 0, 0, width, height);
  if (at === null) return;
  const [rows, columns] = grid;
  const [left, top] = [(at % columns) / columns, Math.floor(at / columns) / rows];
  context.strokeStyle = "#fff";
  context.lineWidth = Math.max(1, width / 80);
  context.strokeRect(left * width, top * height, width / columns, height / rows);
}

/* The colors of a scale from left to right. */
export function paintScale(context, x, y, width, height, ramp) {
  const colors = RAMPS[ramp];
  const fill = context.createLinearGradient(x, y, x + width, y);
  for (let place = 0; place < 256; place += 15) fill.addColorStop(place / 255, `rgb(${colors[place].join(" ")})`);
  context.fillStyle = fill;
  context.fillRect(x, y, width, height);
}
