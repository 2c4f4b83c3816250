/* Asking the explorer's server. What it says is kept, within a bound of bytes, so that what was
   seen once is drawn again at once. */
const PATIENCE = 200; // milliseconds that an answer is waited for when another one is wanted

/* What failed, as one sentence for a person; status: that of HTTP, 0 where nothing answered. */
export class Problem extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new Problem("The explorer does not answer: is “vitlab explore” still running in its terminal?");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw new Problem(answer?.error || `The explorer failed (status ${response.status}).`, response.status);
}

export const post = (path, body) =>
  ask(path, { method: "POST", body, headers: { "Content-Type": typeof body === "string" ? "application/json" : "application/octet-stream" } });

/* Values by name, of which those used longest ago go first when they are too many bytes. */
export class Kept {
  constructor(most) {
    Object.assign(this, { most, bytes: 0, all: new Map() });
  }

  get(name) {
    const found = this.all.get(name);
    if (!found) return undefined;
    this.all.delete(name); // and to the end: it is the one used last
    this.all.set(name, found);
    return found.value;
  }

  put(name, value, bytes) {
    this.drop(name);
    this.all.set(name, { value, bytes });
    this.bytes += bytes;
    for (const each of this.all.keys()) {
      if (this.bytes <= this.most || each === name) break;
      this.drop(each);
    }
  }

  /* Let go of everything with this in its name. */
  forget(part) {
    for (const name of [...this.all.keys()]) if (name.includes(part)) this.drop(name);
  }

  drop(name) {
    const found = this.all.get(name);
    if (!found) return;
    this.all.delete(name);
    this.bytes -= found.bytes;
  }
}

/* One request at a time, and after it only the newest of those that came up meanwhile: a pointer
   that crosses twenty patches asks for the first and the last. One that takes long is given up. */
export class Newest {
  /* work(what, signal) never fails */
  constructor(work) {
    Object.assign(this, { work, running: null, next: null });
  }

  want(what) {
    this.next = [what];
    this.hurry();
    if (!this.running) this.run();
  }

  forget() {
    this.next = null;
    this.hurry();
  }

  hurry() {
    if (this.running && performance.now() - this.since > PATIENCE) this.running.abort();
  }

  async run() {
    while (this.next) {
      const [what] = this.next;
      Object.assign(this, { next: null, running: new AbortController(), since: performance.now() });
      await this.work(what, this.running.signal);
    }
    this.running = null;
  }
}

/* Attention from one token: value = largest[row] * bytes[row * tokens + token] / 255, where a row is
   layer * heads + head. */
export function attentionRows(buffer, rows) {
  const largest = new Float32Array(buffer, 0, rows); // little-endian, as every browser's machine is
  const bytes = new Uint8Array(buffer, 4 * rows);
  return { largest, bytes, tokens: bytes.length / rows };
}

/* Read an answer, unless it is kept or on its way: read(response) -> [value, bytes]. */
const coming = new Map();
async function once(path, kept, read, signal) {
  const found = kept.get(path);
  if (found) return found;
  if (!coming.has(path)) {
    const asked = ask(path, { signal }).then(read).then(([value, bytes]) => {
      kept.put(path, value, bytes);
      return value;
    }).catch((error) => {
      throw error instanceof Problem ? error : new Problem("The explorer’s answer cannot be read.");
    });
    coming.set(path, asked.finally(() => coming.delete(path)));
  }
  return coming.get(path);
}

export const api = {
  kept: new Kept(2 ** 26),
  bitmaps: new Kept(2 ** 27),

  state: async () => (await ask("api/state")).json(),

  json: (path, signal) => once(path, api.kept, async (response) => {
    const text = await response.text();
    return [JSON.parse(text), 2 * text.length];
  }, signal),

  attention: (path, rows, signal) => once(path, api.kept, async (response) => {
    const buffer = await response.arrayBuffer();
    return [attentionRows(buffer, rows), buffer.byteLength];
  }, signal),

  bitmap: (path) => once(path, api.bitmaps, async (response) => {
    const value = await createImageBitmap(await response.blob());
    return [value, 4 * value.width * value.height];
  }),

  picture: (image) => api.bitmap(`api/images/${encodeURIComponent(image)}`),
  upload: async (file) => (await post(`api/images?name=${encodeURIComponent(file.name || "pasted")}`, file)).json(),
  without: async (model, image, patches, classes) =>
    (await post(`api/look/${model}/${encodeURIComponent(image)}/without`, JSON.stringify({ patches, classes }))).json(),
};
