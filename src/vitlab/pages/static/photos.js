/* How photos come in: the file dialog, the camera, a drop anywhere on the page, the clipboard. */
"use strict";
window.vitlab ??= {};

/* Call take(files) with every choice, and refuse(text) for what holds no files. */
vitlab.photos = function (take, refuse) {
  for (const input of document.querySelectorAll("input[type=file]")) {
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = ""; // so that the same file can be chosen again
      if (files.length) take(files);
    });
  }

  let inside = 0; // elements under the pointer that a drag has entered and not left
  const mark = () => document.body.classList.toggle("over", inside > 0);
  addEventListener("dragenter", (event) => {
    event.preventDefault();
    inside += 1;
    mark();
  });
  addEventListener("dragleave", () => {
    inside = Math.max(0, inside - 1);
    mark();
  });
  addEventListener("dragover", (event) => event.preventDefault()); // else the browser opens the file
  addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    mark();
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length) take(files);
    else refuse("That was not a file. Save the picture first, then drop its file here.");
  });

  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) {
      event.preventDefault();
      take(files);
    } else if (!event.target.closest?.("input, select, textarea")) {
      refuse("There is no picture on the clipboard.");
    }
  });
};
