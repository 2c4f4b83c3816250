/* The service's page: photos go to POST attention, or predict of models that do not classify, one a
   request, and their answers into cards. */
"use strict";

const TOP = 5;
const AT_ONCE = 3; // requests in flight
const TRIES = 4; // of a request that the service is too busy for
const PATIENCE = 120; // seconds for one request
const byId = (id) => document.getElementById(id);
const cards = new vitlab.Cards();
let models = [];

/* Asking. An answer that is an error becomes a Problem: one sentence for a person. */

class Problem extends Error {
  constructor(sentence, { notes = [], status = 0 } = {}) {
    super(sentence);
    Object.assign(this, { notes, status });
  }
}

const SENTENCES = {
  400: "The service could not read the request.",
  401: "This service needs a token: enter it above.",
  403: "This service may not be used from here.",
  404: "The service has no such model any more; choose another one.",
  408: "The photo took too long to arrive; the connection may be slow.",
  413: "This photo is too large for the service.",
  415: "The service reads only JPEG, PNG and WebP photos.",
  422: "This file cannot be read as a photo: it is damaged, too large, or not JPEG, PNG or WebP.",
  503: "The service is too busy right now; try again in a moment.",
  504: "The service took too long to answer; try again.",
};

async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem("token");
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let response;
  try {
    const signal = AbortSignal.timeout(1000 * PATIENCE);
    response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "TimeoutError") throw new Problem(SENTENCES[504]);
    throw new Problem("The service cannot be reached: check that it is running and that you are online.");
  }
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  throw problem(response, answer);
}

function problem(response, answer) {
  const { status } = response;
  const notes = [];
  if (answer?.error) notes.push(`The service says: ${answer.error}`);
  if (answer?.request) notes.push(`Request ${answer.request}`);
  const made = new Problem(SENTENCES[status] ?? `The service failed (status ${status}).`, { notes, status });
  made.after = Math.min(30, Math.max(0, Number(response.headers.get("Retry-After")) || 1));
  return made;
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/* Ask again, a few times, while the service is too busy. */
async function patiently(card, path, options) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await ask(path, options);
    } catch (error) {
      if (error.status !== 503 || tried === TRIES) throw error;
      card.wait(`The service is busy; trying again in ${Math.ceil(error.after)} s …`);
      await pause(error.after);
    }
  }
}

/* Photos: a queue, and a few requests at a time. */

const waiting = [];
let asking = 0;

function enqueue(card) {
  waiting.push(card);
  next();
}

function next() {
  while (asking < AT_ONCE && waiting.length) {
    const card = waiting.shift();
    if (!card.root.isConnected) continue;
    asking += 1;
    answer(card).finally(() => {
      asking -= 1;
      next();
    });
  }
}

async function answer(card) {
  const turn = (card.turn = (card.turn ?? 0) + 1); // a later model's answer is not overwritten
  card.wait("Looking at it …");
  const asked = chosen();
  const name = encodeURIComponent(byId("model").value);
  const path = classifies(asked) ? `attention?model=${name}&top=${TOP}` : `predict?model=${name}`;
  const type = card.file.type.startsWith("image/") ? card.file.type : "application/octet-stream";
  try {
    const body = await card.file.arrayBuffer().catch(() => {
      throw new Problem("This file cannot be read; if it is a folder, open it and choose photos.", { status: 422 });
    });
    const found = await patiently(card, path, { method: "POST", body, headers: { "Content-Type": type } });
    if (!classifies(asked)) await card.image.decode().catch(() => {}); // boxes are measured by its size
    if (turn === card.turn) show(card, found.predictions[0], found, asked);
  } catch (error) {
    if (turn === card.turn) explain(card, error);
  }
}

function explain(card, error) {
  const hopeless = [413, 415, 422].includes(error.status);
  card.fail(error.message, error.notes ?? [], hopeless ? null : () => enqueue(card));
  card.denied = error.status === 401;
  if (card.denied) login();
  if (error.status === 404) start(); // the models have changed
}

function show(card, seen, { model, request }, asked) {
  const small = `${model} · request ${request}`;
  if (seen.error) return card.fail(SENTENCES[422], [`The service says: ${seen.error}`, small]);
  const notes = [];
  if (seen.predicted) notes.push(`Above their threshold: ${seen.predicted.join(", ") || "none"}`);
  card.photo.querySelectorAll(".map, .over-all").forEach((each) => each.remove());
  if (!classifies(asked)) {
    const { over, list, says } = vitlab.overlay(seen, asked, card.image);
    if (over) card.photo.append(over);
    byId("looks").hidden = !over;
    return card.tell([list], [small], says);
  }
  if (seen.attention) {
    card.photo.append(vitlab.heat(seen.attention, seen.box));
    byId("looks").hidden = false;
  } else {
    notes.push("This model has no attention that could show where it looked.");
  }
  card.show(seen.top, [...notes, small], seen.unlike);
}

/* Models and the token. */

async function start() {
  try {
    models = (await ask("models")).models;
  } catch (error) {
    if (error.status === 401) return login();
    byId("about").textContent = error.message;
    return setTimeout(start, 5000);
  }
  byId("login").hidden = true;
  const select = byId("model");
  const chosen = select.value;
  select.replaceChildren(...models.map((each) => new Option(`${each.name} (${each.model})`, each.name)));
  if (models.some((each) => each.name === chosen)) select.value = chosen;
  byId("choice").hidden = models.length < 2;
  describe();
}

const chosen = () => models.find((each) => each.name === byId("model").value);
const classifies = (model) => !["masks", "boxes", "numbers"].includes(model?.answers);
const DOES = {
  masks: ["names each pixel of a photo, out of", "The mask"],
  boxes: ["finds objects in a photo, of", "The boxes"],
  numbers: ["estimates", ""],
};

function describe() {
  const model = chosen();
  if (!model) return (byId("about").textContent = "The service has no model yet.");
  const most = 6;
  const [does, what] = DOES[model.answers] ?? ["names what is in a photo, out of", "Where the model looked"];
  const names = model.answers === "numbers" ? model.targets : model.classes;
  const count = model.answers === "numbers" ? "" : ` ${names.length} ${names.length === 1 ? "class" : "classes"}:`;
  const more = names.length > most ? `, … (${names.length - most} more)` : "";
  byId("about").textContent = `${model.name} ${does}${count} ${names.slice(0, most).join(", ")}${more}`;
  byId("what").textContent = what;
  byId("order").hidden = byId("reads").hidden = !classifies(model);
  byId("pick-strength").hidden = model.answers === "boxes";
}

function login() {
  const form = byId("login");
  if (form.hidden) {
    sessionStorage.removeItem("token");
    form.hidden = false;
    byId("token").focus();
  }
  byId("about").textContent = SENTENCES[401];
  vitlab.say(SENTENCES[401]);
}

byId("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  byId("login").hidden = true;
  await start();
  if (byId("login").hidden) cards.all.filter((card) => card.denied).forEach(enqueue);
});

/* Controls. */

byId("model").addEventListener("change", () => {
  describe();
  cards.all.forEach(enqueue);
});
byId("shown").addEventListener("change", (event) => {
  byId("answers").classList.toggle("plain", !event.target.checked);
  byId("strength").disabled = !event.target.checked;
});
byId("strength").addEventListener("input", (event) => {
  byId("answers").style.setProperty("--strength", event.target.value / 100);
});
const steps = vitlab.COLORS.map((color) => `rgb(${color.join(" ")})`);
byId("scale").style.background = `linear-gradient(90deg, ${steps.join(", ")})`;

vitlab.photos(
  (files) => cards.add(files).forEach(enqueue),
  (text) => vitlab.say(text),
);
start();
