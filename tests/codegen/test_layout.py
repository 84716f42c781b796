"""Which tensors a loop may run over, and copies of the others."""

import pytest
import torch

from momentprop.codegen.layout import (
    aligned,
    are_buildable,
    in_rows,
    is_dense,
    leading_shape,
    lies_as,
    repetition,
    repetitions,
)

IMAGES = torch.arange(24.0).reshape(2, 3, 2, 2)
LAST = IMAGES.contiguous(memory_format=torch.channels_last)


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [(IMAGES, True), (LAST, True), (IMAGES[0].mT, True), (IMAGES[:, ::2], False), (torch.ones(1).expand(3), False)],
)
def test_a_dense_tensor_has_no_gaps(tensor, dense):
    assert is_dense(tensor) is dense


@pytest.mark.parametrize("first", [IMAGES, LAST, IMAGES[:, ::2], IMAGES[:, :1].expand(2, 3, 2, 2)])
@pytest.mark.parametrize("other", [IMAGES, LAST, torch.zeros(1).expand(2, 3, 2, 2)])
def test_aligned_tensors_lie_alike_and_hold_the_same(first, other):
    other = other[:, : first.shape[1]]
    found = aligned((first, other))
    assert is_dense(found[0])
    assert lies_as(*found)
    assert torch.equal(found[0], first)
    assert torch.equal(found[1], other)


def test_tensors_that_lie_alike_are_not_copied():
    first, other = aligned((LAST, LAST.clone(memory_format=torch.preserve_format)))
    assert first is LAST
    assert other.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("other", [LAST, IMAGES[:1], IMAGES.double(), IMAGES.to("meta")])
def test_tensors_lie_alike_only_with_all_in_common(other):
    assert not lies_as(IMAGES, other)


LEADING = torch.Size((2, 5, 4))


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [
        ((2, 5, 4, 3), (1, 0)),
        ((2, 5, 1, 3), (4, 0)),
        ((2, 1, 1, 3), (20, 0)),
        ((5, 4, 3), (1, 20)),
        ((5, 1, 3), (4, 5)),
        ((4, 1), (1, 4)),
        ((1,), (1, 1)),
        ((1, 1, 1, 3), (1, 1)),
        ((2, 1, 4, 3), None),
    ],
)
def test_rows_repeat_in_a_pattern(shape, pattern):
    source = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    assert repetition(source.shape, LEADING) == pattern
    found = in_rows(source, LEADING)
    each, period = repetition(found.shape, LEADING)
    rows = found.reshape(-1, shape[-1])
    places = torch.arange(40) // each % (period or 40)
    assert torch.equal(rows[places].reshape(*LEADING, shape[-1]), source.expand(*LEADING, shape[-1]))


@pytest.mark.parametrize(
    "source", [torch.rand(2, 5, 1, 3), torch.rand(5, 2, 1, 3).transpose(0, 1), torch.rand(5, 1, 3)]
)
def test_a_row_that_several_share_is_not_repeated(source):
    for given in (source, source.expand(2, 5, 4, 3)):
        found = in_rows(given, LEADING)
        assert torch.equal(found.expand(2, 5, 4, 3), source.expand(2, 5, 4, 3))
        assert found.untyped_storage().nbytes() == source.untyped_storage().nbytes()


def test_rows_of_several_tensors_broadcast_together():
    shapes = [torch.Size(shape) for shape in ((2, 5, 4, 7), (5, 1, 7), (4, 1), (7,))]
    assert leading_shape(*shapes[1:]) == (5, 4)
    assert repetitions(*shapes) == (1, 0, 4, 5, 1, 4, 1, 1)


@pytest.mark.usefixtures("building")
def test_plain_tensors_with_data_are_built_for():
    assert are_buildable([IMAGES, torch.nn.Parameter(IMAGES)])
    refused = [IMAGES.half(), IMAGES.long(), IMAGES[:0], IMAGES.to("meta"), IMAGES.as_subclass(Own)]
    assert not any(are_buildable([tensor]) for tensor in refused)
    assert not are_buildable([IMAGES, IMAGES.as_subclass(Own)])
