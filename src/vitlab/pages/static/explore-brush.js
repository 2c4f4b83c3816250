/* The patches that are brushed out, stroke by stroke, and the same part of the photo for another model. */
export class Brush {
  constructor() {
    this.out = new Set(); // patches of the first model's grid
    this.past = []; // what was out before each stroke
    this.away = true; // whether the stroke takes patches away or gives them back
  }

  /* A stroke takes away, unless it starts on a patch that is away already. */
  start(patch) {
    this.past.push(new Set(this.out));
    this.away = !this.out.has(patch);
  }

  /* Return whether anything changed. */
  touch(patches) {
    const before = this.out.size;
    for (const patch of patches) {
      if (this.away) this.out.add(patch);
      else this.out.delete(patch);
    }
    return this.out.size !== before;
  }

  undo() {
    this.out = this.past.pop() ?? this.out;
  }

  clear() {
    if (!this.out.size) return;
    this.past.push(this.out);
    this.out = new Set();
  }

  /* Another photo: nothing is out, and there is nothing to undo. */
  reset(out = []) {
    this.out = new Set(out);
    this.past = [];
  }
}

/* The patch at a place of the photo (fractions from its upper left), or null where the model does not look. */
export function patchAt([x, y], { box: [left, top, right, bottom], grid: [rows, columns] }) {
  const across = (x - left) / (right - left);
  const down = (y - top) / (bottom - top);
  if (!(across >= 0 && across < 1 && down >= 0 && down < 1)) return null;
  return Math.floor(down * rows) * columns + Math.floor(across * columns);
}

/* The middle of a patch, as fractions of the photo. */
export function middleOf(patch, { box: [left, top, right, bottom], grid: [rows, columns] }) {
  const across = ((patch % columns) + 0.5) / columns;
  const down = (Math.floor(patch / columns) + 0.5) / rows;
  return [left + across * (right - left), top + down * (bottom - top)];
}

/* The patches of `to` that lie in those of `from`: whose middles do, or the ones around their middles
   where `to` is coarser. */
export function samePart(patches, from, to) {
  const found = new Set();
  for (let patch = 0; patch < to.grid[0] * to.grid[1]; patch += 1) {
    const there = patchAt(middleOf(patch, to), from);
    if (there !== null && patches.has(there)) found.add(patch);
  }
  for (const patch of patches) {
    const there = patchAt(middleOf(patch, from), to);
    if (there !== null) found.add(there);
  }
  return found;
}
