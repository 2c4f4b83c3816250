/* The explorer's page: what is seen is one value; whatever changes it draws everything that depends
   on it, and writes it into the address. */

import { Problem, api } from "./explore-asking.js";
import { Brush, samePart } from "./explore-brush.js";
import { Controls } from "./explore-controls.js";
import { Hands } from "./explore-hands.js";
import { linkOf, linkedFields } from "./explore-link.js";
import { DataMap } from "./explore-map.js";
import { toldOf } from "./explore-maps.js";
import { Panel } from "./explore-panel.js";
import { posterOf, saveCanvas } from "./explore-poster.js";
import { Strip, openFiles } from "./explore-strip.js";
import { VIEWS } from "./explore-words.js";

const byId = (id) => document.getElementById(id);

/* tab: photo or map; models: numbers of those shown; image: its id; depth: of the layer, 0 to 1; head:
   its number, null for the mean; at: where it looks from, fractions of the photo; token: its name
   where it is no patch; held: whether the pointer leaves `at` alone; chosen: {class, name} to explain,
   null for the likeliest; same: one scale for all heads; strength: of the colors; lines: the grid */
const START = {
  tab: "photo", models: [0], image: null, view: "attention", depth: 1, head: null, at: null, token: null,
  held: false, chosen: null, same: false, strength: 0.8, lines: true,
};
const page = {
  facts: null,
  seen: { ...START },
  brush: new Brush(),
  panels: [],
  set: change,
  brushed,
  head: (number) => change({ head: number === page.seen.head ? null : number }),
  explain(panel, number) {
    const chosen = { class: number, name: panel.model.classes[number] };
    const explains = VIEWS[page.seen.view].by.includes("class");
    const view = ["relevance", "gradcam"].find((each) => !panel.model.views[each]);
    if (explains || view) change({ chosen, view: explains ? page.seen.view : view });
  },
  changed(panel) {
    if (panel.less) tell(`${panel.model.name}: ${panel.bars.words()}. ${toldOf(panel)}`);
    else if (panel === page.panels[0]) tell(toldOf(panel));
  },
};
const hands = new Hands(page);
const strip = new Strip(byId("strip"), (image) => change({ image: image.id }));
let controls;
let map = null;

/* Changes, and what follows from them. */

function change(changes) {
  const before = page.seen;
  page.seen = { ...before, ...changes };
  const { image, models } = page.seen;
  if (models.join() !== before.models.join() && !changes.view) page.seen.view = firstView(models, before.view);
  if (image !== before.image) page.brush.reset();
  if (image !== before.image || models.join() !== before.models.join()) open(before);
  draw();
}

/* The view that was there, or the first one that one of the models has. */
function firstView(models, view) {
  const has = (each) => models.some((number) => page.facts.models[number].views[each] === "");
  return has(view) ? view : (Object.keys(VIEWS).find(has) ?? view);
}

let due = 0;

/* Once a frame, however often the pointer moves in it. */
function draw() {
  due ||= requestAnimationFrame(() => {
    due = 0;
    drawNow();
  });
}

function drawNow() {
  const { seen, panels } = page;
  const onMap = seen.tab === "map" && map !== null;
  byId("photos").hidden = onMap;
  byId("map").hidden = !onMap;
  byId("tab-photo").setAttribute("aria-pressed", String(!onMap));
  byId("tab-map").setAttribute("aria-pressed", String(onMap));
  if (onMap) map.open();
  byId("inside").hidden = !seen.image;
  byId("incoming").classList.toggle("empty", !seen.image);
  strip.mark(seen.image);
  if (!seen.image || onMap) return writeLink();
  controls.show(seen, panels.map((panel) => panel.look));
  panels.forEach((panel) => panel.update({ ...seen, out: outOf(panel) }));
  const brushes = seen.models.some((number) => !page.facts.models[number].views.gradcam);
  for (const name of ["brush", "undo", "clear"]) byId(name).hidden = !brushes;
  byId("undo").disabled = !page.brush.past.length;
  byId("clear").disabled = !page.brush.out.size;
  writeLink();
}

/* What is brushed out, as patches of a panel's own grid. */
function outOf(panel) {
  const [first] = page.panels;
  if (panel === first || !page.brush.out.size) return page.brush.out;
  return first.look && panel.look ? samePart(page.brush.out, first.look, panel.look) : new Set();
}

function brushed() {
  draw();
  for (const panel of page.panels) {
    panel.seen = { ...page.seen, out: outOf(panel) };
    panel.brush(panel.seen.out);
  }
}

/* As many panels as models, each with its model and photo; those that have them stay. */
function open(before) {
  const { seen, panels } = page;
  const image = strip.find(seen.image);
  if (!image) return;
  api.kept.forget("/colors?"); // one more photo may share them
  while (panels.length > seen.models.length) panels.pop().root.remove();
  while (panels.length < seen.models.length) {
    panels.push(new Panel(panels.length, hands));
    byId("panels").append(panels.at(-1).root);
  }
  byId("panels").classList.toggle("two", panels.length > 1);
  panels.forEach((panel, place) => {
    const number = seen.models[place];
    if (panel.image?.id === image.id && panel.number === number && panel.look) return;
    panel.seen = { ...seen, out: new Set() };
    panel.open(number, page.facts.models[number], image).then((there) => there && arrived(panel));
  });
  if (seen.models[0] !== before.models[0]) page.brush.reset(); // patches of another grid
}

/* A first pass has come: what it saw is drawn, and what it said is told. */
function arrived(panel) {
  const { seen } = page;
  const has = ({ look }) => !look || look.prefix.includes(seen.token) || (seen.token === "pool" && look.pool);
  if (seen.token ? !page.panels.some(has) : !seen.at) page.seen = { ...seen, ...beginning(panel.look) };
  panel.seen = page.seen;
  panel.drawBars();
  if (seen.tab === "photo") vitlab.say(`${panel.image.name}: ${panel.bars.words()}${page.panels.length > 1 ? ` (${panel.model.name})` : ""}`);
  drawNow();
  if (page.brush.out.size) brushed();
}

/* Where to look from at first: the class token, or the middle. */
const beginning = (look) =>
  look.prefix.includes("class token") ? { token: "class token", at: null } : { token: null, at: middle(look) };
const middle = ({ box: [left, top, right, bottom] }) => [(left + right) / 2 + 1e-6, (top + bottom) / 2 + 1e-6];

/* Words for the screen reader, when the hand rests. */
let telling = 0;
function tell(text) {
  clearTimeout(telling);
  telling = setTimeout(() => {
    if (byId("told").textContent !== text) byId("told").textContent = text;
  }, 500);
}

/* The address follows, not faster than browsers allow. */
let writing = 0;
function writeLink() {
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", linkOf({ ...page.seen, out: page.brush.out })), 250);
}

function readLink() {
  const { out, ...fields } = linkedFields(location.hash, page.facts.models);
  if (fields.tab === "map" && !map) fields.tab = "photo";
  const missing = fields.image && !strip.find(fields.image);
  if (!fields.image || missing) fields.image = strip.images[0]?.id ?? null;
  const { lines, strength } = page.seen; // a matter of taste
  change({ ...START, lines, strength, view: firstView(fields.models, START.view), ...fields });
  if (!missing) page.brush.reset(out);
  if (missing) byId("refused").replaceChildren(vitlab.element("li", "wrong", "The photo of this link is not open here: choose it, and follow the link again."));
}

/* Photos come in. */

async function take(files) {
  if (!page.facts) return;
  const refused = byId("refused");
  refused.replaceChildren();
  const images = await openFiles(files, page.facts.limits.body, (name, why) => {
    const line = refused.appendChild(vitlab.element("li", "wrong"));
    line.append(vitlab.element("bdi", "", name), `: ${why}`);
    vitlab.say(`${name}: ${why}`);
  });
  show(images);
}

function show(images) {
  images.forEach((image) => strip.add(image));
  if (images.length) change({ image: images.at(-1).id, tab: "photo", at: null, token: null, held: false });
}

/* What is taken away. */

byId("link").addEventListener("click", async () => {
  history.replaceState(null, "", linkOf({ ...page.seen, out: page.brush.out }));
  try {
    await navigator.clipboard.writeText(location.href);
    vitlab.say("The link is copied. It works while this explorer runs.");
  } catch {
    vitlab.say("The link is this page’s address; copy it from there.");
  }
});
byId("png").addEventListener("click", () => {
  const { title, says } = VIEWS[page.seen.view];
  const image = strip.find(page.seen.image);
  const shown = page.panels.filter((panel) => panel.look);
  if (!shown.length) return vitlab.say("There is nothing to save yet.");
  saveCanvas(posterOf(shown, image, title, says), `${image.name.replace(/\.\w+$/, "")}-${page.seen.view}.png`);
  vitlab.say("The picture is saved.");
});

/* Brushing. */

byId("brush").addEventListener("click", () => {
  hands.brushing = !hands.brushing;
  byId("brush").setAttribute("aria-pressed", String(hands.brushing));
  byId("panels").classList.toggle("brushing", hands.brushing);
});
byId("undo").addEventListener("click", undo);
byId("clear").addEventListener("click", () => {
  page.brush.clear();
  brushed();
});
function undo() {
  page.brush.undo();
  brushed();
}

addEventListener("keydown", (event) => {
  const writing = event.target.closest?.("input[type=text], select");
  if (event.key === "z" && (event.ctrlKey || event.metaKey) && !writing && page.brush.past.length) {
    event.preventDefault();
    undo();
  } else if (event.key === "Escape" && page.seen.held) change({ held: false });
});
for (const tab of ["photo", "map"]) byId(`tab-${tab}`).addEventListener("click", () => change({ tab }));
addEventListener("hashchange", () => page.facts && readLink());
vitlab.photos(take, (text) => vitlab.say(text));

async function start() {
  try {
    page.facts = await api.state();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    vitlab.say(error.message);
    return setTimeout(start, 2000);
  }
  const { models, images } = page.facts;
  controls = new Controls(models, change);
  images.forEach((image) => strip.add(image));
  if (page.facts.map) {
    map = new DataMap(byId("map"), (image) => show([image]));
    byId("tabs").hidden = false;
  }
  document.title = `${models.map((model) => model.name).join(", ")}: look inside`;
  vitlab.say(images.length ? "" : "Choose a photo to begin.");
  readLink();
}
start();
