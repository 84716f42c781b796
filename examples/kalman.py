r"""A Kalman filter whose dynamics and sensor are networks: prediction and update in a few lines.

The state $x_t = f(x_{t-1}) + w_t$ of a pendulum, its angle and its speed, is seen by a sensor $z_t = g(x_t) + v_t$.
Both $f$ and $g$ are learned from examples. `propagate` gives what the textbook filter gets from a linear model: the
covariance of the output, and its covariance with the input. Nothing is linearized by hand.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from momentprop import Joint, propagate

PROCESS = torch.diag(torch.tensor([2e-4, 2e-3], dtype=torch.float64))
"""The covariance of the noise of the dynamics."""
SENSOR = torch.diag(torch.tensor([0.01, 0.04], dtype=torch.float64))
"""The covariance of the noise of the sensor."""


def predict(dynamics: nn.Module, state: Joint, noise: Tensor) -> Joint:
    """Return the state one step later."""
    y = propagate(dynamics, state)
    return Joint.from_covariance(y.loc, y.covariance + noise)


def update(sensor: nn.Module, state: Joint, measured: Tensor, noise: Tensor) -> Joint:
    """Return the state after a measurement."""
    y = propagate(sensor, state)
    gain = torch.linalg.solve(y.covariance + noise, y.cross_covariance()).mT
    moved = (gain @ (measured - y.loc).unsqueeze(-1)).squeeze(-1)
    return Joint.from_covariance(state.loc + moved, state.covariance - gain @ y.cross_covariance())


def track(dynamics: nn.Module, sensor: nn.Module, state: Joint, measurements: Tensor) -> list[Joint]:
    """Return the state after each of the measurements, of shape (steps, batch, sensors)."""
    states = []
    for measured in measurements:
        state = update(sensor, predict(dynamics, state, PROCESS), measured, SENSOR)
        states.append(state)
    return states


def swing(x: Tensor, step: float = 0.1) -> Tensor:
    """Return the angle and the speed of the pendulum a step later."""
    angle, speed = x.unbind(-1)
    speed = speed - step * (4 * angle.sin() + 0.2 * speed)
    return torch.stack([angle + step * speed, speed], -1)


def look(x: Tensor) -> Tensor:
    """Return what the sensor sees: the height of the pendulum, and its speed through a saturating gauge."""
    angle, speed = x.unbind(-1)
    return torch.stack([angle.sin(), torch.tanh(speed)], -1)


def learned(truth: Callable[[Tensor], Tensor], seed: int) -> nn.Module:
    """Return a network that has learned a function of the state from examples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).double()
        x = 2.5 * torch.randn(1024, 2, dtype=torch.float64)
    wanted = truth(x)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        error: Tensor = (network(x) - wanted).square().mean()
        error.backward()
        return error

    optimizer.step(loss)
    return network.eval().requires_grad_(False)
