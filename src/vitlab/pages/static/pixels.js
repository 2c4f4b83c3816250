/* From a photo to what the model takes: upright bytes, (rows, columns, channels). */
"use strict";
window.vitlab ??= {};

vitlab.LARGEST = 150e6; // pixels of a photo that the browser is asked to decode
vitlab.MOST_PIXELS = 12e6; // that the model is given
vitlab.FEW_PIXELS = 2e6; // that it takes a moment for
const BAND = 2e6; // pixels that are on the canvas at a time: phones refuse large ones

vitlab.Unreadable = class extends Error {};
const DAMAGED = "This file is damaged, or is not an image that this browser can read.";

/* Return {pixels, rows, columns, whole}: of the first frame, and the size it has in the file.
   Transparent pixels are seen over white, and color profiles are ignored, as in training. */
vitlab.pixels = async function (file, facts) {
  const bitmap = await decoded(file);
  const { width, height } = bitmap;
  const step = vitlab.reduction(height, width, file.type === "image/jpeg", facts);
  const [rows, columns] = [Math.ceil(height / step), Math.ceil(width / step)];
  const pixels = new Uint8Array(rows * columns * facts.channels);
  const band = step * Math.max(1, Math.floor(BAND / (width * step)));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, Math.min(band, height)];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  for (let top = 0; top < height; top += band) {
    const tall = Math.min(band, height - top);
    context.clearRect(0, 0, width, tall);
    if (facts.channels !== 4) {
      context.fillStyle = "white";
      context.fillRect(0, 0, width, tall);
    }
    context.drawImage(bitmap, 0, top, width, tall, 0, 0, width, tall);
    const part = reduced(context.getImageData(0, 0, width, tall), step, facts.channels);
    pixels.set(part, (top / step) * columns * facts.channels);
  }
  bitmap.close();
  canvas.width = canvas.height = 0; // some browsers keep the memory of a canvas for long
  return { pixels, rows, columns, whole: [width, height] };
};

/* By how much a photo is reduced: a large JPEG as ViTLab decodes it, to no less than twice the size
   of the model's input, where whole squares cover it; anything else only where it is too large. */
vitlab.reduction = function (rows, columns, jpeg, { image_size: [tall, wide], crop }) {
  const whole = (side) => Math.floor(side / crop + 1e-6);
  const share = Math.min(rows / whole(tall), columns / whole(wide));
  const fits = (each) => share >= 2 * each && rows % each === 0 && columns % each === 0;
  let step = (jpeg && rows * columns > vitlab.FEW_PIXELS && [8, 4, 2].find(fits)) || 1;
  while ((rows * columns) / step ** 2 > vitlab.MOST_PIXELS) step *= 2;
  return step;
};

async function decoded(file) {
  const [rows, columns] = await sides(file);
  if (rows * columns > vitlab.LARGEST) {
    const size = Math.round((rows * columns) / 1e6);
    throw new vitlab.Unreadable(
      `This photo has ${size} megapixels; at most ${vitlab.LARGEST / 1e6} can be read here.`,
    );
  }
  try {
    return await createImageBitmap(file, { colorSpaceConversion: "none" });
  } catch {
    throw new vitlab.Unreadable(DAMAGED);
  }
}

/* Rows and columns from the header, before anything large is decoded. */
async function sides(file) {
  const url = URL.createObjectURL(file);
  const image = new Image();
  try {
    await new Promise((resolve, reject) => {
      image.onload = resolve;
      image.onerror = reject;
      image.src = url;
    });
    return [image.naturalHeight, image.naturalWidth];
  } catch {
    throw new vitlab.Unreadable(DAMAGED);
  } finally {
    URL.revokeObjectURL(url);
  }
}

/* The mean of each square of step x step pixels, in the model's channels. */
function reduced({ data, width, height }, step, channels) {
  const [rows, columns] = [Math.ceil(height / step), Math.ceil(width / step)];
  const pixels = new Uint8Array(rows * columns * channels);
  const sums = new Float64Array(4);
  for (let row = 0, to = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1, to += channels) {
      const [bottom, right] = [Math.min(height, (row + 1) * step), Math.min(width, (column + 1) * step)];
      sums.fill(0);
      for (let y = row * step; y < bottom; y += 1) {
        for (let at = 4 * (y * width + column * step); at < 4 * (y * width + right); at += 4) {
          sums[0] += data[at];
          sums[1] += data[at + 1];
          sums[2] += data[at + 2];
          sums[3] += data[at + 3];
        }
      }
      const count = (bottom - row * step) * (right - column * step);
      const [red, green, blue, alpha] = sums.map((sum) => Math.floor(sum / count + 0.5));
      if (channels === 1) {
        pixels[to] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16; // as Pillow's luma
      } else {
        pixels.set([red, green, blue, alpha].slice(0, channels), to);
      }
    }
  }
  return pixels;
}
