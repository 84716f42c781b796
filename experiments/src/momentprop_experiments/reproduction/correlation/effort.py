"""How much to measure: on a GPU, on a CPU, and to check that it works."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.correlation import he_mlps
from momentprop_experiments.reproduction.correlation.correlation_cases import CASES


@dataclass(frozen=True)
class Amount:
    """How much to draw for a kind of network."""

    draws: int  # of each input of the moments
    wide_draws: int  # of each input of the class posteriors
    rows: int  # inputs of a pass
    images: int | None = None  # for the class posteriors, if they are fewer than of other networks


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    images: int  # for the class posteriors
    deep: int  # the first of them, for the moments
    fitted: int  # training inputs and draws of a calibration
    samples: int
    batch: int  # inputs of a pass of a method
    timed: int  # inputs of a timed pass
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    networks: int = 8  # random networks, their draws and their width
    network_draws: int = 1 << 20
    width: int = he_mlps.WIDTH
    cases: Sequence[str] = tuple(CASES)


FULL = Effort(
    1024, 64, 64, 1000, 64, 64,
    {
        "lenet": Amount(20_000, 20_000, 16_384),
        "cifar": Amount(20_000, 600, 8_192),
        "resnet18": Amount(20_000, 1_000, 8_192),
        "vit": Amount(20_000, 2_000, 8_192, 128),  # the derivatives of attention are slow
        "small": Amount(20_000, 20_000, 65_536),
    },
)  # fmt: skip
ON_CPU = Effort(
    16, 8, 16, 300, 8, 4,
    {
        "lenet": Amount(4_000, 4_000, 512),
        "cifar": Amount(400, 200, 32),
        "resnet18": Amount(400, 200, 64),
        "vit": Amount(400, 200, 64),
        "small": Amount(8_000, 8_000, 4_096),
    },
    networks=2,
    network_draws=1 << 17,
)  # fmt: skip
QUICK = Effort(
    4, 4, 4, 20, 4, 2,
    {"lenet": Amount(40, 40, 64), "small": Amount(200, 200, 512)},
    networks=2,
    network_draws=1 << 10,
    width=16,
    cases=("lenet-dropout", "sensor", "digits-mlp-0.25"),
)  # fmt: skip


def chosen(options: Options) -> Effort:
    """Return how much to measure."""
    effort = options.choose(QUICK, ON_CPU, FULL)
    if options.images is None:
        return effort
    return replace(effort, images=options.images, deep=min(options.images, effort.deep))
