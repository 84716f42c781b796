// What the draws of the plain network have shown so far.

const MOST = 20_000;

export class Draws {
  constructor(classes) {
    this.classes = classes;
    this.scores = new Float32Array(MOST * classes);
    this.clear();
  }

  clear() {
    this.count = 0;
    this.milliseconds = 0;
    this.totals = Array.from({ length: this.classes }, () => ({ score: 0, square: 0, probability: 0 }));
  }

  get room() {
    return MOST - this.count;
  }

  /** Add the scores and probabilities of some draws, and the time that they took. */
  add({ mean, probabilities }, milliseconds) {
    this.scores.set(mean, this.count * this.classes);
    for (let i = 0; i < mean.length; i++) {
      const total = this.totals[i % this.classes];
      total.score += mean[i];
      total.square += mean[i] ** 2;
      total.probability += probabilities[i];
    }
    this.count += mean.length / this.classes;
    this.milliseconds += milliseconds;
  }

  /** What totals are divided by: without draws they are zero. */
  get shared() {
    return Math.max(1, this.count);
  }

  get probabilities() {
    return this.totals.map((total) => total.probability / this.shared);
  }

  get mean() {
    return this.totals.map((total) => total.score / this.shared);
  }

  get variance() {
    const mean = this.mean;
    return this.totals.map((total, k) => Math.max(0, total.square / this.shared - mean[k] ** 2));
  }

  /** Count the scores of a class in equal steps from `low` to `high`. */
  counts(k, low, high, steps) {
    const found = new Array(steps).fill(0);
    for (let i = 0; i < this.count; i++) {
      const step = Math.floor(((this.scores[i * this.classes + k] - low) / (high - low)) * steps);
      if (step >= 0 && step < steps) found[step]++;
    }
    return found;
  }
}
