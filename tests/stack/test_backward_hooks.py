"""Backward hooks, which torch does not call with values: warned of, or refused."""

import warnings

import pytest

from tests.stack.inputs import Around, a_value, an_mlp, loss_of


def test_backward_hooks_on_values_warn_once_for_each_module() -> None:
    model, x = Around(), a_value(5, 6)
    model.body[0].register_full_backward_hook(lambda *_: None)
    model.body[2].register_full_backward_pre_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(x)
        model(x)
    ours = [str(warning.message) for warning in caught if "see no gradients" in str(warning.message)]
    assert len(ours) == 2
    assert "module 'body.0' (Linear) of Around" in ours[0]
    assert "module 'body.2' (Linear) of Around" in ours[1]


def test_backward_hooks_on_tensors_do_not_warn() -> None:
    model, fired = an_mlp(), []
    model[0].register_full_backward_hook(lambda *_: fired.append(True))
    model(a_value(5, 6).loc.requires_grad_()).sum().backward()
    assert fired


def test_hooks_on_the_components_replace_backward_hooks() -> None:
    model, x, seen = an_mlp(), a_value(5, 6), []
    model[1].register_forward_hook(lambda module, args, y: [y.loc.register_hook(seen.append), None][1])
    loss_of(model(x)).backward()
    assert seen[0].shape == (5, 16)


def test_legacy_backward_hooks_raise_at_the_module() -> None:
    model = an_mlp()
    model[0].register_backward_hook(lambda *_: None)
    with pytest.raises(IndexError) as error:
        model(a_value(5, 6))
    assert "module '0' (Linear) of Sequential" in error.value.__notes__[0]
