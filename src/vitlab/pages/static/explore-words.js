/* What the explorer says: the names of the views, what each shows, patches and numbers in words. */
/* by: what else decides the view: a place that is pointed at, a layer's attention or features, a class */
export const VIEWS = {
  mask: {
    title: "Mask", by: [],
    says: "The class of each pixel of what the model sees, by the run’s segmenter.",
  },
  attention: {
    title: "Attention", by: ["place", "attention"],
    says: "Where each head of this layer looks from the outlined patch. The shares of a head add up to 100% over all tokens.",
  },
  late: {
    title: "Object", by: [],
    says: "Attention of the last three layers at once, back to the patches: where the model looks before it answers, most often the object.",
  },
  rollout: {
    title: "Rollout", by: ["attention"],
    says: "Attention through all layers up to this one at once, back to the patches: brighter patches went further into the answer.",
  },
  colors: {
    title: "Feature colors", by: ["features"],
    says: "The three main directions of the patches’ features as red, green and blue: where colors are alike, features are. All photos that the model has seen share them.",
  },
  relevance: {
    title: "Relevance", by: ["class"],
    says: "Attention weighted by its gradient for one class, through all layers: what spoke for this class.",
  },
  gradcam: {
    title: "Grad-CAM", by: ["class"],
    says: "Features weighted by the gradient of one class’s score: where raising them would raise the score.",
  },
  similarity: {
    title: "Similarity", by: ["place", "features"],
    says: "How alike the features of every patch and of the outlined one are.",
  },
  norms: {
    title: "Token norms", by: ["features"],
    says: "The length of each token’s features. A few very long ones in plain background are a sign of a model that keeps notes there; registers cure it.",
  },
};

/* Patch 0 of a grid is "row 1, column 1". */
export function patchWords(patch, [, columns]) {
  return `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* Three digits, without zeros that say nothing. */
export function figureWords(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

/* A value as it is read; unit "%": a share. */
export function quantityWords(value, unit = "") {
  if (value === 0) return unit === "%" ? "0%" : "0";
  const words = unit === "%" ? vitlab.percent(Math.abs(value)) : figureWords(Math.abs(value));
  return value < 0 ? `−${words}` : words;
}

/* The `most` largest of a list, as [value, place]. */
export function largestOf(values, most) {
  return Array.from(values, (value, place) => [value, place])
    .sort(([one], [other]) => other - one)
    .slice(0, most);
}

/* A share of attention, as exactly as it comes: a byte for each token. */
export function shortPercent(share) {
  if (share === 0) return "0%";
  return share >= 0.0995 ? `${Math.round(100 * share)}%` : vitlab.percent(share);
}
