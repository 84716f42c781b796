// The histogram of a score, with what each method says of it.

const STEPS = 64;
const FOOT = 22; // the height of the axis, in pixels

/** Draw the histogram of the score of class `k`; `said` has the mean and variance of every method. */
export function drawHistogram(canvas, k, said, draws) {
  const { context, width, height, colour } = prepared(canvas);
  const plain = said.plain.mean[k];
  const normalOf = ({ mean, variance }) => ({ mean: mean[k], deviation: Math.sqrt(variance[k]) });
  const normals = [normalOf(said.ap2), normalOf(said.joint)];
  const [low, high] = limits(plain, normals);
  const counts = draws.counts(k, low, high, STEPS);
  const perUnit = STEPS / (high - low) / Math.max(1, draws.count); // of a density
  const densities = normals.map(({ mean, deviation }) => (x) => density(x, mean, deviation));
  const peaks = normals.map(({ mean }, i) => densities[i](mean)).filter(Number.isFinite);
  const top = 1.12 * Math.max(...peaks, ...(draws.count > 100 ? counts.map((n) => n * perUnit) : []), 1e-9);
  const across = (x) => ((x - low) / (high - low)) * width;
  const up = (y) => (height - FOOT) * (1 - Math.min(y, top) / top);

  context.fillStyle = colour("--draws");
  counts.forEach((n, i) => {
    const y = up(n * perUnit);
    context.fillRect((i * width) / STEPS, y, width / STEPS - 0.5, height - FOOT - y);
  });
  drawAxis(context, colour, low, high, across, width, height);
  const upright = (x) => [[across(x), 0], [across(x), height - FOOT]];
  const places = Array.from({ length: 301 }, (_, j) => low + (j / 300) * (high - low));
  line(context, colour("--ap1"), 2, [2, 4], upright(plain));
  normals.forEach(({ mean, deviation }, i) => {
    const points = deviation > 0 ? places.map((x) => [across(x), up(densities[i](x))]) : upright(mean);
    line(context, colour(["--ap2", "--joint"][i]), 2.5, [[9, 4], []][i], points);
  });
}

/** Clear a canvas and fit it to the screen's pixels. */
function prepared(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(canvas);
  return { context, width, height, colour: (name) => style.getPropertyValue(name) };
}

/** Limits that hold what all methods say. */
function limits(plain, normals) {
  const reach = Math.max(...normals.map(({ deviation }) => 4 * deviation), 1);
  const means = normals.map(({ mean }) => mean);
  return [
    Math.min(plain - 0.2 * reach, ...means.map((mean) => mean - reach)),
    Math.max(plain + 0.2 * reach, ...means.map((mean) => mean + reach)),
  ];
}

const density = (x, mean, deviation) =>
  Math.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * Math.sqrt(2 * Math.PI));

function line(context, colour, width, dashes, points) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dashes);
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
  context.setLineDash([]);
}

function drawAxis(context, colour, low, high, across, width, height) {
  line(context, colour("--rule"), 1, [], [[0, height - FOOT + 0.5], [width, height - FOOT + 0.5]]);
  const rough = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  context.fillStyle = colour("--quiet");
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center";
  for (let x = Math.ceil(low / step) * step; x <= high; x += step) {
    const place = across(x);
    if (place > 12 && place < width - 12) context.fillText(String(Number(x.toFixed(6))), place, height - 5);
  }
}
