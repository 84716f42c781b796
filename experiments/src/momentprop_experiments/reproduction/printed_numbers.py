r"""The numbers that the paper prints: its two accuracy tables and its table of data-set statistics.

Source: `tab:accuraacy-LeNet`, `tab:accuracy-CIFAR` and `tab:data-acc-LeNet` in the paper's TeX source. Cases with
`commented_out` are commented out there, and do not appear in the paper.

Each case of an accuracy table has three lines: $\epsilon_{\mu_1}$ of AP1, $\epsilon_{\mu_2}$ and
$\epsilon_{\sigma_2}$ of AP2, with one number per layer. Each line ends with a divergence of the class posterior: of
AP1, of AP2 by the simplified softmax (KL), and of AP2 by the full one (KL').
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """The numbers of one case; None where the paper has a dash, because nothing is random there."""

    ap1: tuple[float | None, ...]
    ap2: tuple[float | None, ...]
    std: tuple[float | None, ...]
    kl_ap1: float
    kl_simplified: float
    kl_logistic: float
    commented_out: bool = False


def _read(text: str, commented_out: bool = False) -> Printed:
    rows = [line.split() for line in text.strip().splitlines()]
    ap1, ap2, std = (tuple(None if word == "-" else float(word) for word in row[:-1]) for row in rows)
    kl_ap1, kl_simplified, kl_logistic = (float(row[-1]) for row in rows)
    return Printed(ap1, ap2, std, kl_ap1, kl_simplified, kl_logistic, commented_out)


LENET = {
    "lrelu-1e-4": _read("""
        0.02 0.04 0.04 0.06 0.05 0.08 1.4e-6
        0.02 0.02 0.02 0.03 0.02 0.03 4.5e-7
        1.01 0.88 0.87 0.64 0.63 0.63 3.8e-7
    """),
    "lrelu-0.01": _read("""
        0.14 0.29 0.24 0.60 0.45 0.67 0.03
        0.02 0.03 0.03 0.05 0.05 0.08 0.003
        1.07 0.91 0.91 0.68 0.58 0.69 0.002
    """),
    "lrelu-0.1": _read("""
        0.31 0.74 0.51 1.47 1.11 1.60 5.09
        0.03 0.04 0.05 0.06 0.07 0.10 0.07
        1.12 0.99 1.09 0.75 0.65 0.79 0.03
    """),
    "dropout": _read("""
        0.01 0.02 0.04 0.17 0.06 0.10 0.02
        0.01 0.02 0.01 0.03 0.02 0.03 9.5e-3
        1.00 1.00 1.01 0.95 0.98 0.95 2.9e-3
    """),
    "bernoulli": _read("""
        0.02 0.02 0.13 0.20 0.20 0.17 6.0
        0.02 0.02 0.03 0.04 0.08 0.07 0.06
        1.09 1.00 1.00 0.69 0.95 0.93 1.2e-2
    """),
    "logistic-0.1": _read("""
        0.06 0.17 0.17 0.40 0.38 0.53 0.01
        0.03 0.05 0.05 0.12 0.12 0.17 2.6e-3
        1.00 1.10 1.09 0.72 0.72 0.90 1.4e-2
    """),
}
"""LeNet on MNIST, with columns CA, C, A, C, A, F."""

CIFAR = {
    "lrelu-1e-4": _read(
        """
        0.02 0.04 0.07 0.10 0.20 0.19 0.37 0.26 0.52 0.32 0.64 0.37 0.71 0.47 0.70 0.46 0.60 0.70 0.01
        0.02 0.02 0.02 0.05 0.15 0.15 0.31 0.22 0.44 0.28 0.55 0.32 0.60 0.40 0.59 0.40 0.51 0.59 0.01
        1.00 1.02 0.54 0.45 0.34 0.27 0.24 0.19 0.15 0.12 0.09 0.07 0.06 0.04 0.04 0.03 0.03 0.04 0.01
        """,
        commented_out=True,
    ),
    "lrelu-0.01": _read("""
        0.02 0.24 0.39 0.37 0.76 0.63 1.13 0.85 1.59 1.10 1.93 1.32 2.65 1.86 2.76 1.93 1.99 2.59 4.42
        0.02 0.02 0.03 0.19 0.49 0.36 0.55 0.42 0.73 0.55 0.96 0.68 1.26 0.97 1.27 1.01 1.14 1.43 1.71
        1.00 1.11 0.59 0.40 0.37 0.28 0.35 0.19 0.26 0.10 0.17 0.05 0.11 0.05 0.08 0.04 0.07 0.07 1.71
    """),
    "lrelu-0.1": _read(
        """
        0.02 0.40 0.61 0.43 1.32 0.65 1.35 0.92 1.73 1.26 2.28 1.55 3.22 2.32 3.03 2.32 2.75 3.67 6.09
        0.02 0.02 0.02 0.21 0.60 0.32 0.65 0.38 0.70 0.48 1.02 0.75 1.86 1.39 1.88 1.31 1.80 2.54 0.99
        1.00 1.16 0.60 0.37 0.36 0.18 0.31 0.18 0.27 0.10 0.19 0.05 0.12 0.09 0.09 0.07 0.10 0.10 0.99
        """,
        commented_out=True,
    ),
    "dropout": _read("""
        - 0.01 0.02 0.04 0.12 0.07 0.13 0.09 0.17 0.11 0.21 0.14 0.26 0.14 0.27 0.16 0.23 0.32 0.05
        - 0.01 0.02 0.01 0.02 0.02 0.03 0.02 0.04 0.03 0.05 0.04 0.08 0.05 0.08 0.07 0.10 0.15 0.02
        - 1.00 1.00 1.02 0.93 0.95 0.90 0.92 0.81 0.79 0.73 0.69 0.71 0.69 0.71 0.65 0.56 0.69 0.02
    """),
    "bernoulli": _read("""
        - 0.02 0.02 0.04 0.12 0.10 0.18 0.15 0.29 0.21 0.37 0.25 0.48 0.31 0.44 0.33 0.27 0.47 3.46
        - 0.02 0.02 0.03 0.04 0.04 0.05 0.06 0.12 0.10 0.20 0.14 0.30 0.19 0.28 0.19 0.14 0.25 0.21
        - 1.12 1.00 1.02 0.92 0.99 0.78 0.97 0.59 0.95 0.56 0.94 0.61 0.94 0.73 0.96 0.74 0.99 0.1
    """),
    "logistic-0.01": _read("""
        0.02 0.17 0.17 0.28 0.49 0.53 0.98 0.96 1.47 1.39 1.62 1.52 2.13 2.06 2.36 2.31 1.86 2.55 3.46
        0.02 0.03 0.03 0.16 0.40 0.43 0.82 0.81 1.26 1.21 1.39 1.32 1.88 1.84 2.05 2.03 1.60 2.20 2.68
        1.00 1.01 0.40 0.41 0.28 0.29 0.23 0.23 0.12 0.11 0.05 0.05 0.02 0.02 0.01 0.01 0.01 0.01 2.68
    """),
}
"""The CIFAR-10 network, with columns C and A in turn, then C and P."""


@dataclass(frozen=True)
class PrintedStatistics:
    """The errors of channel means relative to the true deviation, and the factors of deviations, for each layer."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def _statistics(text: str) -> PrintedStatistics:
    return PrintedStatistics(*(tuple(map(float, line.split())) for line in text.strip().splitlines()))


STATISTICS = {
    "lrelu": {
        "none": _statistics("""
            0.10 0.27 0.23 0.22 0.39 0.33 0.41
            0.89 1.32 0.85 1.01 0.92 1.03 0.93
        """),
        "bn": _statistics("""
            0.10 0.49 0.13 0.36 0.29 0.52 0.49
            0.89 1.20 1.04 1.22 1.28 1.47 1.49
        """),
        "analytic": _statistics("""
            0.10 0.20 0.26 0.25 0.38 0.37 0.38
            0.89 1.23 0.92 1.17 1.08 1.37 1.21
        """),
    },
    "logistic": {
        "none": _statistics("""
            0.10 0.09 0.24 0.24 0.36 0.36 0.27
            0.89 0.91 0.76 0.76 0.76 0.77 0.75
        """),
        "bn": _statistics("""
            0.10 0.04 0.20 0.19 0.34 0.34 0.25
            0.93 1.06 1.02 1.10 1.15 1.16 1.16
        """),
        "analytic": _statistics("""
            0.10 0.04 0.17 0.15 0.37 0.37 0.28
            0.89 1.15 1.02 1.13 1.16 1.22 1.21
        """),
    },
}
"""Data-set statistics of LeNet on MNIST by activation and initialization, with columns C and A in turn, then F."""
