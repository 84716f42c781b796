"""What users see of a value: text, tables of notebooks, data frames, and figures."""

import builtins
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from momentprop import Categorical, Joint, Mean, Normal, propagate
from momentprop.values.shown import LARGE

LOC, VARIANCE = torch.arange(80.0).reshape(8, 10), torch.full((8, 10), 4.0)


def _estimate(**more: Any) -> Any:
    return propagate(lambda x: x, LOC, input_variance=4.0, method="sample", samples=50, seed=0, **more)


# Text


def test_a_small_value_is_printed_in_full_and_a_large_one_in_short() -> None:
    few = LARGE // 10 * 10
    assert "shape" not in repr(Normal(torch.zeros(few), 1.0))
    text = repr(Normal(LOC, VARIANCE))
    assert text == (
        "Normal(shape=(8, 10), dtype=torch.float32,\n"
        "       loc=[0, 1, 2, ...] from 0 to 79,\n"
        "       variance=[4, 4, 4, ...] from 4 to 4)"
    )
    for value in (_estimate(), _estimate(covariance=True), Joint(LOC, VARIANCE), Mean(LOC), Categorical(LOC)):
        assert repr(value).startswith(f"{type(value).__name__}(shape=(8, 10), dtype=torch.float32,\n")
        assert len(repr(value).splitlines()) < 8
    assert "requires_grad=True" in repr(Mean(LOC.clone().requires_grad_()))


def test_many_factors_make_a_small_joint_value_large() -> None:
    few, many = (Joint(torch.zeros(8), 1.0, factors=torch.ones(count, 8)) for count in (1, 8))
    assert "factors=tensor(" in repr(few)
    assert repr(many) == (
        "Joint(shape=(8,), dtype=torch.float32,\n"
        "      loc=[0, 0, 0, ...] from 0 to 0,\n"
        "      variance=[9, 9, 9, ...] from 9 to 9,\n"
        "      factors=8)"
    )


def test_no_backward_pass_is_made_to_print_a_result() -> None:
    y = propagate(torch.nn.Linear(10, 12).requires_grad_(False), LOC, input_variance=0.1)
    assert "covariance=<on request>" in repr(y)
    assert "covariance on request" in y._repr_html_()
    assert y.is_lazy
    assert y.variance.shape == (8, 12)
    assert "variance=[" in repr(y)
    assert "factors=" in repr(y)


def test_a_value_under_a_transform_is_printed() -> None:
    texts = []
    torch.func.vmap(lambda x: (texts.append((repr(Mean(x)), Mean(x)._repr_html_())), x)[1])(torch.zeros(2, 100))
    assert "Mean(loc=" in texts[0][0]
    assert texts[0][1] == "Mean, shape (100,), torch.float32"


def test_a_notebook_shows_means_and_deviations() -> None:
    text = Normal(LOC, VARIANCE)._repr_html_()
    assert "Normal, shape (8, 10), torch.float32" in text
    assert "<td>79 ± 2</td>" in text
    wide = Normal(torch.zeros(12, 3, 11), 1.0)._repr_html_()
    assert wide.count("<tr>") == 11
    assert wide.count("<td>…</td>") == 10
    assert "<th>3, 0</th>" in wide
    assert "26 more" in wide
    assert "<td>3</td>" in Mean(torch.tensor(3.0))._repr_html_()


# Data frames


def test_a_frame_has_a_row_for_each_element() -> None:
    pytest.importorskip("pandas")
    found = _estimate().to_dataframe(names=list("abcdefghij"))
    assert list(found.columns) == ["loc", "stddev", "loc_error", "variance_error"]
    assert found.index.names == ["dim_0", "dim_1"]
    value = Normal(LOC.bfloat16(), VARIANCE.bfloat16()).to_dataframe(names=list("abcdefghij"))
    assert value.loc[(7, "j"), "loc"] == 79
    assert value.loc[(7, "j"), "stddev"] == 2
    assert list(Mean(LOC).to_dataframe().columns) == ["loc"]
    assert len(Normal(1.0, 0.1).to_dataframe()) == 1
    assert len(Normal(torch.zeros(2, 0), 0.1).to_dataframe()) == 0
    with pytest.raises(ValueError, match=r"there are 2 names for values of shape .*: give one name for each unit"):
        Normal(LOC, VARIANCE).to_dataframe(["a", "b"])


@pytest.mark.parametrize(("package", "call"), [
    ("pandas", lambda: Normal(LOC, VARIANCE).to_dataframe()), ("matplotlib", lambda: Normal(LOC, VARIANCE).plot()),
])  # fmt: skip
def test_a_missing_package_is_named(package: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf'need {package}: run `pip install "momentprop\['):
        call()


# Figures


def test_densities_have_a_line_at_the_mean_or_at_the_plain_output() -> None:
    x = Normal(LOC, VARIANCE)
    figure = x.plot(items=2)
    assert len(figure.axes) == 2
    lines = figure.axes[1].lines
    assert len(lines) == 16  # a density and a line for each of the first eight units
    assert lines[0].get_xdata()[0] == 10
    peak = max(lines[1].get_ydata())
    assert peak == pytest.approx(1 / (2 * 2.5066), rel=1e-3)
    assert x.plot(items=1, ap1=Mean(LOC + 0.5)).axes[0].lines[0].get_xdata()[0] == 0.5
    assert len(_estimate().plot(items=1).axes[0].patches) > 0
    assert len(Mean(LOC[0]).plot().axes[0].lines) == 8


def test_bars_are_class_probabilities_and_marks_those_without_noise() -> None:
    scores = Normal(LOC[:, :3] / 10, VARIANCE[:, :3])
    for value, dim in ((scores, -1), (F.log_softmax(scores, -1), None)):
        axes = value.plot(dim, names=["cat", "dog", "cow"]).axes[1]
        heights = torch.tensor([bar.get_height() for bar in axes.patches]).double()
        torch.testing.assert_close(heights, scores.probabilities()[1].double(), atol=1e-6, rtol=0)
        marks = torch.tensor(axes.lines[0].get_ydata())
        torch.testing.assert_close(marks, F.softmax(scores.loc, -1)[1].to(marks.dtype), atol=1e-6, rtol=0)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "cow"]
    assert not Categorical(LOC).plot(items=1).axes[0].lines
    with pytest.raises(ValueError, match="there are 1 names for 3 units"):
        scores.plot(-1, names=["cat"])
