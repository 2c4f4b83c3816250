/* A box to find a class by a part of its name: there may be thousands. */
export class ClassChoice {
  /* choose({class, name}), or choose(null) for the likeliest */
  constructor(input, list, choose) {
    Object.assign(this, { input, list, choose, classes: [], found: [], active: -1 });
    input.addEventListener("input", () => this.open());
    input.addEventListener("focus", () => input.select());
    input.addEventListener("click", () => this.open());
    input.addEventListener("blur", () => this.close());
    input.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("pointerdown", (event) => event.preventDefault()); // the input keeps the focus
    list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.take(Number(option.dataset.place));
    });
  }

  show(classes, chosen) {
    this.classes = classes;
    this.chosen = chosen;
    if (document.activeElement !== this.input || this.list.hidden) this.input.value = chosen?.name ?? "";
  }

  open() {
    const most = 50;
    const text = this.input.value === (this.chosen?.name ?? "") ? "" : this.input.value.trim().toLowerCase();
    this.found = text ? [] : [null];
    for (const [number, name] of this.classes.entries()) {
      if (this.found.length > most) break;
      if (name.toLowerCase().includes(text)) this.found.push({ class: number, name });
    }
    this.list.replaceChildren(...this.found.map((each, place) => {
      const option = vitlab.element("li", "", each?.name ?? "the likeliest");
      option.id = `class-${place}`;
      option.dataset.place = place;
      option.setAttribute("role", "option");
      return option;
    }));
    if (!this.found.length) this.list.append(vitlab.element("li", "small", "No class has this in its name."));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.point(text && this.found.length ? 0 : -1);
  }

  point(place) {
    this.active = place;
    this.list.querySelectorAll("[role=option]").forEach((option, number) => {
      option.setAttribute("aria-selected", String(number === place));
      if (number === place) option.scrollIntoView({ block: "nearest" });
    });
    if (place < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", `class-${place}`);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (this.list.hidden) return this.open();
      const count = this.found.length;
      if (count) this.point((this.active + step + count) % count);
    } else if (event.key === "Enter") {
      if (!this.input.value.trim()) this.give(null);
      else if (this.active >= 0) this.take(this.active);
    } else if (event.key === "Escape") {
      this.close();
      event.stopPropagation();
    }
  }

  take(place) {
    if (this.found.length > place) this.give(this.found[place]);
  }

  give(chosen) {
    this.chosen = chosen;
    this.close();
    this.choose(chosen);
  }

  close() {
    this.list.hidden = true;
    this.input.value = this.chosen?.name ?? "";
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
