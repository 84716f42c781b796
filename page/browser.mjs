// Opens the page in Chromium, plays with it as a job says, and prints what it found, as JSON.
//
//     node browser.mjs '{"page": "/…/index.html", "chromium": "/usr/bin/chromium", "shots": [...]}'
//
// A shot has a `width`, a `height`, a `scheme` (light or dark), a `digit` of the shelf, the `settings` of the sliders,
// the `draws` to wait for, and a `file` for a picture, if any.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

const job = JSON.parse(process.argv[2]);
const profile = mkdtempSync(join(tmpdir(), "page-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: job.chromium,
  args: FLAGS,
});
const errors = [];
const found = [];
try {
  const page = await context.newPage();
  page.on("console", (message) => message.type() !== "log" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => /^https?:/.test(request.url()) && errors.push(`asked for ${request.url()}`));
  await page.goto(`file://${job.page}`);
  await page.waitForFunction(() => globalThis.momentprop);
  for (const shot of job.shots) {
    await page.setViewportSize({ width: shot.width ?? 1100, height: shot.height ?? 800 });
    await page.emulateMedia({ colorScheme: shot.scheme ?? "light" });
    found.push(await page.evaluate(played, shot));
    if (shot.file) await page.screenshot({ path: shot.file, fullPage: shot.full ?? true });
  }
} finally {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
}
console.log(JSON.stringify({ errors, found }));

/** Inside the page: pick a digit, move the sliders, wait for draws, and return what all methods say. */
async function played({ digit = 0, settings = {}, draws = 0 }) {
  const before = globalThis.momentprop.said;
  for (const [name, value] of Object.entries(settings)) {
    const slider = document.getElementById(name);
    slider.value = value;
    slider.dispatchEvent(new Event("input"));
  }
  document.getElementById("shelf").children[digit].click();
  const wait = () => new Promise((resolve) => setTimeout(resolve, 20));
  while (globalThis.momentprop.said === before || globalThis.momentprop.draws.count < draws) await wait();
  const plainly = (each) => each && Object.fromEntries(
    ["mean", "variance", "probabilities"].filter((name) => each[name]).map((name) => [name, [...each[name]]]),
  );
  const { said, draws: made, price } = globalThis.momentprop;
  return {
    plain: plainly(said.plain),
    ap2: plainly(said.ap2),
    joint: plainly(said.joint),
    draws: { count: made.count, ...(made.count ? plainly(made) : {}) },
    price,
    verdict: document.getElementById("verdict").textContent,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}
