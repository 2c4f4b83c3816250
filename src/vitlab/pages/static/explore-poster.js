/* What is seen as one PNG: its title, the pictures, their scales, the heads and the prediction. */

import { paintScale } from "./explore-paint.js";
import { quantityWords } from "./explore-words.js";

const WIDE = 620; // of a panel, in pixels
const GAP = 28;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

/* panels: that show something; image: {name}; view: its title; says: what it is
   -> a canvas, dense enough to print */
export function posterOf(panels, image, view, says) {
  const style = getComputedStyle(document.documentElement);
  const inks = Object.fromEntries(["card", "ink", "muted", "line", "blue", "warm"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const canvas = document.createElement("canvas");
  const pen = { context: canvas.getContext("2d"), inks };
  const width = GAP + panels.length * (WIDE + GAP);
  const draw = () => {
    pen.context.textBaseline = "alphabetic";
    write(pen, `${view} · ${image.name}`, GAP, 44, width - 2 * GAP, { size: 22, bold: true });
    const top = paragraph(pen, says, GAP, 70, width - 2 * GAP, inks.muted) + 14;
    const ends = panels.map((panel, place) => drawPanel(pen, panel, GAP + place * (WIDE + GAP), top));
    return Math.max(...ends) + GAP;
  };
  canvas.width = canvas.height = 1;
  const height = draw(); // once to learn how high it is
  const dense = 2;
  [canvas.width, canvas.height] = [dense * width, dense * Math.ceil(height)];
  pen.context.scale(dense, dense);
  pen.context.fillStyle = inks.card;
  pen.context.fillRect(0, 0, width, height);
  draw();
  return canvas;
}

function write({ context, inks }, text, x, y, most, { size = 14, bold = false, color = inks.ink, align = "left" } = {}) {
  context.font = `${bold ? 650 : 400} ${size}px ${FONT}`;
  context.textAlign = align;
  context.fillStyle = color;
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > most) shown = `${shown.replace(/…$/, "").slice(0, -1)}…`;
  context.fillText(shown, x, y);
}

/* Lines of words; return where they end. */
function paragraph(pen, text, x, y, most, color) {
  pen.context.font = `400 14px ${FONT}`;
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (line && pen.context.measureText(longer).width > most) {
      write(pen, line, x, y, most, { color });
      line = word;
      y += 20;
    } else line = longer;
  }
  write(pen, line, x, y, most, { color });
  return y + 20;
}

function drawPanel(pen, panel, x, y) {
  const { picture, model } = panel;
  write(pen, `${model.name} (${model.notation})`, x, y + 4, WIDE, { size: 16, bold: true });
  y += 18;
  const height = Math.min(480, (WIDE * picture.canvas.height) / picture.canvas.width);
  const width = (height * picture.canvas.width) / picture.canvas.height;
  pen.context.drawImage(picture.canvas, x, y, width, height);
  y += height + 10;
  if (panel.map?.scale) y = drawScale(pen, panel.map, x, y);
  if (picture.readout.textContent) y = paragraph(pen, picture.readout.textContent, x, y + 16, WIDE, pen.inks.ink);
  if (panel.map?.found) y = drawHeads(pen, panel.heads, x, y);
  return drawBars(pen, panel.bars.rows ?? [], Boolean(panel.less), x, y + 14);
}

function drawScale(pen, { scale, unit, label }, x, y) {
  const [low, high] = [scale.low, scale.high].map((each) => quantityWords(each, unit));
  write(pen, low, x, y + 12, 80);
  const start = x + pen.context.measureText(low).width + 8;
  paintScale(pen.context, start, y + 2, 120, 11, scale.ramp);
  write(pen, `${high} ${label}`, start + 128, y + 12, WIDE - (start - x) - 128);
  return y + 20;
}

function drawHeads(pen, heads, x, y) {
  const across = Math.min(8, heads.items.length);
  const side = (WIDE - (across - 1) * 8) / across;
  heads.items.forEach(({ name, canvas, peak }, place) => {
    const high = (side * canvas.height) / canvas.width;
    const left = x + (place % across) * (side + 8);
    const top = y + Math.floor(place / across) * (high + 24);
    pen.context.drawImage(canvas, left, top, side, high);
    write(pen, name, left, top + high + 14, side, { size: 11 });
    write(pen, peak.textContent, left + side, top + high + 14, side, { size: 11, color: pen.inks.muted, align: "right" });
  });
  const [{ canvas }] = heads.items;
  return y + Math.ceil(heads.items.length / across) * ((side * canvas.height) / canvas.width + 24);
}

function drawBars(pen, rows, both, x, y) {
  const { context, inks } = pen;
  for (const { name, before, after } of rows) {
    write(pen, name, x, y + 12, WIDE - 160);
    const words = (share) => (share === null ? "–" : vitlab.percent(share));
    write(pen, both ? `${words(before)} → ${words(after)}` : words(before), x + WIDE, y + 12, 150, { align: "right" });
    y += 18;
    for (const [share, color] of [[before, inks.blue], ...(both ? [[after, inks.warm]] : [])]) {
      context.fillStyle = inks.line;
      context.fillRect(x, y, WIDE, 7);
      context.fillStyle = color;
      context.fillRect(x, y, WIDE * Math.min(1, Math.max(0, share ?? 0)), 7);
      y += 9;
    }
    y += 6;
  }
  return y;
}

/* Give a canvas to the browser as a file. */
export async function saveCanvas(canvas, name) {
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
