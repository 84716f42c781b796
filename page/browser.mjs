// Opens the page in Chromium, plays with it as a job says, and prints what it found, as JSON.
//
//     node browser.mjs '{"page": "/…/index.html", "chromium": "/usr/bin/chromium", "shots": [...]}'
//
// A shot has a `width`, a `height`, a `scheme` (light or dark), a `digit` of the shelf or a `stroke` on the pad (points
// from 0 to 1), the `settings` of the sliders, the `draws` to wait for, and a `file` for a picture, if any.

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
    await pick(page, shot);
    found.push(await page.evaluate(said, shot));
    if (shot.file) await page.screenshot({ path: shot.file, fullPage: shot.full ?? true });
  }
} finally {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
}
console.log(JSON.stringify({ errors, found }));

/** Pick a digit or draw one, and move the sliders. */
async function pick(page, { digit = 0, stroke, settings = {} }) {
  await page.evaluate((given) => {
    for (const [name, value] of Object.entries(given)) document.getElementById(name).value = value;
  }, settings);
  if (!stroke) return page.locator("#shelf button").nth(digit).click();
  const box = await page.locator("#pad").boundingBox();
  const places = stroke.map(([x, y]) => [box.x + x * box.width, box.y + y * box.height]);
  await page.mouse.move(...places[0]);
  await page.mouse.down();
  for (const place of places.slice(1)) await page.mouse.move(...place, { steps: 10 });
  await page.mouse.up();
}

/** Inside the page: wait for draws, and return what all methods say. */
async function said({ draws = 0 }) {
  const wait = () => new Promise((resolve) => setTimeout(resolve, 20));
  while (!globalThis.momentprop.isAnswered() || globalThis.momentprop.draws.count < draws) await wait();
  const plainly = (each) => each && Object.fromEntries(
    ["mean", "variance", "probabilities"].filter((name) => each[name]).map((name) => [name, [...each[name]]]),
  );
  const { said: all, draws: made } = globalThis.momentprop;
  return {
    plain: plainly(all.plain),
    ap2: plainly(all.ap2),
    joint: plainly(all.joint),
    draws: { count: made.count, ...(made.count ? plainly(made) : {}) },
    verdict: document.getElementById("verdict").textContent,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}
