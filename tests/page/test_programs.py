"""The exported programs of the page say in onnxruntime what `propagate` says of the untouched network."""

import logging
from collections.abc import Iterator

import pytest
import torch
from page.networks import JointPosterior, Reader
from torch import Tensor

from momentprop.kernels.joint_posterior import posterior
from tests.page.truth import CASES, Numbers, truth

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def reader() -> Reader:
    pytest.importorskip("safetensors")
    return Reader()


@pytest.fixture(scope="module")
def sessions(reader, tmp_path_factory) -> Iterator[dict]:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    logging.disable(logging.WARNING)  # the exporter reports every package that is not installed
    paths = reader.export(tmp_path_factory.mktemp("programs"))
    logging.disable(logging.NOTSET)
    return {path.stem: runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in paths}


def _run(session, *given: Tensor) -> dict[str, Tensor]:
    inputs = [entry.name for entry in session.get_inputs()]
    outputs = [entry.name for entry in session.get_outputs()]
    found = session.run(None, dict(zip(inputs, (x.numpy() for x in given), strict=True)))
    return dict(zip(outputs, map(torch.from_numpy, found), strict=True))


def _said(sessions, reader: Reader, digit: int, noise: float, missing: float, dropout: float) -> Numbers:
    z = reader.with_factors(reader.input(reader.images[digit], noise, missing), dropout)
    plain = _run(sessions["plain"], z.loc)
    ap2, joint = (_run(sessions[name], z.loc, z.variance) for name in ("ap2", "joint"))
    ap2_log = _run(sessions["ap2_posterior"], ap2["loc"], ap2["variance"])["logits"]
    joint_log = _run(sessions["joint_posterior"], joint["loc"], joint["covariance"])["log_probabilities"]
    return {
        "plain": {"mean": plain["scores"], "probabilities": plain["log_probabilities"].exp()},
        "ap2": {"mean": ap2["loc"], "variance": ap2["variance"], "probabilities": ap2_log.exp()},
        "joint": {
            "mean": joint["loc"],
            "variance": joint["variance"],
            "probabilities": joint_log.exp(),
            "covariance": joint["covariance"],
        },
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_say_what_python_says(sessions, reader, case):
    said, wanted = _said(sessions, reader, **case), truth(reader, **case)
    by_the_library = wanted["joint"].pop("probabilities")
    torch.testing.assert_close(said["joint"].pop("probabilities"), by_the_library, rtol=0, atol=1e-4)
    torch.testing.assert_close(said, wanted, **CLOSE)


def test_the_plain_program_takes_many_draws_at_once(sessions, reader):
    draws = reader.with_factors(reader.input(reader.images[0], 0.0, 0.0), 0.0).loc.repeat(5, 1)
    draws[1:] += torch.randn(4, draws.shape[1], generator=torch.Generator().manual_seed(0))
    found = _run(sessions["plain"], draws)["scores"]
    torch.testing.assert_close(found[3:4], _run(sessions["plain"], draws[3:4])["scores"], **CLOSE)
    assert (found - found[0]).abs().amax(1)[1:].min() > 1


def test_the_posterior_holds_for_singular_covariances():
    torch.manual_seed(0)
    loc, factor = 2 * torch.randn(1, 10), torch.randn(10, 3)
    covariance = (factor @ factor.mT).unsqueeze(0)
    found = JointPosterior(10)(loc, covariance).exp()
    torch.testing.assert_close(found, posterior(loc, covariance), rtol=0, atol=1e-4)
    certain = JointPosterior(10)(loc, torch.zeros_like(covariance)).exp()
    torch.testing.assert_close(certain, loc.softmax(-1), rtol=1e-5, atol=1e-7)
