// The networks of the page, as programs that onnxruntime runs: momentprop has exported them, and the page embeds them.

import * as ort from "onnxruntime-web/wasm";
import { bytesOf } from "./embedded.js";

/** Start the programs; each takes all random numbers of the network as one vector of `length`. */
export async function start(length) {
  ort.env.wasm.numThreads = 1; // pages from disk have no shared memory
  ort.env.wasm.wasmBinary = await bytesOf("wasm");
  const session = async (name) => ort.InferenceSession.create(await bytesOf(name));
  const plain = await session("plain");
  const ap2 = await session("ap2");
  const ap2Posterior = await session("ap2_posterior");
  const joint = await session("joint");
  const jointPosterior = await session("joint_posterior");
  const tensor = (data, ...shape) => new ort.Tensor("float32", data, shape);
  const both = ({ mean, variance }) => ({
    input: tensor(mean, 1, length),
    input_variance: tensor(variance, 1, length),
  });

  return {
    /** The plain network on some inputs, one after the other in `input`: their scores and probabilities. */
    async plain(input) {
      const found = await plain.run({ input: tensor(input, input.length / length, length) });
      return { mean: found.scores.data, probabilities: exp(found.log_probabilities) };
    },

    /** AP2: means and variances of the scores, in one pass that treats units as independent. */
    ap2: (input) => ap2.run(both(input)),

    /** Joint AP2: the covariance of the scores too, by one backward pass for each. */
    joint: (input) => joint.run(both(input)),

    /** The numbers of AP2, with probabilities. */
    async ap2Numbers({ loc, variance }) {
      const { logits } = await ap2Posterior.run({ input: loc, input_variance: variance });
      return { mean: loc.data, variance: variance.data, probabilities: exp(logits) };
    },

    /** The numbers of joint AP2, with probabilities. */
    async jointNumbers({ loc, variance, covariance }) {
      const { log_probabilities } = await jointPosterior.run({ loc, covariance });
      return { mean: loc.data, variance: variance.data, probabilities: exp(log_probabilities) };
    },
  };
}

const exp = (logarithms) => logarithms.data.map(Math.exp);
