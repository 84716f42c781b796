"""`check` on models of all kinds."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentprop
from momentprop import Normal, check, propagate
from momentprop.checking.picked_units import leaves
from momentprop.running import Run
from tests.checking.inputs import X
from tests.networks import mlp

# Models of all kinds


class Structured(nn.Module):
    """A dictionary with a tuple as the output, a layer that is called twice, and one that is called `output`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.output = nn.Linear(6, 4)

    def forward(self, x, *, scale):
        hidden = torch.relu(self.layer(torch.relu(self.layer(x))))
        return {"hidden": (hidden, 3), "logits": scale * self.output(hidden)}


def test_structured_outputs_and_repeated_modules_are_named():
    report = check(Structured(), X, input_variance=0.1, samples=50, scale=2.0)
    assert list(report.modules) == ["layer", "layer#2", "output", "(output).hidden[0]", "(output).logits"]
    assert report.output == "(output).logits"
    assert report.posterior.classes == 4
    assert report["layer#2"].type == "Linear"
    assert report["(output).logits"].type == "Structured"


def test_a_container_is_not_shown_beside_its_last_module():
    report = check(nn.Sequential(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), nn.Tanh()), X, input_variance=1, samples=20)
    assert report["0"].same_as == "0.1"
    assert list(report.rows) == ["0.0", "0.1", "1", "output"]


def test_a_regression_has_no_class_posterior():
    report = check(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), X, input_variance=0.1, samples=50)
    assert report.posterior is None
    assert [len(example.units) for example in report.examples] == [1, 1, 1]
    assert not report.examples[0].probabilities
    assert check(nn.Linear(6, 3), X, input_variance=0.1, samples=50, classes=None).posterior is None


def test_tokens_with_dropout_are_checked():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Dropout(0.3), nn.Linear(8, 5)).eval()
    report = check(model, torch.randint(10, (4, 7)), dropout=True, samples=300, classes=-1)
    assert report["0"].zero == report["0"].units
    assert report["0"].methods["ap2"].eps_mean is None
    assert report.posterior.classes == 5
    assert report["output"].methods["ap2"].eps_mean < 0.07
    assert report.posterior.methods["ap2"]["kl_race"] < 2e-3


def test_a_function_is_checked_at_its_output():
    def model(x):
        return torch.relu(x)

    report = check(model, X, input_variance=0.3, samples=100)
    assert list(report.modules) == ["output"]
    assert (report.model, report["output"].type) == ("model", "function")


class LogProbabilities(nn.Module):
    def __init__(self, softmax):
        super().__init__()
        self.linear, self.softmax = nn.Linear(6, 4), softmax

    def forward(self, x):
        return self.softmax(self.linear(x))


@pytest.mark.parametrize(
    "softmax", [nn.LogSoftmax(-1), momentprop.nn.Softmax(), nn.Softmax(-1)], ids=["log", "posterior", "transform"]
)
def test_a_final_class_posterior_is_compared_with_that_of_draws(softmax):
    report = check(LogProbabilities(softmax), X, input_variance=0.5, samples=2000)
    assert report.posterior.methods["ap2"]["kl"] < report.posterior.methods["ap1"]["kl"]
    assert report.posterior.methods["ap2"]["kl"] < 2e-3
    assert report.summary
    assert report.to_html()


def test_a_value_may_be_the_input():
    model = nn.Linear(6, 3)
    by_value = check(model, Normal(X, 0.2), samples=60)
    by_number = check(model, X, input_variance=0.2, samples=60)
    assert by_value["output"] == by_number["output"]


def test_the_posteriors_are_those_of_the_softmax_approximations():
    model = nn.Linear(6, 4)
    report = check(model, X, input_variance=1.0, samples=4000)
    y = propagate(model.double(), X.double(), input_variance=1.0, covariance=False)
    truth = propagate(lambda x: model(x).softmax(-1), X.double(), method="sample", input_variance=1.0, samples=4000).loc
    for method in ("simplified", "logistic", "race"):
        q = momentprop.functional.class_posterior(y, -1, method)
        wanted = F.kl_div(q.logits.log_softmax(-1), truth, reduction="batchmean").item()
        assert report.posterior.methods["ap2"][f"kl_{method}"] == pytest.approx(wanted, rel=0.1, abs=1e-4)
    assert list(report.posterior.methods["ap1"]) == ["kl"]


def test_examples_show_the_inputs_that_were_chosen():
    model = nn.Linear(6, 4)
    x = torch.randn(5, 3, 6)  # five inputs of three positions, of which the first is shown
    report = check(model, x, input_variance=0.5, samples=50, classes=-1, show=(4, 1), class_names=["a", "b", "c", "d"])
    wanted = momentprop.functional.class_posterior(propagate(model, x, input_variance=0.5, covariance=False)).loc
    assert [example.name for example in report.examples] == ["input 4", "input 1"]
    for example, i in zip(report.examples, (4, 1), strict=True):
        assert example.probabilities["ap2"] == pytest.approx(wanted[i, 0].tolist(), abs=1e-5)
        assert example.probabilities["sampled"] == pytest.approx(wanted[i, 0].tolist(), abs=0.1)
        assert [unit.name for unit in example.units] == ["a", "b", "c", "d"]
        assert [unit.moments["ap1"][0] for unit in example.units] == pytest.approx(model(x)[i, 0].tolist(), abs=1e-5)
        assert [sum(unit.counts) for unit in example.units] == [50] * 4


def test_images_of_logits_have_a_posterior_at_every_pixel():
    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 3)

        def forward(self, x):
            return {"logits": self.conv(x)}

    report = check(Segmenter(), torch.randn(2, 1, 6, 6), input_variance=0.1, samples=200)
    assert report.posterior.classes == 3
    assert report.posterior.methods["ap2"]["kl_race"] < 1e-3
    assert report.examples[1].picture.startswith("data:image/png;base64,")


def test_a_model_of_transformers_is_checked():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.randint(50, (3, 5))
    mask = torch.ones_like(ids)
    report = check(model, ids, attention_mask=mask, dropout=True, samples=200)
    assert report.output == "output.logits"
    assert report.posterior.classes == 3
    assert report["output.logits"].methods["ap2"].eps_mean < report["output.logits"].methods["ap1"].eps_mean + 0.02
    assert "bert.encoder.layer.0.attention.self[0]" in report.modules


@pytest.mark.full
def test_a_residual_network_is_checked():
    from tests.architectures import ARCHITECTURES
    from tests.architectures.state import images

    model = next(case for case in ARCHITECTURES if case.name == "ResNet-18").build()
    report = check(model, images(16, 64), input_variance=0.01)
    assert report["output"].methods["ap2"].eps_mean < 0.2 * report["output"].methods["ap1"].eps_mean


# Methods


def test_too_few_draws_and_running_statistics_are_refused():
    with pytest.raises(ValueError, match="at least 2 samples, but samples is 1"):
        check(nn.Linear(6, 3), X, input_variance=0.1, samples=1)
    with pytest.raises(ValueError, match=r"draws would change the running statistics .*call `model.eval\(\)`"):
        check(nn.BatchNorm1d(6), X, input_variance=0.1)
    with pytest.raises(ValueError, match="has no floating-point tensor to check"):
        check(lambda x: {"classes": 3}, X, input_variance=0.1, samples=3)


def test_inputs_are_counted_by_the_first_tensor():

    assert Run(mlp(), (), {"x": Normal(X, 1.0)}).batch_size == 12
    assert Run(mlp(), (torch.tensor(1.0),)).batch_size == 1
    assert [name for name, _ in leaves([Normal(X, 1.0), {"a": X}], "y")] == ["y[0]"]


class _Masked(nn.Module):
    """Logits of which the first is excluded."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).masked_fill(torch.arange(5) == 0, -torch.inf)  # type: ignore[no-any-return]


def test_masked_logits_count_as_units_that_do_not_vary(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _Masked()
    report = check(model, torch.randn(6, 4), input_variance=0.1, samples=100)
    output = report["output"]
    assert (output.units, output.zero) == (30, 6)
    linear = report["linear"].methods["ap2"]
    assert output.methods["ap2"].eps_std == pytest.approx(linear.eps_std, rel=0.1)
    assert report.posterior is not None
    for figures in report.posterior.methods.values():
        assert all(0 <= kl < 0.01 for kl in figures.values())
    report.save_html(tmp_path / "report.html")


def test_draws_without_a_variance_are_refused() -> None:
    def nothing(x: Tensor) -> Tensor:
        return x * 0 + torch.nan

    with pytest.raises(ValueError, match="some draws at 'output' are NaN"):
        check(nothing, torch.ones(2, 3), input_variance=0.1, samples=20)
    with pytest.raises(ValueError, match="some draws of the output are NaN, or infinite where its mean is not"):
        check(torch.exp, torch.full((2, 3), 88.0), input_variance=4.0, samples=50, methods=("ap1",))


def test_an_empty_batch_or_output_and_no_units_are_refused() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="the batch is empty"):
        check(model, torch.ones(0, 4), input_variance=0.1)
    with pytest.raises(ValueError, match=r"'output' of the model has no elements to check: its shape is \(0, 4\)"):
        check(lambda x: x[:0], torch.ones(2, 4), input_variance=0.1)
    for units in (0, -1):
        with pytest.raises(ValueError, match=f"units must be at least 1, or None .*, but is {units}"):
            check(model, torch.ones(2, 4), input_variance=0.1, units=units)


def test_a_covariance_of_the_inputs_is_noise_too():
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4)
    together = 0.1 * torch.ones(4, 4)
    report = check(model, x, input_covariance=together, samples=2000, methods=("ap2", "joint"))
    exact = model[0].weight.sum(1).square() * 0.1
    truth = torch.tensor([unit.stddev for unit in report.examples[0].units])
    torch.testing.assert_close(truth, exact.sqrt().detach(), rtol=0.06, atol=1e-4)
    assert report.at_output("joint").eps_std == pytest.approx(1, abs=0.06)
    assert report.given == "model, x, input_covariance=input_covariance"
    with pytest.raises(TypeError, match=r"both input_covariance and input_variance"):
        check(model, x, input_covariance=together, input_variance=0.1)


def test_a_single_input_without_a_batch_is_told():
    report = check(mlp().eval(), X[0], input_variance=0.1, samples=20)
    assert "give it a dimension for the batch, as in `x.unsqueeze(0)`" in report.notes[0]
    assert "`x.unsqueeze(0)`" in str(report)
    assert check(mlp().eval(), X[:1], input_variance=0.1, samples=20).notes == []
    assert check(torch.relu, X[0], input_variance=0.1, samples=20).notes == []
