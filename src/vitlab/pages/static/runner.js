/* The model, in a worker of its own so that the page stays responsive. */
"use strict";
window.vitlab ??= {};

/* The worker's program: it is started from its text, after that of ONNX Runtime (`ort`). */
vitlab.work = function () {
  let session;

  async function start({ glue, wasm, model }) {
    ort.env.logLevel = "error";
    ort.env.wasm.numThreads = 1; // more need headers that only some servers send
    ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(new Blob([glue], { type: "text/javascript" })) };
    ort.env.wasm.wasmBinary = wasm;
    session = await ort.InferenceSession.create(new Uint8Array(model), { executionProviders: ["wasm"] });
    ort.env.wasm.wasmBinary = undefined;
    return {};
  }

  async function run({ pixels, rows, columns, channels }) {
    const begun = performance.now();
    const image = new ort.Tensor("uint8", pixels, [1, rows, columns, channels]);
    const wanted = ["probabilities", "distance"].filter((name) => session.outputNames.includes(name));
    const found = await session.run({ image }, wanted);
    const seconds = (performance.now() - begun) / 1000;
    return { probabilities: [...found.probabilities.data], unlike: found.distance?.data[0] > 1, seconds };
  }

  onmessage = async ({ data: { number, what, ...rest } }) => {
    try {
      postMessage({ number, answer: await (what === "start" ? start(rest) : run(rest)) });
    } catch (error) {
      postMessage({ number, error: String(error?.message ?? error) });
    }
  };
};

/* await ask(what, message, transferred) -> the worker's answer, one at a time in their order. */
vitlab.Runner = class {
  constructor(library) {
    const program = new Blob([library, `\n;(${vitlab.work})();`], { type: "text/javascript" });
    this.worker = new Worker(URL.createObjectURL(program));
    this.open = new Map();
    this.number = 0;
    this.worker.onmessage = ({ data: { number, answer, error } }) => {
      const { resolve, reject } = this.open.get(number);
      this.open.delete(number);
      if (error === undefined) resolve(answer);
      else reject(new Error(error));
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      for (const { reject } of this.open.values()) reject(new Error(event.message || "the worker stopped"));
      this.open.clear();
    };
  }

  ask(what, message, transferred = []) {
    const number = ++this.number;
    return new Promise((resolve, reject) => {
      this.open.set(number, { resolve, reject });
      this.worker.postMessage({ number, what, ...message }, transferred);
    });
  }
};
