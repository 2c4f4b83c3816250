/* What a person sets: the view, the models, the layer, where to look from, the class to explain. */

import { ClassChoice } from "./explore-classes.js";
import { attentionLayer } from "./explore-wanted.js";
import { VIEWS } from "./explore-words.js";

const byId = (id) => document.getElementById(id);

export class Controls {
  /* set(changes): what a person changed, as fields of `seen` */
  constructor(models, set) {
    Object.assign(this, { models, set });
    this.views = Object.keys(VIEWS).map((view) => this.viewButton(view));
    this.classes = new ClassChoice(byId("class"), byId("class-list"), (chosen) => set({ chosen }));
    const options = () => models.map((model, number) => new Option(`${model.name} (${model.notation})`, number));
    byId("model").append(...options());
    byId("beside").append(new Option("none", ""), ...options());
    byId("pick-model").hidden = byId("pick-beside").hidden = models.length < 2;
    const choose = () => set({ models: [...new Set([byId("model").value, byId("beside").value].filter(Boolean))].map(Number) });
    byId("model").addEventListener("change", choose);
    byId("beside").addEventListener("change", choose);
    byId("layer").addEventListener("input", (event) => set({ depth: Number(event.target.value) / Number(event.target.max) }));
    byId("lines").addEventListener("change", (event) => set({ lines: event.target.checked }));
    byId("same").addEventListener("change", (event) => set({ same: event.target.checked }));
    byId("strength").addEventListener("input", (event) => set({ strength: event.target.value / 100 }));
  }

  viewButton(view) {
    const button = byId("views").appendChild(vitlab.element("button", "view", VIEWS[view].title));
    button.type = "button";
    button.dataset.view = view;
    button.addEventListener("click", () => this.set({ view }));
    return button;
  }

  /* seen: of explore.js; looks: what the first pass says of each model that is shown, or null */
  show(seen, looks) {
    const models = seen.models.map((number) => this.models[number]);
    this.showViews(seen, models);
    const { by, says } = VIEWS[seen.view];
    byId("says").textContent = says;
    byId("model").value = seen.models[0];
    byId("beside").value = seen.models[1] ?? "";
    byId("class-choice").hidden = !by.includes("class");
    this.classes.show(models[0].classes, seen.chosen);
    byId("pick-same").hidden = seen.view !== "attention";
    byId("lines").checked = seen.lines;
    byId("same").checked = seen.same;
    byId("strength").value = Math.round(100 * seen.strength);
    const here = looks.filter(Boolean);
    this.showLayer(seen, here, by);
    this.showFrom(seen, by.includes("place") ? here : []);
  }

  /* A view is shown if one of the models has it; why others are not can be read. */
  showViews(seen, models) {
    const reasons = [];
    for (const button of this.views) {
      const { view } = button.dataset;
      const has = models.some((model) => model.views[view] === "");
      const why = has ? "" : models[0].views[view];
      button.setAttribute("aria-pressed", String(view === seen.view));
      button.hidden = !has;
      if (why) reasons.push(`${VIEWS[view].title}: ${why}`);
    }
    const absent = byId("absent");
    absent.hidden = !reasons.length;
    absent.firstElementChild.textContent = `${reasons.length} ${reasons.length === 1 ? "view is" : "views are"} not for this model`;
    absent.lastElementChild.replaceChildren(...reasons.map((reason) => vitlab.element("li", "", reason)));
  }

  showLayer(seen, looks, by) {
    const slider = byId("layer");
    const attention = by.includes("attention");
    const count = (look) => (attention ? look.layers.length : look.depth);
    const number = (look) => (attention ? attentionLayer(look, seen.depth) + 1 : Math.round(seen.depth * count(look)));
    const [first] = looks;
    const shown = (attention || by.includes("features")) && first && count(first) > 0 && !(seen.view === "attention" && seen.token === "pool");
    byId("pick-layer").hidden = !shown;
    if (!shown) return;
    slider.min = attention ? 1 : 0;
    slider.max = count(first);
    slider.value = number(first);
    const name = (look) => (attention ? look.layers[number(look) - 1] : number(look) || "0 (before the first)");
    const words = looks.map((look) => `${name(look)} of ${count(look)}`).join(" · ");
    byId("layer-name").textContent = words;
    slider.setAttribute("aria-valuetext", words);
  }

  /* Buttons for the tokens that are no patches. */
  showFrom(seen, looks) {
    const tokens = [...new Set(looks.flatMap((look) => look.prefix))];
    const pool = seen.view === "attention" && looks.some((look) => look.pool) ? ["pool"] : [];
    const names = [...tokens, ...pool];
    const host = byId("from");
    host.hidden = !names.length;
    if (host.dataset.names !== names.join()) {
      host.dataset.names = names.join();
      host.replaceChildren(vitlab.element("span", "", "From"), ...names.map((name) => {
        const button = vitlab.element("button", "button slim", name === "pool" ? "attention pool" : name);
        button.type = "button";
        button.dataset.token = name;
        button.addEventListener("click", () => this.set({ token: name, at: null, held: true }));
        return button;
      }));
    }
    for (const button of host.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.token === seen.token));
    }
  }
}
