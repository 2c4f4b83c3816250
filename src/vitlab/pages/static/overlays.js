/* Masks and boxes over a photo, and numbers beside it: what heads other than a classifier find. */
"use strict";
window.vitlab ??= {};

const SURE = 0.5; // from this probability on, a box is drawn, as `vitlab predict --out` does

/* VOC's color of a number, as the palette of a mask has it: each bit of a color is one of the number. */
vitlab.voc = function (number) {
  const color = [0, 0, 0];
  for (let bit = 0; bit < 8; bit += 1) {
    color.forEach((value, channel) => (color[channel] = value | (((number >> (3 * bit + channel)) & 1) << (7 - bit))));
  }
  return `rgb(${color.join(" ")})`;
};

/* seen: an answer of POST predict; model: its entry of GET models.
   Return {over, list, says}: an element over the photo or null, one beside it, and a line. */
vitlab.overlay = function (seen, model, photo) {
  if (seen.mask) return mask(seen, model);
  if (seen.objects) return boxes(seen.objects, model, photo);
  return numbers(seen);
};

function mask({ shares, mask: png }, { classes, numbers: own }) {
  const over = vitlab.element("img", "over-all mask");
  over.alt = "";
  over.src = `data:image/png;base64,${png}`;
  const top = Object.entries(shares).map(([name, share]) => ({ class: name, probability: share }));
  const list = vitlab.bars(top, (name) => vitlab.voc(own[classes.indexOf(name)]));
  return { over, list, says: `${top[0].class}, ${vitlab.percent(top[0].probability)} of the pixels` };
}

function boxes(objects, { classes }, photo) {
  const over = vitlab.element("div", "over-all boxes");
  const color = (name) => vitlab.voc(classes.indexOf(name) + 1); // no class is black
  for (const { class: name, probability, box } of objects) {
    if (probability < SURE) continue;
    const frame = over.appendChild(vitlab.element("div", "frame"));
    const sides = [photo.naturalWidth, photo.naturalHeight];
    const [left, top, right, bottom] = box.map((edge, place) => (100 * edge) / sides[place % 2]);
    Object.assign(frame.style, { left: `${left}%`, top: `${top}%`, width: `${right - left}%`, height: `${bottom - top}%` });
    frame.style.color = color(name);
    frame.append(vitlab.element("bdi", "", name));
  }
  const drawn = over.childElementCount;
  const list = objects.length ? vitlab.bars(objects, color) : vitlab.element("p", "", "No object was found.");
  return { over, list, says: `${drawn} ${drawn === 1 ? "object" : "objects"} of at least ${100 * SURE}%` };
}

function numbers({ values, deviations }) {
  const list = vitlab.element("dl", "numbers");
  const written = (number) => String(Number(number.toPrecision(5)));
  const texts = Object.entries(values).map(([name, value]) => {
    const spread = deviations ? ` ± ${Number(deviations[name].toPrecision(3))}` : "";
    list.append(vitlab.element("dt", "", name), vitlab.element("dd", "", written(value) + spread));
    return `${name} ${written(value)}`;
  });
  return { over: null, list, says: texts.join(", ") };
}
