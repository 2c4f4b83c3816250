/* The photos that are open, as a strip of small pictures, and the files that could not be opened. */

import { Problem, api } from "./explore-asking.js";
import { isSmooth } from "./explore-paint.js";

export class Strip {
  /* choose(image) is called with the one that a person picks. */
  constructor(host, choose) {
    Object.assign(this, { host, choose, images: [] });
    this.arriving = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        this.arriving.unobserve(target);
        target.fill();
      }
    }, { rootMargin: "200px" }); // a folder may have thousands
  }

  add(image) {
    if (this.find(image.id)) return;
    this.images.push(image);
    const item = document.createElement("li");
    const button = item.appendChild(vitlab.element("button", "thumb"));
    button.type = "button";
    button.title = image.name;
    button.dataset.image = image.id;
    button.setAttribute("aria-label", image.name);
    button.setAttribute("aria-pressed", "false");
    const canvas = button.appendChild(document.createElement("canvas"));
    [canvas.width, canvas.height] = [112, 112];
    button.addEventListener("click", () => this.choose(image));
    button.fill = () => fill(canvas, image);
    this.host.append(item);
    this.arriving.observe(button);
  }

  find(id) {
    return this.images.find((image) => image.id === id);
  }

  mark(id) {
    for (const button of this.host.querySelectorAll(".thumb")) {
      const here = button.dataset.image === id;
      button.setAttribute("aria-pressed", String(here));
      if (here) button.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }
}

/* The middle square of a photo. */
async function fill(canvas, image) {
  try {
    const photo = await api.picture(image.id);
    const side = Math.min(photo.width, photo.height);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = isSmooth(photo);
    context.imageSmoothingQuality = "high";
    context.drawImage(photo, (photo.width - side) / 2, (photo.height - side) / 2, side, side, 0, 0, canvas.width, canvas.height);
  } catch (error) {
    if (!(error instanceof Problem)) throw error; // the panel says what is wrong
  }
}

/* Send files to the server, one after the other; a bad one is said, and the others go on.
   most: bytes that the server takes. Return the images that are open now. */
export async function openFiles(files, most, refuse) {
  const images = [];
  for (const file of files) {
    const name = file.name || "pasted picture";
    vitlab.say(`Opening ${name} …`);
    try {
      if (file.size > most) throw new Problem(`too large: a file may have ${Math.floor(most / 2 ** 20)} MiB`);
      images.push(await api.upload(file));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      refuse(name, error.message);
    }
  }
  return images;
}
