"""Trained networks under noise, with their images, for the experiments on calibration and noisy inputs."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop.calibration import Calibration
from momentprop.checking import Report
from momentprop.data import Split, load_split
from momentprop.training.distributed import as_device
from momentprop_experiments.options import Options
from momentprop_experiments.runs import trained_networks

SAMPLES = 1000
"""The number of draws to fit a calibration to."""

IMAGES = 64
"""The number of training images to fit a calibration to, and of test images to test it on."""

LEFT_OUT = {
    "resnet18": "`momentprop train resnet18 --data cifar10 --method ap1 --activation relu --norm bn --epochs 14 "
    "--decay 0.75 --out DIR` trains one",
}
"""Networks that are too large for the repository, and how to get them."""


@dataclass(frozen=True)
class NoisyNetwork:
    """A trained network, its data set, and its noise."""

    title: str
    network: str
    data: str
    variance: float | None = None
    dropout: bool = False


@dataclass(frozen=True)
class LoadedNetwork:
    """A noisy network with its model and images, on a device."""

    case: NoisyNetwork
    model: nn.Module
    train: Tensor  # to fit to, normalized
    test: Tensor  # held out
    labels: Tensor  # of the test images
    mean: Tensor  # of the normalization of the images, for each channel
    std: Tensor

    def calibrate(self, images: Tensor | None = None, samples: int = SAMPLES, **options: Any) -> Calibration:
        """Calibrate under the network's noise, on the training images unless others are given."""
        noise = {"input_variance": self.case.variance, "dropout": self.case.dropout}
        given = self.train if images is None else images
        found = momentprop.calibrate(self.model, given, samples=samples, **{**noise, **options})
        return found.to(self.test.device)

    def check(
        self, calibrations: Mapping[str, Calibration], draws: int, units: int, images: Tensor | None = None
    ) -> Report:
        """Compare AP1, AP2 and each calibrated AP2 with draws, on the test images unless others are given."""
        methods = ("ap1", "ap2", *((name, {"calibration": each}) for name, each in calibrations.items()))
        options: dict[str, Any] = {"methods": methods, "samples": draws, "units": units, "show": ()}
        noise: dict[str, Any] = {"input_variance": self.case.variance, "dropout": self.case.dropout}
        return momentprop.check(self.model, self.test if images is None else images, **noise, **options)


class Setting:
    """The device of an experiment, and the folders of its networks and data sets."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = as_device(options.device)
        self._split = functools.cache(lambda data, split: load_split(data, split, options.root))

    def has(self, case: NoisyNetwork) -> bool:
        """Whether a network is available; those too large for the repository may be missing."""
        return case.network not in LEFT_OUT or trained_networks.find(case.network, self.options.networks) is not None

    def subject(self, case: NoisyNetwork, train: int = IMAGES, test: int = IMAGES) -> LoadedNetwork:
        """Load a network with the first training and test images; quick runs use the embedded digits."""
        model, about = trained_networks.load(case.network, self.options.networks)
        data = "digits" if self.options.quick else case.data
        mean, std = (torch.tensor(about[part]) for part in ("mean", "std"))  # those of the training
        splits: list[Split] = [self._split(data, name) for name in ("train", "test")]
        seen, held_out = (dataclasses.replace(split, mean=mean, std=std) for split in splits)
        images, labels = held_out.batch(range(test))
        on_device = (x.to(self.device) for x in (seen.batch(range(train))[0], images, labels, mean, std))
        return LoadedNetwork(case, model.to(self.device), *on_device)

    def missing(self, cases: Mapping[str, NoisyNetwork]) -> list[str]:
        """Say how to get the missing networks, in one sentence for each."""
        absent = dict.fromkeys(case.network for case in cases.values() if not self.has(case))
        return [f"The cases of `{name}` are missing, because the trained network was not found: {LEFT_OUT[name]}, and "
                f"`--networks` names the folder with its `{name}.safetensors`." for name in absent]  # fmt: skip


@contextlib.contextmanager
def exact_convolutions() -> Iterator[None]:
    """Make a GPU compute in float32, because the 10 bits of TF32 would round away small noise."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
