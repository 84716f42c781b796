"""Random programs of views and in-place operations: a value must do as torch's own tensors do.

The truth is a pair of plain tensors, the means and the variances, of which torch itself makes the views. An in-place
operation on the pair computes its result out of place, on copies, and writes it back into both. So only the memory
differs, which views share it and what is written where, and all results must agree.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import MissingRule, Normal

LENGTH = 12
"""The largest number of steps in a program."""


@dataclass
class Pair:
    """A mean and a variance that are plain tensors."""

    loc: Tensor
    variance: Tensor

    def value(self) -> Normal:
        """Return a value that shares no memory with the pair."""
        return Normal(self.loc.clone(), self.variance.clone())

    def viewed(self, view: Callable[[Any], Any]) -> "Pair":
        """Return a view of both."""
        return Pair(view(self.loc), view(self.variance))

    def write(self, value: Any) -> None:
        """Write a value, a pair or a number into both."""
        if isinstance(value, Normal | Pair):
            self.loc.copy_(value.loc)
            self.variance.copy_(value.variance)
        else:
            self.loc.fill_(value)
            self.variance.zero_()


@dataclass(frozen=True)
class Step:
    """A step on one of the tensors of a program: a view, a copy, or a write."""

    name: str
    on_value: Callable[[Any], Any]
    on_pair: Callable[[Pair], Pair | None]


def trial(random: Random, device: str = "cpu") -> Counter[str]:
    """Run one random program, of this module or of `tests.dispatch.programs`, which has a reference of its own."""
    if random.random() < 0.5 and device == "cpu" and importlib.util.find_spec("tests.dispatch.programs"):
        check = importlib.import_module("tests.dispatch.programs").check
        program = check(random.getrandbits(31), Normal, plain=random.random() < 0.3, length=LENGTH)
        return Counter({"programs": 1, "steps": len(program.steps)})
    return _own(random, device)


def _own(random: Random, device: str) -> Counter[str]:
    """Run one random program on a value and on a pair."""
    shape = tuple(random.randint(1, 4) for _ in range(random.randint(1, 4)))
    loc = torch.randn(shape, device=device, dtype=torch.float64)
    variance = torch.rand(shape, device=device, dtype=torch.float64)
    order = random.sample(range(len(shape)), len(shape))
    layout = random.choice(("contiguous", "permuted mean", "permuted"))
    if layout != "contiguous":
        loc = _laid_out(loc, order)
    alike = _laid_out(variance, order) if layout != "contiguous" else variance.clone()
    pairs = [Pair(loc.clone(), alike)]  # what is a view, and what a copy, follows from the mean
    values = [Normal(loc, alike.clone() if layout == "permuted" else variance)]
    program = [f"x0 = a value of shape {shape}, {layout} {order}"]
    for _ in range(random.randint(1, LENGTH)):
        which = random.randrange(len(values))
        step = _step(random, pairs[which])
        if step is None:
            continue
        program.append(f"{step.name} of x{which}")
        try:
            made = step.on_value(values[which])
        except MissingRule:  # refused, and not wrong
            return Counter({"programs": 1, "refused": 1})
        wanted = step.on_pair(pairs[which])
        if wanted is not None:
            program[-1] = f"x{len(values)} = {program[-1]}"
            values.append(made)
            pairs.append(wanted)
        _compare(values, pairs, program)
    return Counter({"programs": 1, "steps": len(program) - 1})


def _laid_out(tensor: Tensor, order: list[int]) -> Tensor:
    """Return a copy whose dimensions lie in memory in another order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _compare(values: list[Normal], pairs: list[Pair], program: list[str]) -> None:
    listing = "; ".join(program)
    for i, (value, pair) in enumerate(zip(values, pairs, strict=True)):
        assert value.shape == pair.loc.shape, f"the shape of x{i} is {tuple(value.shape)} after: {listing}"
        for name in ("loc", "variance"):
            found, wanted = getattr(value, name), getattr(pair, name)
            off = (found - wanted).abs() > 1e-12 + 1e-9 * wanted.abs()
            assert not bool(off.any()), (
                f"the {name} of x{i} is {found[off][0].item():.6g} instead of {wanted[off][0].item():.6g} in "
                f"{int(off.sum())} of {off.numel()} elements after: {listing}"
            )


# Steps


def _step(random: Random, pair: Pair) -> Step | None:
    makers = (_view, _view, _in_place, _in_place, _setting, _copying, _out_of_place)
    return random.choice(makers)(random, pair)


def _view(random: Random, pair: Pair) -> Step | None:
    """A view, among those that this shape has."""
    shape, dims = pair.loc.shape, pair.loc.ndim
    views: dict[str, Callable[[Any], Any]] = {"unsqueeze(0)": lambda x: x.unsqueeze(0), "x[...]": lambda x: x[...]}
    if dims:
        dim = random.randrange(dims)
        other, place = random.randrange(dims), random.randrange(shape[dim])
        order = random.sample(range(dims), dims)
        start = random.randrange(shape[0])
        views |= {
            f"x[{place % shape[0]}]": lambda x: x[place % shape[0]],
            f"x[{start}:]": lambda x: x[start:],
            "x[::2]": lambda x: x[::2],
            "x[..., -1:]": lambda x: x[..., -1:],
            "x[None]": lambda x: x[None],
            f"select({dim}, {place})": lambda x: x.select(dim, place),
            f"narrow({dim}, {place}, 1)": lambda x: x.narrow(dim, place, 1),
            f"transpose({dim}, {other})": lambda x: x.transpose(dim, other),
            f"permute{tuple(order)}": lambda x: x.permute(order),
            f"movedim({dim}, {other})": lambda x: x.movedim(dim, other),
            f"chunk(2, {dim})[0]": lambda x: x.chunk(2, dim)[0],
            f"unbind({dim})[{place}]": lambda x: x.unbind(dim)[place],
            f"split(1, {dim})[{place}]": lambda x: x.split(1, dim)[place],
            f"squeeze({dim})": lambda x: x.squeeze(dim),
            "squeeze()": lambda x: x.squeeze(),
            "detach()": lambda x: x.detach(),
        }
        if dims > 1:
            views["diagonal()"] = lambda x: x.diagonal()
            views["mT"] = lambda x: x.mT
        if pair.loc.is_contiguous():
            views["view(-1)"] = lambda x: x.view(-1)
            views["flatten()"] = lambda x: x.flatten()
            views["reshape(-1)"] = lambda x: x.reshape(-1)
    name = random.choice(list(views))
    return Step(name, views[name], lambda pair: pair.viewed(views[name]))


def _written(name: str, in_place: Callable[[Any], Any], result: Callable[[Normal], Any]) -> Step:
    return Step(name, in_place, lambda pair: pair.write(result(pair.value())))


def _in_place(random: Random, pair: Pair) -> Step:
    """An operation that writes into its argument."""
    c = round(random.uniform(-2, 2), 2)
    steps = {
        f"mul_({c})": (lambda x: x.mul_(c), lambda x: x * c),
        f"add_({c})": (lambda x: x.add_(c), lambda x: x + c),
        f"sub_({c})": (lambda x: x.sub_(c), lambda x: x - c),
        "div_(3)": (lambda x: x.div_(3.0), lambda x: x / 3.0),
        "neg_()": (lambda x: x.neg_(), lambda x: -x),
        "relu_()": (lambda x: x.relu_(), torch.relu),
        "F.relu_": (F.relu_, torch.relu),
        "F.relu(inplace)": (lambda x: F.relu(x, inplace=True), torch.relu),
        "F.elu(inplace)": (lambda x: F.elu(x, inplace=True), F.elu),
        "tanh_()": (lambda x: x.tanh_(), torch.tanh),
        "sigmoid_()": (lambda x: x.sigmoid_(), torch.sigmoid),
        "clamp_(-1, 1)": (lambda x: x.clamp_(-1.0, 1.0), lambda x: x.clamp(-1.0, 1.0)),
        "square_()": (lambda x: x.square_(), torch.square),
    }
    name = random.choice(list(steps))
    return _written(name, *steps[name])


def _setting(random: Random, pair: Pair) -> Step | None:
    """An assignment to a part."""
    if not pair.loc.ndim:
        return None
    c, first = round(random.uniform(-2, 2), 2), random.randrange(pair.loc.shape[0])
    last = random.randrange(pair.loc.shape[-1])
    parts: dict[str, Any] = {
        f"x[{first}]": first,
        f"x[..., {last}]": (..., last),
        f"x[{first}:]": slice(first, None),
        "x[...]": ...,
    }
    name = random.choice(list(parts))
    part = parts[name]
    kind = random.choice(("number", "value", "augmented", "masked"))
    if kind == "masked":
        mask = pair.loc > c
        filled = lambda x: x.masked_fill(mask, c)  # noqa: E731
        return _written(f"masked_fill_(x > {c}, {c})", lambda x: x.masked_fill_(mask, c), filled)
    if kind == "number":
        return Step(f"{name} = {c}", lambda x: x.__setitem__(part, c), lambda pair: _part(pair, part).write(c))
    if kind == "value":
        new = Pair(torch.randn_like(pair.loc[part]), torch.rand_like(pair.loc[part]))
        return Step(
            f"{name} = a value", lambda x: x.__setitem__(part, new.value()), lambda pair: _part(pair, part).write(new)
        )

    def augmented(x: Any) -> None:
        x[part] *= c

    def augmented_pair(pair: Pair) -> None:
        found = _part(pair, part)
        found.write(found.value() * c)

    return Step(f"{name} *= {c}", augmented, augmented_pair)


def _part(pair: Pair, part: Any) -> Pair:
    return Pair(pair.loc[part], pair.variance[part])


def _copying(random: Random, pair: Pair) -> Step:
    """A value written over another one, or added to it."""
    new = Pair(torch.randn_like(pair.loc), torch.rand_like(pair.loc))
    if random.random() < 0.5:
        return Step("copy_(a value)", lambda x: x.copy_(new.value()), lambda pair: pair.write(new))
    return _written("add_(a value)", lambda x: x.add_(new.value()), lambda x: x + new.value())


def _out_of_place(random: Random, pair: Pair) -> Step:
    """A new value, which shares no memory with the old one."""
    steps: dict[str, Callable[[Any], Any]] = {
        "clone()": lambda x: x.clone(),
        "x * 2": lambda x: x * 2.0,
        "relu": torch.relu,
        "x + 1": lambda x: x + 1.0,
    }
    if not pair.loc.is_contiguous():
        steps["contiguous()"] = lambda x: x.contiguous()
    name = random.choice(list(steps))

    def made(pair: Pair) -> Pair:
        result = steps[name](pair.value())
        return Pair(result.loc.clone(), result.variance.clone())

    return Step(name, steps[name], made)
