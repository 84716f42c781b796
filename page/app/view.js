// What the page shows in words, bars and tables.

import { drawHistogram } from "./histogram.js";

const METHODS = ["draws", "ap1", "ap2", "joint"];

const at = (id) => document.getElementById(id);
const percent = (p) => `${(100 * p).toFixed(p > 0.9995 || p < 0.0005 ? 0 : 1)}\u00a0%`;
const short = (x) => x.toFixed(Math.abs(x) < 10 ? 2 : 1);
const counted = (n) => n.toLocaleString("en");

/** The class of which a method is most sure. */
export const best = ({ probabilities }) => probabilities.indexOf(Math.max(...probabilities));

/** Make the rows of the classes; `pick` is called with the class whose row is pressed. */
export function makeClasses(classes, pick) {
  for (let k = 0; k < classes; k++) {
    const row = document.createElement("button");
    const bars = METHODS.map((method) => `<i class="${method}"></i>`).join("");
    row.innerHTML = `<b>${k}</b><span>${bars}</span><span class="number"></span>`;
    row.title = `Show the score for a ${k}`;
    row.addEventListener("click", () => pick(k));
    at("classes").append(row);
  }
}

/** Show what all methods say, of class `k` in the histogram; `draws` are those so far. */
export function show(said, draws, k, isCertain) {
  const all = { ...said, ap1: said.plain, draws };
  at("shown").textContent = k;
  drawHistogram(at("histogram"), k, said, draws);
  at("draws-count").textContent = `${counted(draws.count)} draws`;
  at("draws-said").textContent = draws.count ? moments(draws, k) : "";
  at("ap1-said").textContent = short(said.plain.mean[k]);
  at("ap2-said").textContent = moments(said.ap2, k);
  at("joint-said").textContent = moments(said.joint, k);
  [...at("classes").children].forEach((row, label) => {
    row.setAttribute("aria-pressed", label === k);
    METHODS.forEach((method, i) => {
      row.children[1].children[i].style.width = `${100 * all[method].probabilities[label]}%`;
    });
    row.children[2].textContent = percent(said.joint.probabilities[label]);
  });
  at("verdict").textContent = verdict(said, draws, isCertain);
}

const moments = (each, k) => `${short(each.mean[k])} ± ${short(Math.sqrt(each.variance[k]))}`;

/** Say in plain words how sure each method is of the digit that the plain network reads. */
function verdict({ plain, ap2, joint }, draws, isCertain) {
  const k = best(plain);
  const sure = ({ probabilities }) => (probabilities[k] > 0.9995 ? "over 99.9\u00a0%" : percent(probabilities[k]));
  const first = `The plain network reads a ${k}, with a probability of ${sure(plain)}.`;
  if (isCertain) return `${first} Nothing is random now, so all methods say the same. Move a slider.`;
  const drawn = `Over ${counted(draws.count)} draws of the noise it is ${sure(draws)} on average.`;
  const computed = `AP2 says ${sure(ap2)} and joint ${sure(joint)}, without drawing.`;
  return draws.count ? `${first} ${drawn} ${computed}` : `${first} ${computed}`;
}

/** Show the cost of each method, and its deviation of the score of class `k`. */
export function showCosts(milliseconds, said, draws, k) {
  const truth = Math.sqrt(draws.variance[k]);
  const ratio = ({ variance }) => (truth > 1e-5 ? `×${(Math.sqrt(variance[k]) / truth).toFixed(2)}` : "–");
  const row = (method, name, time, deviation) =>
    `<tr class="${method}"><th>${name}</th><td>${span(time)}</td><td>${rounded(time / milliseconds.ap1)}</td>`
    + `<td>${deviation}</td></tr>`;
  at("costs").innerHTML = [
    row("ap1", "plain", milliseconds.ap1, "none"),
    row("ap2", "AP2", milliseconds.ap2, ratio(said.ap2)),
    row("joint", "joint", milliseconds.joint, ratio(said.joint)),
    row("draws", `${counted(draws.count)} draws`, draws.milliseconds, "×1"),
  ].join("");
}

const rounded = (x) => (x < 9.5 ? x.toFixed(1) : counted(Math.round(x)));
const span = (ms) => (ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`);
