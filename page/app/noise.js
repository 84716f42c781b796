// The noise that the sliders choose: its mean and variance for momentprop, and draws of it for the plain network.

import { data } from "./embedded.js";

const PIXELS = data.pixelMean.length;
export const LENGTH = PIXELS + data.factors;

/** Whether a pixel is missing, if a fraction of them is: always the same ones first. */
export const isMissing = (pixel, fraction) => data.order[pixel] < Math.round(fraction * PIXELS);

/** Mean and variance of all random numbers: pixels, then the factors of dropout. */
export function moments(image, { noise, missing, dropout }) {
  const mean = new Float32Array(LENGTH).fill(1);
  const variance = new Float32Array(LENGTH).fill(dropout / (1 - dropout));
  for (let i = 0; i < PIXELS; i++) {
    const gone = isMissing(i, missing);
    mean[i] = gone ? data.pixelMean[i] : (image[i] / 255 - data.mean) / data.std;
    variance[i] = gone ? data.pixelVariance[i] : (noise / data.std) ** 2;
  }
  return { mean, variance };
}

/** Some draws of these numbers, one after the other. */
export function draw({ mean, variance }, { dropout }, count) {
  const drawn = new Float32Array(count * LENGTH).fill(1);
  for (let start = 0; start < drawn.length; start += LENGTH) {
    for (let i = 0; i < PIXELS; i++) drawn[start + i] = mean[i] + Math.sqrt(variance[i]) * normal();
    if (dropout === 0) continue;
    for (let i = PIXELS; i < LENGTH; i++) drawn[start + i] = Math.random() < dropout ? 0 : 1 / (1 - dropout);
  }
  return drawn;
}

let spare = null;

/** A standard normal number; they come in pairs (Box and Muller). */
function normal() {
  if (spare !== null) {
    const kept = spare;
    spare = null;
    return kept;
  }
  const radius = Math.sqrt(-2 * Math.log(1 - Math.random()));
  const angle = 2 * Math.PI * Math.random();
  spare = radius * Math.sin(angle);
  return radius * Math.cos(angle);
}
