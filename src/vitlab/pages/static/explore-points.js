/* The points of the map of a data set: where they are on the screen, and how they are drawn. */

/* Ten colors that differ for every kind of color vision, in light and dark (after Okabe and Ito, 2008,
   and Tol, 2021), each with its own shape: no class is told by color alone. */
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8d93", "#7f5fc4", "#a67c00", "#00a5a8"];
const SHAPES = ["disc", "square", "up", "diamond", "cross", "down", "ring", "plus", "frame", "star"];
export const MOST_CLASSES = COLORS.length; // that have their own mark
const SIDE = 20; // of a mark's canvas, for 10 pixels on the screen

/* Small canvases, drawn once: a thousand points are a thousand copies. */
export function markOf(number) {
  return drawn(SHAPES[number % SHAPES.length], COLORS[number % COLORS.length]);
}

export const RIGHT = () => drawn("disc", "#5b9bd5");
export const WRONG = () => drawn("cross", "#e07b1f");
export const PLAIN = () => drawn("disc", "#8a8d93");

function drawn(shape, color) {
  const made = document.createElement("canvas");
  made.width = made.height = SIDE;
  const context = made.getContext("2d");
  Object.assign(context, { fillStyle: color, strokeStyle: color, lineWidth: 4, lineCap: "round" });
  context.translate(SIDE / 2, SIDE / 2);
  context.beginPath();
  const [path, filled] = PATHS[shape];
  path(context);
  if (filled) context.fill();
  else context.stroke();
  return made;
}

const polygon = (corners) => (context) => {
  for (const [x, y] of corners) context.lineTo(x, y);
  context.closePath();
};
const strokes = (lines) => (context) => {
  for (const [x, y, u, v] of lines) {
    context.moveTo(x, y);
    context.lineTo(u, v);
  }
};
const PATHS = {
  disc: [(context) => context.arc(0, 0, 7, 0, 7), true],
  ring: [(context) => context.arc(0, 0, 6, 0, 7), false],
  square: [(context) => context.rect(-6, -6, 12, 12), true],
  frame: [(context) => context.rect(-5.5, -5.5, 11, 11), false],
  up: [polygon([[0, -8], [8, 6], [-8, 6]]), true],
  down: [polygon([[0, 8], [8, -6], [-8, -6]]), true],
  diamond: [polygon([[0, -9], [8, 0], [0, 9], [-8, 0]]), true],
  cross: [strokes([[-6, -6, 6, 6], [-6, 6, 6, -6]]), false],
  plus: [strokes([[0, -7, 0, 7], [-7, 0, 7, 0]]), false],
  star: [strokes([[0, -7, 0, 7], [-6, -4, 6, 4], [-6, 4, 6, -4]]), false],
};

/* Which part of the map is on the screen: all of it, or closer. */
export class Window {
  constructor() {
    this.whole();
  }

  whole() {
    Object.assign(this, { zoom: 1, x: 0.5, y: 0.5 });
  }

  /* A point of the map, 0 to 1, in pixels of a canvas; there is room around the outermost ones. */
  onScreen([x, y], width, height) {
    const side = 0.94 * this.zoom;
    return [(x - this.x) * side * width + width / 2, (y - this.y) * side * height + height / 2];
  }

  /* Closer or farther; the point of the map under (left, top) of the canvas stays there. */
  closer(factor, left, top, width, height) {
    const zoom = Math.min(40, Math.max(1, this.zoom * factor));
    const shift = 1 / (0.94 * this.zoom) - 1 / (0.94 * zoom);
    this.x += ((left - width / 2) / width) * shift;
    this.y += ((top - height / 2) / height) * shift;
    this.zoom = zoom;
    this.keepIn();
  }

  move(across, down, width, height) {
    this.x -= across / (0.94 * this.zoom * width);
    this.y -= down / (0.94 * this.zoom * height);
    this.keepIn();
  }

  /* Show a point that is outside. */
  towards([x, y]) {
    const half = 0.45 / this.zoom;
    this.x = Math.min(x + half, Math.max(x - half, this.x));
    this.y = Math.min(y + half, Math.max(y - half, this.y));
    this.keepIn();
  }

  keepIn() {
    const half = 0.5 / this.zoom;
    this.x = Math.min(1 - half, Math.max(half, this.x));
    this.y = Math.min(1 - half, Math.max(half, this.y));
  }
}

/* The point nearest to a place on the screen within `most` pixels, or -1. */
export function nearest(places, [x, y], most) {
  let [best, found] = [most * most, -1];
  places.forEach(([left, top], index) => {
    const far = (left - x) ** 2 + (top - y) ** 2;
    if (far < best) [best, found] = [far, index];
  });
  return found;
}

/* The nearest point to the left, right, above or below another: within 45 degrees of that way. */
export function neighbor(places, index, [across, down]) {
  const [x, y] = places[index];
  let [best, found] = [Infinity, index];
  places.forEach(([left, top], other) => {
    const along = (left - x) * across + (top - y) * down;
    const aside = Math.abs((left - x) * down) + Math.abs((top - y) * across);
    const far = along + 2 * aside;
    if (along > 0 && aside <= along && far < best) [best, found] = [far, other];
  });
  return found;
}

/* A picture of the sheet: thumbnails in raster order, `columns` a row, `side` pixels each. */
export function paintThumb(context, sheet, { side, columns }, index, x, y, size) {
  const left = (index % columns) * side;
  const top = Math.floor(index / columns) * side;
  context.drawImage(sheet, left, top, side, side, x, y, size, size);
}

/* A picture of the sheet on a canvas of its own: enlarged, its neighbors do not shine in. */
export function thumb(canvas, sheet, shape, index) {
  canvas.width = canvas.height = shape.side;
  paintThumb(canvas.getContext("2d"), sheet, shape, index, 0, 0, shape.side);
}
