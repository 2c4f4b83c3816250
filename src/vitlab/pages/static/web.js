/* The page of an exported model: load its parts, then answer photo after photo. */
"use strict";

const facts = vitlab.facts; // {title, model, classes, channels, several, thresholds, bytes, parts, …}
const TOP = 5;
const AT_ONCE = 60e6; // bytes that are loaded without a question
const local = location.protocol === "file:";
const cards = new vitlab.Cards();
const byId = (id) => document.getElementById(id);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
let model = null; // a promise of the runner, once it loads

document.title = facts.title;
byId("title").textContent = facts.title;
byId("about").textContent = facts.about;
byId("facts").textContent =
  `${facts.model} · ${megabytes(facts.bytes)} with ONNX Runtime Web ${facts.runtime} · made by ViTLab ${facts.version}` +
  (facts.license ? ` · license of the weights: ${facts.license}` : "");

/* Loading: every part is a script, because a page opened from a disk may read nothing else. */

function script(name) {
  return new Promise((resolve, reject) => {
    const part = document.createElement("script");
    part.onload = () => resolve(part.remove());
    part.onerror = () => reject(new Error(`${name} is missing beside this page or did not arrive`));
    part.src = name;
    document.body.append(part);
  });
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  return Uint8Array.from({ length: binary.length }, (_, place) => binary.charCodeAt(place));
}

function unpacked(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function load() {
  const progress = byId("progress");
  let done = 0;
  const advance = (bytes) => {
    done += bytes;
    progress.value = done / facts.bytes;
    vitlab.say(`Loading the model: ${Math.floor((100 * done) / facts.bytes)}% of ${megabytes(facts.bytes)}`);
  };
  advance(0);
  byId("load").hidden = true;
  byId("loading").hidden = progress.hidden = false;
  const whole = new Uint8Array(facts.size);
  let place = 0;
  vitlab.receive = (text) => {
    const bytes = bytesOf(text);
    whole.set(bytes, place);
    place += bytes.length;
  };
  for (const { name, bytes } of facts.parts) {
    await script(name);
    advance(bytes);
  }
  if (place !== facts.size) throw new Error("a part of the model is incomplete");
  const text = new TextDecoder();
  const [library, glue, wasm] = await Promise.all(vitlab.runtime.map(unpacked));
  vitlab.runtime = vitlab.receive = null;
  vitlab.say("Starting the model …");
  const runner = new vitlab.Runner(text.decode(library));
  await runner.ask("start", { glue: text.decode(glue), wasm, model: whole.buffer }, [wasm, whole.buffer]);
  byId("loading").hidden = true;
  vitlab.say("The model is ready.");
  return runner;
}

function begin() {
  model ??= load().catch((error) => {
    model = null;
    byId("progress").hidden = true;
    offer("Try again");
    vitlab.say(`The model could not be loaded: ${error.message}.`);
    throw error;
  });
  return model;
}

function offer(text) {
  const button = byId("load");
  button.textContent = text;
  byId("loading").hidden = button.hidden = false;
}

/* Answering: one photo after the other, in their order. */

let queue = Promise.resolve();

async function answer(card) {
  let runner;
  try {
    runner = await begin();
  } catch {
    return card.fail("The model could not be loaded.", [], () => ask(card));
  }
  card.wait("Looking at it …");
  try {
    const { pixels, rows, columns, whole } = await vitlab.pixels(card.file, facts);
    const message = { pixels, rows, columns, channels: facts.channels };
    const { probabilities, unlike, seconds } = await runner.ask("run", message, [pixels.buffer]);
    card.show(likeliest(probabilities), notes(probabilities, seconds, whole), unlike);
  } catch (error) {
    if (error instanceof vitlab.Unreadable) card.fail(error.message);
    else card.fail("The model could not be run on this photo.", [error.message], () => ask(card));
  }
}

function likeliest(probabilities) {
  return probabilities
    .map((probability, number) => ({ class: facts.classes[number], probability }))
    .sort((one, other) => other.probability - one.probability)
    .slice(0, TOP);
}

function notes(probabilities, seconds, [columns, rows]) {
  const lines = [];
  if (facts.several) {
    const names = facts.classes.filter((_, number) => probabilities[number] > facts.thresholds[number]);
    lines.push(`Above their threshold: ${names.join(", ") || "none"}`);
  }
  const time = seconds < 1 ? `${Math.ceil(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
  lines.push(`${time} for the model · ${columns} × ${rows} pixels`);
  return lines;
}

function ask(card) {
  queue = queue.then(() => card.root.isConnected && answer(card));
}

vitlab.photos(
  (files) => cards.add(files).forEach(ask),
  (text) => vitlab.say(text),
);
byId("load").addEventListener("click", () => begin().catch(() => {}));
if (local || facts.bytes <= AT_ONCE) begin().catch(() => {});
else offer(`Load the model (${megabytes(facts.bytes)})`);
