"""The fuzzer itself: it covers every rule, repeats its trials, and reports; a few trials of each kind pass."""

import re
from random import Random

import pytest
import torch

from momentprop import Kind, Normal, dispatch
from tests.examples import REFUSED
from tests.fuzz import elementwise, interrupts, mixing, models, programs, trials
from tests.fuzz.__main__ import SHARES, main, table
from tests.fuzz.functions import FAMILIES, Function

CONVERSIONS = {"bfloat16", "cuda", "half", "float", "to", "type", "type_as"}
OF_DATA = {"_nested_tensor_from_mask_left_aligned", "_pack_padded_sequence", "_pad_packed_sequence", "masked_select"}
GROUPED = {"_grouped_mm"}  # which takes few shapes
PLAIN = {"alias", "is_signed", "rand_like", "randint_like", "randn_like", "requires_grad_"}


def test_every_rule_is_tried():
    ops = {row.op: row.kind for row in dispatch.table() if issubclass(Normal, row.on)}
    elements = {op for op, kind in ops.items() if kind is Kind.ELEMENTWISE}
    assert elements - {"log_sigmoid"} == {family.op for family in FAMILIES}  # another name of `logsigmoid`
    tried = elements | set(mixing.OPERATIONS) | CONVERSIONS | OF_DATA | GROUPED | PLAIN | REFUSED
    assert sorted(set(ops) - tried) == [] or sorted(set(ops) - tried) == ["linear_cross_entropy"]  # before torch 2.13


def test_every_kind_has_its_share_of_the_time():
    assert set(SHARES) == set(trials.KINDS)
    assert sum(SHARES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", elementwise.DTYPES, ids=str)
def test_elementwise_inputs_reach_sixteen_decades_with_zeros_and_infinities(dtype):
    sigmoid = next(family for family in FAMILIES if family.op == "sigmoid").draw(Random(0))
    mean, variance = elementwise.draw(sigmoid, dtype, 2**14, Random(1), "cpu")
    assert mean.dtype == variance.dtype == dtype
    assert torch.isinf(mean).any()
    assert (mean == 0).any()
    assert (variance == 0).any()
    sizes = mean[torch.isfinite(mean) & (mean != 0)].abs().double()
    assert sizes.max() / sizes.min() > (1e11 if dtype == torch.float16 else 1e15)


# Every check finds what it looks for


def _broken(**changes):
    """A rectifier whose result is changed."""

    def call(x):
        y = torch.relu(x)
        return y.of(*(changes.get(name, lambda z: z)(getattr(y, name)) for name in y.components)) if isinstance(
            x, Normal
        ) else y  # fmt: skip

    return Function("broken", call, (0.0,), 1.0, bend=1, error=5e-6)


def _overflowing(z):
    return z if z.dtype == torch.float64 else torch.where(z > 1, torch.inf, z)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loc": lambda z: z * torch.nan}, "the mean is NaN"),
        ({"variance": lambda z: z * torch.nan}, "the variance is NaN"),
        ({"variance": lambda z: -z}, "the variance is negative"),
        ({"variance": lambda z: z + 1.0}, "without variance, the variance is not zero"),
        ({"loc": lambda z: z + 1.0}, "without variance, the mean is not the plain function"),
        ({"variance": lambda z: _overflowing(z)}, "it is infinite, but the truth is not"),
        ({"variance": lambda z: z * 1.1}, "the variance exceeds Poincaré's bound"),
        ({"loc": lambda z: torch.where(z > 1e3, z * 0.999, z)}, "the mean is not|Jensen's inequality does not hold"),
    ],
)
def test_a_wrong_rule_is_found(changes, message):
    broken = _broken(**changes)
    inputs = elementwise.draw(broken, torch.float32, 2**12, Random(0), "cpu")
    inputs = [tensor[torch.isfinite(inputs.mean)] for tensor in inputs]
    with pytest.raises(AssertionError, match=message):
        elementwise.check_moments(broken, *inputs)


def test_a_rule_that_is_wrong_in_float32_only_is_found():
    def call(x):
        y = torch.relu(x)
        return y.of(y.loc, y.variance * 1.01) if isinstance(x, Normal) and x.dtype == torch.float32 else y

    mean, variance = torch.randn(100), torch.rand(100)
    with pytest.raises(AssertionError, match="the deviation differs from that in float64"):
        elementwise.check_precision(Function("broken", call, error=5e-6), mean, variance)


def test_a_derivative_that_is_not_finite_is_found():
    def call(x):
        return x.of(x.loc, x.variance.sqrt() ** 2) if isinstance(x, Normal) else x

    with pytest.raises(AssertionError, match="the derivative of the variance by the variance is not finite"):
        elementwise.check_gradients(Function("broken", call), torch.zeros(3), torch.zeros(3))


# A few trials of each kind


@pytest.mark.parametrize("number", range(12))
def test_elementwise_trials_pass(number):
    counts = elementwise.trial(Random(f"smoke/{number}"), count=2**12)
    assert counts["inputs"] >= 2**8


@pytest.mark.parametrize("part", range(4))
def test_mixing_trials_pass(part):
    for number in range(25):
        torch.manual_seed(number)
        assert mixing.trial(Random(f"smoke/{part}/{number}"))["calls"] == 1


def test_programs_pass():
    for number in range(100):
        torch.manual_seed(number)
        assert programs.trial(Random(f"smoke/{number}"))["programs"] == 1


def test_models_pass():
    for number in range(6):
        torch.manual_seed(number)
        assert models.trial(Random(f"smoke/{number}"))["models"] == 1


# The command


def test_the_command_prints_a_table_and_the_seed(capsys):
    assert main(["--only", "models", "--seed", "5", "--minutes", "0.01", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "seed 5" in printed
    assert re.search(r"\| models \| [\d,]+ \| .*models.* \| 0 \|", printed)


def test_several_processes_share_the_trials(capsys):
    assert main(["--only", "models", "--seed", "5", "--minutes", "0.0001", "--processes", "2"]) == 0
    assert re.search(r"\| models \| [\d,]+ \|", capsys.readouterr().out)


def test_a_failure_is_reported_with_the_command_that_repeats_it(capsys, monkeypatch):
    def fails(random, device):
        assert random.random() < 0.5, f"a number {random.random()}"
        return trials.Counter({"programs": 1})

    monkeypatch.setitem(trials.KINDS, "programs", fails)
    assert main(["--only", "programs", "--seed", "5", "--minutes", "0.001", "--processes", "1"]) == 1
    printed = capsys.readouterr().out
    command = re.search(r"repeat: python -m tests.fuzz (--only programs --seed 5 --trial \d+)", printed)[1]
    message = re.search(r"a number [\d.]+", printed)[0]
    assert main(command.split()) == 1
    assert message in capsys.readouterr().out


def test_too_few_inputs_are_a_failure(capsys):
    assert main(["--only", "elementwise", "--seed", "5", "--minutes", "0", "--inputs", "1e9", "--processes", "1"]) == 1
    assert "only 0 of 1,000,000,000 elementwise inputs were tried" in capsys.readouterr().out


def test_a_trial_needs_its_kind_and_its_seed(capsys):
    with pytest.raises(SystemExit):
        main(["--trial", "3"])
    assert "--trial needs --seed and one --only" in capsys.readouterr().err


def test_the_table_shows_what_was_tried():
    counts = {"programs": trials.Counter(trials=3, programs=3, steps=1200, failures=1, seconds=2)}
    assert "| programs | 3 | 3 programs, 1,200 steps | 1 | 2 |" in table(counts)


def test_interrupts_strike_where_they_should():
    total = interrupts.lines_of("propagate, ap2")
    assert total > 1000
    assert interrupts.interrupted("propagate, ap2", 1)["interrupts"] == 1
