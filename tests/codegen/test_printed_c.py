"""What is printed as C computes what torch computes, special numbers among them."""

import math
import platform

import pytest
import torch
import torch.nn.functional as F

from momentprop.codegen import c_library
from momentprop.codegen.c_language import C
from tests.codegen.conftest import needs_compiler, recorded

INF = math.inf
X = [-INF, -200.0, -3.5, -1.0, -0.5, -1e-30, -0.0, 0.0, 1e-30, 0.3, 1.0, 2.0, 7.25, 200.0, INF, math.nan]
FUNCTIONS = {
    **{
        op: lambda x, y, op=op: getattr(torch, op)(x)
        for op in (
            "abs neg exp exp2 log log1p expm1 sqrt rsqrt reciprocal tanh sigmoid erf erfc sign sgn relu atan "
            "isinf isnan logical_not"
        ).split()
    },
    **{
        op: lambda x, y, op=op: getattr(torch, op)(x, y)
        for op in "add sub mul div minimum maximum gt lt ge le eq ne pow logical_and logical_or".split()
    },
    "sin": lambda x, y: x.clamp(-20, 20).sin(),
    "cos": lambda x, y: x.clamp(-20, 20).cos(),
    "square": lambda x, y: x**2,
    "cube": lambda x, y: x**3,
    "root": lambda x, y: x**0.5,
    "rsub": lambda x, y: 1 - x,
    "alternative": lambda x, y: torch.where((x > y) & ~(y == 0) | (x < -1), x, y),
    "clamp": lambda x, y: x.clamp(-1, 2),
    "clamp_min": lambda x, y: x.clamp(min=-1),
    "clamp_max": lambda x, y: x.clamp(max=2),
    "nan_to_num": lambda x, y: x.nan_to_num(3.0, 5.0, -7.0),
    "nan_to_largest": lambda x, y: x.nan_to_num(),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.1),
    "softplus": lambda x, y: F.softplus(x, 2.0, 10.0),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 4.0),
    "in float64": lambda x, y: (x.double() + 1e-12).to(x.dtype),
    "pullback of relu": lambda x, y: _gradient(torch.relu, x, y),
    "pullback of tanh": lambda x, y: _gradient(torch.tanh, x, y),
    "pullback of sigmoid": lambda x, y: _gradient(torch.sigmoid, x, y),
    "pullback of softplus": lambda x, y: _gradient(F.softplus, x, y),
    "pullback of clamp": lambda x, y: _gradient(lambda x: x.clamp(-1, 2), x, y),
}


def _gradient(function, x, y):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x, y)[0]


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_computes_what_torch_computes(dtype, folder):
    """All in one library, whose functions run over every pair of numbers."""
    x, y = (part.flatten() for part in torch.meshgrid(*[torch.tensor(X, dtype=dtype)] * 2, indexing="ij"))
    formulas = [recorded(lambda x, y, f=f: [f(x, y)], 2, dtype) for f in FUNCTIONS.values()]
    source = c_library.source_of(formulas)
    place = c_library.place_of(source)
    c_library.build(source, place)
    for name, call, function in zip(FUNCTIONS, c_library.load(place, formulas), FUNCTIONS.values(), strict=True):
        wanted = function(x, y).to(dtype)
        torch.testing.assert_close(call(x, y)[0], wanted, equal_nan=True, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize(
    ("value", "dtype", "written"),
    [
        (0.5, torch.float32, "(0x1.0000000000000p-1f)"),
        (0.1, torch.float32, "(0x1.99999a0000000p-4f)"),
        (0.1, torch.float64, "(0x1.999999999999ap-4)"),
        (1e300, torch.float32, "INFINITY"),
        (-INF, torch.float64, "(-INFINITY)"),
        (math.nan, torch.float32, "NAN"),
        (True, torch.bool, "1"),
    ],
)
def test_constants_are_written_to_the_last_digit(value, dtype, written):
    assert C().number(value, dtype) == written


@needs_compiler
def test_sums_along_rows_are_taken_row_by_row(folder):
    def softmax(x):
        shifted = (x - x.amax(-1, keepdim=True)).exp()
        return [shifted / shifted.sum(-1, keepdim=True), x - x.mean(-1, keepdim=True)]

    formulas = [recorded(softmax, row=7)]
    source = c_library.source_of(formulas)
    c_library.build(source, c_library.place_of(source))
    (call,) = c_library.load(c_library.place_of(source), formulas)
    x = torch.randn(5, 7, generator=torch.manual_seed(0))
    torch.testing.assert_close(call(x), softmax(x))


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors compute with subnormal numbers at once")
def test_no_subnormal_number_is_stored_and_those_of_the_caller_stay(folder):
    """A convolution that reads them takes ten times as long."""
    formulas = [recorded(lambda x: [x * 1e-20])]
    source = c_library.source_of(formulas)
    c_library.build(source, c_library.place_of(source))
    (call,) = c_library.load(c_library.place_of(source), formulas)
    x = torch.full((100_000,), 1e-20)
    assert x[0].item() * 1e-20 > 0
    assert call(x)[0].count_nonzero() == 0
    assert (x * 1e-20).count_nonzero() == x.numel()
