/* Where the model looked: colors over a part of the photo. */
"use strict";
window.vitlab ??= {};

/* From low to high; luminance rises throughout, so that the order needs no color vision. */
vitlab.COLORS = [
  [0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51],
  [249, 140, 10], [249, 201, 50], [252, 255, 164],
];

vitlab.color = function (share) {
  const place = Math.min(1, Math.max(0, share)) * (vitlab.COLORS.length - 1);
  const low = Math.min(Math.floor(place), vitlab.COLORS.length - 2);
  return vitlab.COLORS[low].map((from, channel) =>
    Math.round(from + (place - low) * (vitlab.COLORS[low + 1][channel] - from)),
  );
};

/* map: rows of numbers; box: left, top, right, bottom of what the model saw, as fractions.
   Return an element that lies over a photo of any size. A flat map is drawn evenly. */
vitlab.heat = function (map, box) {
  const [left, top, right, bottom] = box;
  const frame = vitlab.element("div", "map");
  frame.style.left = `${100 * left}%`;
  frame.style.top = `${100 * top}%`;
  frame.style.width = `${100 * (right - left)}%`;
  frame.style.height = `${100 * (bottom - top)}%`;
  const canvas = frame.appendChild(document.createElement("canvas"));
  canvas.width = map[0].length;
  canvas.height = map.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const values = map.flat();
  const low = values.reduce((one, other) => Math.min(one, other));
  const high = values.reduce((one, other) => Math.max(one, other));
  const flat = high - low <= 1e-5 * Math.abs(high); // stretched, rounding errors would look like a pattern
  values.forEach((value, place) => {
    image.data.set([...vitlab.color(flat ? 0.5 : (value - low) / (high - low)), 255], 4 * place);
  });
  context.putImageData(image, 0, 0);
  return frame;
};
