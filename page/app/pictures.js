// Digits on canvases, and the pad on which people draw their own.

import { isMissing } from "./noise.js";

const SIDE = 28;
const BOX = 20; // the larger side of a digit, as in the data of the network
const INK = 22; // the width of a stroke on the pad

/** Paint a digit, with values from 0 to 255, pixel by pixel. */
export function paint(canvas, values, missing = 0) {
  canvas.width = canvas.height = SIDE;
  const context = canvas.getContext("2d");
  const image = context.createImageData(SIDE, SIDE);
  for (let i = 0; i < values.length; i++) {
    const v = Math.max(0, Math.min(255, values[i]));
    image.data.set(isMissing(i, missing) ? [v * 0.35, v * 0.55, 70 + v * 0.7, 255] : [v, v, v, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** Let people draw on a canvas; `changed` is called with the 784 values of the digit. */
export function drawable(canvas, changed) {
  const ink = document.createElement("canvas");
  ink.width = ink.height = 280;
  const context = ink.getContext("2d", { willReadFrequently: true });
  let last = null;
  let fresh = true; // the next stroke begins a new digit

  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top].map((part) => (part / box.width) * ink.width);
  };
  const stroke = (from, to) => {
    Object.assign(context, { strokeStyle: "white", lineWidth: INK, lineCap: "round", lineJoin: "round" });
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    show();
    changed(centred(ink));
  };
  const show = () => {
    canvas.width = canvas.height = ink.width;
    canvas.getContext("2d").drawImage(ink, 0, 0);
  };
  const clear = () => {
    context.fillStyle = "black";
    context.fillRect(0, 0, ink.width, ink.height);
    fresh = false;
    show();
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (fresh) clear();
    last = placeOf(event);
    stroke(last, last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (last === null) return;
    const place = placeOf(event);
    stroke(last, place);
    last = place;
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (last = null));

  return { clear, leave: () => (fresh = true) };
}

/** Bring a drawing to the size and the place that digits have in the data. */
function centred(ink) {
  const { data } = ink.getContext("2d").getImageData(0, 0, ink.width, ink.height);
  let [left, right, top, bottom, mass, x, y] = [ink.width, 0, ink.height, 0, 0, 0, 0];
  for (let i = 0; i < ink.width * ink.height; i++) {
    const v = data[4 * i];
    if (v === 0) continue;
    const [column, row] = [i % ink.width, Math.floor(i / ink.width)];
    [left, right] = [Math.min(left, column), Math.max(right, column)];
    [top, bottom] = [Math.min(top, row), Math.max(bottom, row)];
    [mass, x, y] = [mass + v, x + v * column, y + v * row];
  }
  const scale = BOX / Math.max(right - left + 1, bottom - top + 1);
  const small = document.createElement("canvas");
  small.width = small.height = SIDE;
  const context = small.getContext("2d");
  context.fillRect(0, 0, SIDE, SIDE);
  context.imageSmoothingQuality = "high";
  context.translate(SIDE / 2 - (scale * x) / mass, SIDE / 2 - (scale * y) / mass);
  context.scale(scale, scale);
  context.drawImage(ink, 0, 0);
  const pixels = context.getImageData(0, 0, SIDE, SIDE).data;
  return Array.from({ length: SIDE * SIDE }, (_, i) => pixels[4 * i]);
}
