"""The numbers of a check, as plain data."""

from dataclasses import dataclass, field

SAMPLED = "sampled"
"""The name of the draws among the methods."""


@dataclass(frozen=True)
class Accuracy:
    """The figures of one method at one module; a figure that the method does not have is None.

    In a module's floor, these are the figures of the exact moments.
    """

    eps_mean: float | None = None
    eps_std: float | None = None
    rms_log_std: float | None = None
    correlation: float | None = None
    coverage: dict[str, float] = field(default_factory=dict)  # by level in per cent; in a floor, the error
    worth_mean: float | None = None  # the number of draws with this error of the mean; `samples` means at least that
    worth_std: float | None = None
    zero: int = 0  # units that vary, though the method says they do not
    correlation_error: float | None = None  # of the correlations between the units of an input; at the final output


@dataclass(frozen=True)
class ModuleAccuracy:
    """The output of a module (or one of several), and the accuracy of each method there."""

    type: str
    shape: tuple[int, ...]
    units: int  # the number of measured units
    zero: int  # how many of them do not vary in the draws; figures of deviations leave them out
    floor: Accuracy
    methods: dict[str, Accuracy]
    same_as: str | None = None  # the inner module with the same output
    acts: bool = True  # or it passes on its input, as dropout that is switched off

    @property
    def total(self) -> int:
        """The number of units."""
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True)
class PosteriorAccuracy:
    """The class posterior by draws, and the divergence of each method's posteriors from it, in nats.

    A method with variances has three posteriors (`kl_simplified`, `kl_logistic`, `kl_race`), one with a covariance has
    `kl_joint`, and any other `kl`.
    """

    classes: int
    floor: float
    methods: dict[str, dict[str, float]]
    worth: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Unit:
    """One output unit for one input: a histogram of its draws, and its moments by each method."""

    name: str
    counts: list[int]
    start: float  # left end of the first bin
    width: float  # width of a bin
    loc: float  # mean of the draws
    stddev: float
    moments: dict[str, tuple[float, float | None]]  # mean and deviation of each method


@dataclass(frozen=True)
class Example:
    """One input, its output units and its class probabilities (those of the draws under the name `sampled`)."""

    name: str
    units: list[Unit]
    probabilities: dict[str, list[float]]
    picture: str | None = None  # the input as a data URL, if it is an image
    noisy: str | None = None  # the same with one draw of its noise, if the input is random


@dataclass(frozen=True)
class Cost:
    """The cost of a method in forward passes of the plain network: as measured, and by counting products."""

    measured: float
    nominal: int | None


@dataclass(frozen=True)
class Culprit:
    """The operation at which the deviations of AP2 go wrong, and the factor by which they are off around it."""

    operation: str
    place: str  # the module that runs it
    before: float
    after: float


@dataclass(frozen=True)
class Results:
    """All numbers of a check, and the ones that summaries and charts ask for most."""

    call: str
    versions: dict[str, str]
    model: str
    samples: int
    inputs: int
    seed: int
    methods: list[str]
    output: str
    modules: dict[str, ModuleAccuracy]
    posterior: PosteriorAccuracy | None
    examples: list[Example]
    cost: dict[str, Cost]
    seconds: float
    notes: list[str] = field(default_factory=list)  # which methods are left out, and why
    culprit: Culprit | None = None
    given: str = "model, x"  # the arguments of `propagate` in code

    def __getitem__(self, name: str) -> ModuleAccuracy:
        return self.modules[name]

    def at_output(self, method: str) -> Accuracy:
        """The figures of a method at the final output."""
        return self.modules[self.output].methods.get(method, Accuracy()) if self.output in self.modules else Accuracy()

    @property
    def floor_at_output(self) -> Accuracy:
        """The floor at the final output: what the draws can resolve there."""
        return self.modules[self.output].floor if self.output in self.modules else Accuracy()

    @property
    def chief(self) -> str:
        """The method that the summary describes: the first with deviations, or else the first."""
        told = [name for name in self.methods if self.at_output(name).eps_std is not None]
        return (told or self.methods)[0]

    @property
    def figures_of_posterior(self) -> list[str]:
        """The names of all divergences."""
        found = self.posterior.methods.values() if self.posterior is not None else ()
        return list(dict.fromkeys(figure for divergences in found for figure in divergences))

    @property
    def rows(self) -> dict[str, ModuleAccuracy]:
        """The modules without those that only pass on the output of an inner module; the final output stays."""
        return {name: module for name, module in self.modules.items() if module.same_as is None or name == self.output}

    def first_off(self, method: str, off: float) -> str | None:
        """The first module where the deviations of a method are off by more than a share."""
        for path, module in self.rows.items():
            found = module.methods.get(method)
            if found is not None and found.eps_std is not None and not 1 - off < found.eps_std < 1 / (1 - off):
                return path
        return None
