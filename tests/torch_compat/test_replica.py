"""Replicas share tensors with the model, and nothing else."""

import functools
from typing import Any

import torch
from torch import nn

from momentprop import propagate
from momentprop.torch_compat.replica import Replica


class Holder(nn.Module):
    """Reaches its module by every way that a replica follows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.twin = self.layer
        self.listed = [self.layer]
        self.nested = {"a": (1, [self.layer])}
        self.bound = self.layer.forward
        self.partial = functools.partial(self._run, self.layer)
        self.sizes = [1, 2]
        self.nothing: list[Any] = []

    def _run(self, layer: nn.Module, x: Any) -> Any:
        return layer(x)

    def forward(self, x: Any) -> Any:
        return self.partial(x)


def test_a_replica_reaches_only_modules_of_its_own() -> None:
    model = Holder()
    replica = Replica(model)
    copy: Any = replica.module
    assert copy is not model
    assert copy.layer is not model.layer
    reached = (copy.twin, copy.listed[0], copy.nested["a"][1][0], copy.bound.__self__, copy.partial.args[0])
    assert all(module is copy.layer for module in reached)
    assert copy.partial.func.__self__ is copy
    assert copy.sizes is model.sizes  # no module inside
    assert copy.layer.weight is model.layer.weight
    assert list(replica.modules) == [copy, copy.layer]
    assert replica.shared == []


def test_hooks_flags_and_attributes_stay_with_the_replica() -> None:
    model, seen = Holder().eval(), []
    users = model.layer.register_forward_hook(lambda *_: seen.append("user"))
    replica = Replica(model)
    copy: Any = replica.module
    with replica.hooked([(copy.layer, lambda *_: seen.append("ours"))]):
        copy.train()
        copy.layer.found = 1
        copy(torch.ones(2))
    assert seen == ["user", "ours"]
    model(torch.ones(2))
    assert seen == ["user", "ours", "user"]
    assert not model.layer.training
    assert not hasattr(model.layer, "found")
    users.remove()
    model(torch.ones(2))
    assert seen == ["user", "ours", "user"]


def test_scripted_modules_are_shared_and_left_as_they_were() -> None:
    scripted = torch.jit.script(nn.Dropout(0.5))
    model = nn.Sequential(nn.Linear(2, 2), scripted).eval()
    assert Replica(model).shared == [scripted]
    propagate(model, torch.ones(1, 2), method="sample", samples=3, dropout=True)
    assert not scripted.training


def test_a_module_with_another_forward_is_shared() -> None:
    model = nn.Sequential(nn.Dropout(0.5)).eval()
    old = model.forward
    model.forward = lambda x: old(x)  # type: ignore[method-assign]
    assert Replica(model).shared == [model, model[0]]
    assert propagate(model, torch.ones(3), dropout=True, covariance=False).variance.tolist() == [1, 1, 1]
    assert not model[0].training


def test_lazy_modules_are_made_real() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    propagate(model, torch.ones(1, 2), input_variance=1.0, covariance=False)
    assert model[0].in_features == 2


def test_bound_methods_are_methods_of_the_replica() -> None:
    model = nn.Sequential(nn.Dropout(0.5)).eval()
    assert propagate(model.forward, torch.ones(3), dropout=True, covariance=False).variance.tolist() == [1, 1, 1]
    assert propagate(functools.partial(model), torch.ones(3), dropout=True, covariance=False).variance.tolist() == [
        1,
        1,
        1,
    ]


def test_a_model_in_training_keeps_what_it_assigns() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.passes = 0
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.passes += 1
            self.mean = self.mean + 1
            self.last = x
            return x

    model = Counts()
    propagate(model, torch.ones(2), input_variance=1.0, covariance=False)
    assert model.passes == 1
    assert model.mean.tolist() == [1, 1]
    assert not hasattr(model, "last")  # a value has no place in a model
    model.eval()
    propagate(model, torch.ones(2), input_variance=1.0, covariance=False)
    assert model.passes == 1


def test_running_statistics_are_updated_in_training() -> None:
    model = nn.BatchNorm1d(2)
    propagate(model, torch.randn(8, 2) + 3, input_variance=1.0, covariance=False)
    assert model.num_batches_tracked == 1
    assert (model.running_mean > 0.1).all()


def test_draws_do_not_write_to_buffers() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            return self.total.add_(1) + x

    model = Adds().eval()
    found = propagate(model, torch.zeros(2), input_variance=1e-6, method="sample", samples=20, seed=0)
    assert model.total.tolist() == [0, 0]
    torch.testing.assert_close(found.loc, torch.ones(2), atol=1e-2, rtol=0)
