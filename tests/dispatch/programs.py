r"""Random programs of views and in-place operations, and what they must give.

`random_program(seed)` is a list of steps on numbered slots, the same for tensors and values. `Reference` runs it with a
memory of its own: a plain run tells which slots lie in which memory; the reference keeps one value for every such
memory, and reads and writes it by index, so that it shares none of the library's ways to handle views.

    for seed in range(1000):
        check(seed, Normal)
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import momentprop
from momentprop.values import Certain, Logistic, Value

Layout = Callable[[Tensor], Tensor]

LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda t: t.clone(),
    "channels_last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "sliced": lambda t: torch.stack([t, t], -1)[..., 0],
    "cut": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
}
"""How a tensor lies in memory."""

VARIANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "alike": lambda loc: torch.empty_like(loc).copy_(loc.abs().mul(0.3).add(0.1)),
    "contiguous": lambda loc: loc.abs().mul(0.3).add(0.1).contiguous(),
    "transposed": lambda loc: LAYOUTS["transposed"](loc.abs().mul(0.3).add(0.1)),
    "expanded": lambda loc: torch.tensor(0.3, dtype=loc.dtype).expand(loc.shape),
    "partly expanded": lambda loc: torch.full(loc.shape[-1:], 0.2, dtype=loc.dtype).expand(loc.shape),
    "the mean itself": lambda loc: loc,
    "the mean detached": lambda loc: loc.detach(),
}
"""The variance of a value whose mean is positive."""


@dataclass(frozen=True)
class Step:
    """One statement: it takes a slot, and makes another one, or writes to it, or changes its shape."""

    text: str
    kind: str  # "view", "new", "write", "shape"
    slot: int
    apply: Callable[..., Any]
    other: Any = None  # the shape of a new random value, or the number of a slot, that is the second operand


@dataclass
class Program:
    """A list of steps, and how its input lies in memory."""

    seed: int
    layout: str
    variance: str
    size: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    operands: dict[int, Tensor] = field(default_factory=dict)  # drawn when the program is made

    def __str__(self) -> str:
        head = f"seed {self.seed}, {self.layout} {self.size}, variance {self.variance}"
        return "\n".join([head, *(f"  {step.kind} of slot {step.slot}: {step.text}" for step in self.steps)])

    def input(self) -> Tensor:
        """The mean of the input: positive, for variances that are the mean itself."""
        generator = torch.Generator().manual_seed(self.seed)
        return LAYOUTS[self.layout](torch.rand(self.size, generator=generator, dtype=torch.float64) + 0.2)

    def operand(self, number: int) -> Tensor:
        """The mean of the random value that a step takes as its second operand."""
        if number not in self.operands:
            generator = torch.Generator().manual_seed(1000 * self.seed + number)
            self.operands[number] = torch.randn(self.steps[number].other, generator=generator, dtype=torch.float64)
        return self.operands[number].clone()

    def run(self, x: Any, made: Callable[[Tensor], Any]) -> list[Any]:
        """Run all steps on an input; `made` makes the second operands from their means."""
        slots = [x]
        for number, step in enumerate(self.steps):
            _step(slots, step, self._second(slots, number, made))
        return slots

    def _second(self, slots: list[Any], number: int, made: Callable[[Tensor], Any]) -> tuple[Any, ...]:
        other = self.steps[number].other
        if other is None:
            return ()
        return (slots[other],) if isinstance(other, int) else (made(self.operand(number)),)


def _step(slots: list[Any], step: Step, second: tuple[Any, ...]) -> None:
    result = step.apply(slots[step.slot], *second)
    if step.kind in ("view", "new"):
        slots.append(result)


def _places(tensor: Tensor) -> Tensor:
    """The places of the elements of a tensor in its memory."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.arange(count).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _may_write(tensor: Tensor) -> bool:
    return _places(tensor).unique().numel() == tensor.numel()


def random_program(seed: int, *, length: int = 8, plain: bool = False) -> Program:
    """A random program. If `plain`, its input is a plain tensor, into which values are written."""
    draw = random.Random(seed)
    size = draw.choice([(2, 3, 4, 2), (2, 4, 3), (4, 6), (3, 2, 2, 3), (6,)])
    layouts = [name for name in LAYOUTS if len(size) > 1 or name not in ("channels_last", "transposed")]
    program = Program(seed, draw.choice(layouts), draw.choice(list(VARIANCES)), size)
    slots: list[Any] = [program.input()]
    while len(program.steps) < length:
        slot = draw.randrange(len(slots))
        kind = draw.choice(["view", "view", "view", "write", "write", "new", "shape"])
        if kind == "write" and plain and len(program.steps) == 0:
            continue
        step = _KINDS[kind](draw, slot, slots)
        if step is None:
            continue
        program.steps.append(step)
        _step(slots, step, program._second(slots, len(program.steps) - 1, lambda mean: mean))
    return program


def _view(draw: random.Random, slot: int, slots: list[Tensor]) -> Step | None:
    x = slots[slot]
    if x.ndim == 0 or x.numel() == 0:
        return Step("view(-1)", "view", slot, lambda x: x.view(-1)) if x.numel() else None
    d, e = draw.randrange(x.ndim), draw.randrange(x.ndim)
    n = x.shape[d]
    half = next((k for k in (2, 3) if n % k == 0), 1)
    order = draw.sample(range(x.ndim), x.ndim)
    start = draw.randrange(n)
    shapes = [(-1,), (x.shape[0], -1), (*x.shape[:-1], 1, x.shape[-1])]
    shape = draw.choice(shapes)
    choices: list[tuple[str, Callable[..., Any]]] = [
        (f"transpose({d}, {e})", lambda x: x.transpose(d, e)),
        (f"permute({order})", lambda x: x.permute(order)),
        (f"movedim({d}, {e})", lambda x: torch.movedim(x, d, e)),
        (f"reshape({shape})", lambda x: x.reshape(shape)),
        ("flatten()", lambda x: torch.flatten(x)),
        (f"flatten({d})", lambda x: x.flatten(d)),
        ("ravel()", lambda x: x.ravel()),
        ("contiguous()", lambda x: x.contiguous()),
        ("to(float64)", lambda x: x.to(torch.float64)),
        ("double()", lambda x: x.double()),
        (f"narrow({d}, {start}, ...)", lambda x: x.narrow(d, start, x.shape[d] - start)),
        (f"select({d}, {start})", lambda x: x.select(d, start)),
        (f"[{start % x.shape[0]}]", lambda x: x[start % x.shape[0]]),
        ("[..., ::2]", lambda x: x[..., ::2]),
        (f"[:, None] by unsqueeze({d})", lambda x: x.unsqueeze(d)),
        ("squeeze()", lambda x: x.squeeze()),
        (f"chunk(2, {d})[0]", lambda x: x.chunk(2, d)[0]),
        (f"split(1, {d})[-1]", lambda x: x.split(1, d)[-1]),
        (f"unbind({d})[0]", lambda x: x.unbind(d)[0]),
        (f"unflatten({d}, (-1, {half}))", lambda x: x.unflatten(d, (-1, half))),
        (f"unfold({d}, {half}, {half})", lambda x: x.unfold(d, half, half)),
        ("expand(2, ...)", lambda x: x.expand(2, *x.shape)),
        ("detach()", lambda x: x.detach()),
        ("[[0]]", lambda x: x[[0]]),
    ]
    if x.ndim > 1 and d != e:
        choices.append((f"diagonal(0, {d}, {e})", lambda x: x.diagonal(0, d, e)))
    if x.ndim == 2:
        choices.append(("t()", lambda x: x.t()))
    text, apply = draw.choice(choices)
    return Step(text, "view", slot, apply)


def _write(draw: random.Random, slot: int, slots: list[Tensor]) -> Step | None:
    x = slots[slot]
    if not _may_write(x) or x.numel() == 0:
        return None
    number = draw.choice([-1.5, 0.5, 2.0])
    like = tuple(x.shape)
    choices: list[tuple[str, Callable[..., Any], Any]] = [
        (f"mul_({number})", lambda x: x.mul_(number), None),
        (f"add_({number})", lambda x: torch.Tensor.add_(x, number) if isinstance(x, Tensor) else x.add_(number), None),
        ("relu_()", lambda x: torch.relu_(x), None),
        ("relu(inplace=True)", lambda x: torch.nn.functional.relu(x, inplace=True), None),
        ("neg_()", lambda x: x.neg_(), None),
        ("zero_()", lambda x: x.zero_(), None),
        (f"fill_({number})", lambda x: x.fill_(number), None),
        ("add_(value)", lambda x, y: x.add_(y), like),
        ("+= transposed value", lambda x, y: x.__iadd__(y.permute(tuple(reversed(range(y.ndim))))), like[::-1]),
        ("sub_(value, alpha=2)", lambda x, y: x.sub_(y, alpha=2.0), like[-1:]),
        ("copy_(value)", lambda x, y: x.copy_(y), like),
        ("[...] = value", lambda x, y: x.__setitem__(..., y), like[-1:]),
        ("add(value, out)", lambda x, y: torch.add(y, 1.0, out=x), like),
    ]
    if x.ndim:
        row, mask = draw.randrange(x.shape[0]), torch.arange(x.shape[-1]) % 2 == 0
        choices += [
            (f"[{row}] = value", lambda x, y: x.__setitem__(row, y), like[1:]),
            (f"[{row}] *= {number}", lambda x: x.__setitem__(row, x[row].__imul__(number)), None),
            (f"masked_fill_(mask, {number})", lambda x: x.masked_fill_(mask, number), None),
            ("index_copy_", lambda x, y: x.index_copy_(0, torch.tensor([row]), y), (1, *like[1:])),
        ]
        same = [other for other, each in enumerate(slots) if each.shape == x.shape and _apart(each, x)]
        if same:
            other = draw.choice(same)
            choices += [(f"copy_(slot {other})", lambda x, y: x.copy_(y), other)] * 3
    text, apply, other = draw.choice(choices)
    return Step(text, "write", slot, apply, other)


def _apart(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def _new(draw: random.Random, slot: int, slots: list[Tensor]) -> Step:
    choices: list[tuple[str, Callable[..., Any]]] = [
        ("* 0.7", lambda x: x * 0.7),
        ("relu()", torch.relu),
        ("clone()", lambda x: x.clone()),
        ("+ 1", lambda x: x + 1.0),
        ("stack", lambda x: torch.stack([x, x * 0.0])),
    ]
    text, apply = draw.choice(choices)
    return Step(text, "new", slot, apply)


def _shape(draw: random.Random, slot: int, slots: list[Tensor]) -> Step | None:
    x = slots[slot]
    if x.ndim == 0:
        return None
    d, e = draw.randrange(x.ndim), draw.randrange(x.ndim)
    choices: list[tuple[str, Callable[..., Any]]] = [
        (f"unsqueeze_({d})", lambda x: x.unsqueeze_(d)),
        ("squeeze_()", lambda x: x.squeeze_()),
        (f"transpose_({d}, {e})", lambda x: x.transpose_(d, e)),
        (f"swapaxes_({d}, {e})", lambda x: x.swapaxes_(d, e)),
        (f"swapdims_({d}, {e})", lambda x: x.swapdims_(d, e)),
    ]
    if x.ndim <= 2:
        choices.append(("t_()", lambda x: x.t_()))
    text, apply = draw.choice(choices)
    return Step(text, "shape", slot, apply)


_KINDS: dict[str, Callable[[random.Random, int, list[Tensor]], Step | None]] = {
    "view": _view,
    "write": _write,
    "new": _new,
    "shape": _shape,
}


class Reference:
    """Runs a program on values that never share memory: one value holds each memory, and slots are places in it."""

    def __init__(self, program: Program, x: Any, made: Callable[[Tensor], Any]) -> None:
        self.program = program
        self.plain = [program.input()]
        self.memories: dict[
            int, list[Tensor]
        ] = {}  # components, with the elements of the memory along the last dimension
        self.kind = type(x)
        self._keep(self.plain[0], x)
        for number, step in enumerate(program.steps):
            self._run(number, step, made)

    def slots(self) -> list[Any]:
        """What every slot holds."""
        return [self._read(tensor) for tensor in self.plain]

    def _run(self, number: int, step: Step, made: Callable[[Tensor], Any]) -> None:
        before = self._read(self.plain[step.slot]) if step.kind in ("new", "write", "view") else None
        other = step.other
        second: tuple[Any, ...] = ()
        if isinstance(other, int):
            second = (self._read(self.plain[other]),)
        elif other is not None:
            second = (made(self.program.operand(number)),)
        plainly = self.program._second(self.plain, number, lambda mean: mean)
        _step(self.plain, step, plainly)
        if step.kind == "write":
            after = self._pure(step, before, second)
            self._write(self.plain[step.slot], after)
        elif step.kind in ("new", "view"):
            made_of = self.plain[-1]
            if self._key(made_of) not in self.memories:
                self._keep(made_of, step.apply(before, *second))

    def _pure(self, step: Step, before: Any, second: tuple[Any, ...]) -> Any:
        """The value after a write: nothing else shares the memory of `before`."""
        step.apply(before, *second)
        return before

    def _key(self, tensor: Tensor) -> int:
        return int(tensor.untyped_storage().data_ptr())

    def _keep(self, tensor: Tensor, value: Any) -> None:
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        parts = [getattr(value, name) for name in value.components]
        lead = [part.shape[: part.ndim - tensor.ndim] for part in parts]
        self.memories[self._key(tensor)] = [
            torch.zeros((*front, count), dtype=part.dtype) for front, part in zip(lead, parts, strict=True)
        ]
        self._write(tensor, value)

    def _write(self, tensor: Tensor, value: Any) -> None:
        places = _places(tensor).flatten()
        for memory, name in zip(self.memories[self._key(tensor)], value.components, strict=True):
            part = getattr(value, name).clone()
            memory[..., places] = part.reshape(*memory.shape[:-1], -1)

    def _read(self, tensor: Tensor) -> Any:
        places = _places(tensor)
        return self.kind.of(*(memory[..., places].clone() for memory in self.memories[self._key(tensor)]))


def check(seed: int, kind: type[Any], *, plain: bool = False, length: int = 8) -> Program:
    """Run a random program by the library and by the reference, and compare all slots; return the program.

    If `plain`, the program starts with a plain tensor and runs inside `propagate`. Values of zero variance are compared
    with the plain program, exactly.
    """
    program = random_program(seed, length=length, plain=plain)

    def value(loc: Tensor, variance: Tensor | None = None) -> Any:
        if issubclass(kind, Certain):
            return kind.of(loc)
        return kind.of(loc, loc.abs() * 0.2 if variance is None else variance)

    def certain(loc: Tensor) -> Any:
        return kind.certain(loc)

    wanted = program.run(program.input(), lambda mean: mean)
    if plain:
        found = _inside(program, kind, certain)
        moments, reference = _inside(program, kind, value), Reference(program, kind.certain(program.input()), value)
    else:
        found = program.run(certain(program.input()), certain)
        x = program.input()
        x = value(x, VARIANCES[program.variance](x))
        reference = Reference(program, x.each(torch.clone), value)
        moments = program.run(x, value)
    for number, (tensor, zero, result, right) in enumerate(zip(wanted, found, moments, reference.slots(), strict=True)):
        loc = zero.loc if isinstance(zero, Value) else zero
        rounding = 1e-12 if kind is Logistic else 0.0  # whose functions of certain elements round
        assert torch.allclose(loc, tensor, rtol=rounding, atol=0.0), (
            f"the mean of slot {number} differs from the plain program:\n{program}"
        )
        for name in right.components:
            a, b = getattr(result, name), getattr(right, name)
            close = a.shape == b.shape and torch.allclose(a, b, rtol=1e-12, atol=1e-14)
            assert close, f"{name} of slot {number} is wrong for {kind.__name__}:\n{program}"
    return program


def _inside(program: Program, kind: type[Any], made: Callable[[Tensor], Any]) -> list[Any]:
    """Run a program on a plain tensor inside `propagate`."""
    buffer = program.input()
    return momentprop.propagate(lambda _: program.run(buffer, made), kind.certain(torch.zeros(1)), covariance=False)  # type: ignore[no-any-return]
