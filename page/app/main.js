// The page: picks a digit and its noise, asks all methods, and goes on drawing until there are many draws.

import { data } from "./embedded.js";
import { Draws } from "./draws.js";
import { start } from "./networks.js";
import { LENGTH, draw, moments } from "./noise.js";
import { drawable, paint } from "./pictures.js";
import { best, makeClasses, show, showCosts } from "./view.js";

const CLASSES = 10;
const FRAME = 14; // milliseconds of draws between two frames
const ROUNDS = 25; // of the measurement of costs
const SLIDERS = ["noise", "missing", "dropout"];

const at = (id) => document.getElementById(id);
const nextFrame = () => new Promise(requestAnimationFrame);
const settings = () => Object.fromEntries(SLIDERS.map((name) => [name, Number(at(name).value)]));

const draws = new Draws(CLASSES);
let image = data.digits[0].pixels;
let shown = null; // the class in the histogram; null: that which the plain network reads
let asks = 1;
let answered = 0; // the number of the last ask that has its answer
let wake = () => {};

/** Ask all again: for another digit, other noise, or another class. */
function ask(change = () => {}) {
  change();
  asks++;
  wake();
}

function makeDigits() {
  const buttons = () => [...at("shelf").children];
  const press = (button) => buttons().forEach((each) => each.setAttribute("aria-pressed", each === button));
  const pad = drawable(at("pad"), (drawn) => ask(() => {
    image = drawn;
    shown = null;
    press(null);
  }));
  for (const { pixels, label } of data.digits) {
    const button = document.createElement("button");
    button.title = `A ${label}`;
    button.append(document.createElement("canvas"));
    paint(button.firstChild, pixels);
    button.addEventListener("click", () => ask(() => {
      image = pixels;
      shown = null;
      press(button);
      pad.leave();
      paint(at("pad"), pixels);
    }));
    at("shelf").append(button);
  }
  press(at("shelf").firstChild);
  paint(at("pad"), image);
}

function sayNoise({ noise, missing, dropout }) {
  at("noise-said").textContent = noise ? `±${Math.round(100 * noise)} %` : "none";
  at("missing-said").textContent = missing ? `${Math.round(100 * missing)} %` : "none";
  at("dropout-said").textContent = dropout ? `${Math.round(100 * dropout)} %` : "none";
  const guessed = missing ? "; blue pixels are missing, and guessed" : "";
  at("seen-caption").textContent = `With noise, drawn once${guessed}`;
}

/** Ask the three methods about the digit and its noise; draws begin anew if these are others than before. */
async function asked(networks, before) {
  const given = settings();
  const key = JSON.stringify([given, image]);
  sayNoise(given);
  const input = moments(image, given);
  const said = {
    plain: await networks.plain(input.mean),
    ap2: await networks.ap2Numbers(await networks.ap2(input)),
    joint: await networks.jointNumbers(await networks.joint(input)),
  };
  if (key !== before?.key) draws.clear();
  globalThis.momentprop = { said, draws, isAnswered: () => answered === asks }; // for tests, and for the curious
  return { given, input, said, key };
}

/** Measure the milliseconds of each method: its best of some turns. */
async function costs(networks, input) {
  const runs = {
    ap1: () => networks.plain(input.mean),
    ap2: () => networks.ap2(input),
    joint: () => networks.joint(input),
  };
  const times = { ap1: Infinity, ap2: Infinity, joint: Infinity };
  for (let round = 0; round < ROUNDS; round++) {
    for (const [name, run] of Object.entries(runs)) {
      const repeats = name === "joint" ? 1 : 5; // clocks of browsers are coarse
      const begun = performance.now();
      for (let i = 0; i < repeats; i++) await run();
      times[name] = Math.min(times[name], (performance.now() - begun) / repeats);
    }
    await nextFrame();
  }
  return times;
}

/** Draw a batch of some size, and return the size for the next one, so that frames stay smooth. */
async function drawSome(networks, { input, given }, size) {
  const begun = performance.now();
  const drawn = draw(input, given, Math.min(size, draws.room));
  const found = await networks.plain(drawn);
  const took = performance.now() - begun;
  draws.add(found, took);
  const seen = drawn.subarray(0, image.length).map((x) => 255 * (x * data.std + data.mean));
  paint(at("seen"), seen, given.missing);
  return took > FRAME ? Math.max(8, size / 2) : took < FRAME / 3 ? Math.min(128, size * 2) : size;
}

function makeControls() {
  makeDigits();
  at("accuracy").textContent = `${(100 * data.accuracy).toFixed(1)} %`;
  makeClasses(CLASSES, (k) => ask(() => (shown = k)));
  SLIDERS.forEach((name) => at(name).addEventListener("input", () => ask()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => ask());
  window.addEventListener("resize", () => ask());
}

async function main() {
  makeControls();
  const networks = await start(LENGTH);
  let price = null;
  let now = null; // what is asked, and what the methods say of it
  for (let size = 16; ; await nextFrame()) {
    if (answered < asks) {
      const number = asks;
      now = await asked(networks, now);
      answered = number;
    } else if (price === null) {
      price = await costs(networks, now.input);
    } else if (draws.room > 0) {
      size = await drawSome(networks, now, size);
    } else {
      await new Promise((resolve) => (wake = resolve));
      continue;
    }
    const k = shown ?? best(now.said.plain);
    show(now.said, draws, k, Object.values(now.given).every((value) => value === 0));
    if (price !== null) showCosts(price, now.said, draws, k);
  }
}

main().catch((error) => {
  at("verdict").textContent = `This browser cannot run the networks: ${error.message}`;
  throw error;
});
