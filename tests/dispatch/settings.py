"""Linear operations in settings that their examples do not have: borders, strides, other random arguments."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tests.examples import HEADS, IMAGE, LINE, VOLUME, constant, index, other


class Setting(NamedTuple):
    op: str
    call: Callable[[Any], Any]
    shape: tuple[int, ...] = (4, 6)


SMALL = (1, 2, 5, 6)

SETTINGS: dict[str, Setting] = {
    # arithmetic
    "alpha": Setting("add", lambda x: torch.add(x, other(x), alpha=-2)),
    "a broadcast summand": Setting("add", lambda x: x[0] + constant(4, 6)),
    "two values that broadcast": Setting("add", lambda x: x + other(x)[0]),
    "a number minus a value": Setting("sub", lambda x: 3 - x),
    "a tensor minus alpha": Setting("sub", lambda x: torch.sub(constant(4, 6), x, alpha=0.5)),
    "a number times a value": Setting("mul", lambda x: 3 * x),
    "an integer tensor times a value": Setting("mul", lambda x: torch.arange(6) * x),
    "over an integer": Setting("div", lambda x: x / 4),
    "over a column": Setting("div", lambda x: x / (3 + constant(4, 1))),
    "a mean over several dims": Setting("mean", lambda x: x.mean((0, 2)), LINE),
    "a sum over several dims": Setting("sum", lambda x: x.sum((0, 2), keepdim=True), LINE),
    "cumsum from the first": Setting("cumsum", lambda x: torch.cumsum(x, dim=0)),
    "lerp from plain": Setting("lerp", lambda x: torch.lerp(constant(4, 6), x, constant(6))),
    "lerp to plain": Setting("lerp", lambda x: torch.lerp(x, constant(4, 6), 0.3)),
    # products
    "linear, a random weight": Setting("linear", lambda x: F.linear(constant(2, 3, 6), x, constant(4))),
    "linear, a random bias": Setting("linear", lambda x: F.linear(constant(3, 2), constant(6, 2), x[0])),
    "linear, weight and bias": Setting("linear", lambda x: F.linear(constant(3, 6), x, other(x)[:, 0])),
    "linear, input and bias": Setting("linear", lambda x: F.linear(x, constant(6, 6), other(x)[0])),
    "matmul from the left": Setting("matmul", lambda x: constant(2, 4) @ x),
    "matmul with a vector": Setting("matmul", lambda x: x @ constant(6)),
    "matmul in batches": Setting("matmul", lambda x: constant(2, 1, 2, 3) @ x, (3, 3, 2)),
    "mm from the left": Setting("mm", lambda x: torch.mm(constant(2, 4), x)),
    "mv, a random vector": Setting("mv", lambda x: torch.mv(constant(3, 5), x), (5,)),
    "outer, second": Setting("outer", lambda x: torch.outer(constant(3), x), (5,)),
    "inner, second": Setting("inner", lambda x: torch.inner(constant(2, 6), x)),
    "tensordot, second": Setting("tensordot", lambda x: torch.tensordot(constant(2, 4), x, dims=([1], [0]))),
    "addmm, all but one": Setting("addmm", lambda x: torch.addmm(x, constant(4, 2), constant(2, 6), alpha=3)),
    "addmm, summand and factor": Setting(
        "addmm", lambda x: torch.addmm(other(x), constant(4, 4), x, beta=0.5, alpha=2)
    ),
    "addbmm, a random summand": Setting(
        "addbmm", lambda x: torch.addbmm(x, constant(2, 4, 3), constant(2, 3, 6), beta=2)
    ),
    "baddbmm, second factor": Setting(
        "baddbmm", lambda x: torch.baddbmm(constant(2, 5, 8), constant(2, 5, 3), x, beta=2.0, alpha=-1.0), LINE
    ),
    "addmv, a random vector": Setting("addmv", lambda x: torch.addmv(constant(3), constant(3, 5), x, alpha=3), (5,)),
    "addr, a random summand": Setting("addr", lambda x: torch.addr(x, constant(4), constant(6), beta=3)),
    "addcmul, a random summand": Setting("addcmul", lambda x: torch.addcmul(x, constant(4, 6), constant(6), value=2)),
    "addcmul, second factor": Setting("addcmul", lambda x: torch.addcmul(constant(6), constant(4, 6), x, value=-2)),
    "bilinear, first": Setting("bilinear", lambda x: F.bilinear(x, constant(4, 3), constant(2, 6, 3), constant(2))),
    "bilinear, weight": Setting("bilinear", lambda x: F.bilinear(constant(5, 3), constant(5, 8), x), LINE),
    "bilinear, bias": Setting(
        "bilinear", lambda x: F.bilinear(constant(2, 3), constant(2, 4), constant(5, 3, 4), x), (5,)
    ),
    "bilinear, second and bias": Setting(
        "bilinear", lambda x: F.bilinear(constant(4, 3), x, constant(4, 3, 6), other(x)[:, 0])
    ),
    "einsum, one factor": Setting("einsum", lambda x: torch.einsum("bij->jb", x), LINE),
    "einsum, a diagonal": Setting("einsum", lambda x: torch.einsum("ii->i", x), (4, 4)),
    "einsum, a trace": Setting("einsum", lambda x: torch.einsum("ii", x), (4, 4)),
    "einsum, private letters": Setting("einsum", lambda x: torch.einsum("ij,k->k", x, constant(3))),
    "einsum, private letters of the other": Setting("einsum", lambda x: torch.einsum("ij,jk->i", x, constant(6, 3))),
    "einsum, three factors": Setting(
        "einsum", lambda x: torch.einsum("ij,jk,kl->il", x, constant(6, 3), constant(3, 2))
    ),
    "einsum, the last of three": Setting(
        "einsum", lambda x: torch.einsum("ki,kl,ij->lj", constant(3, 4), constant(3, 2), x)
    ),
    "einsum, a list": Setting("einsum", lambda x: torch.einsum("ij,kj", [constant(2, 6), x])),
    "einsum, a diagonal of the plain": Setting("einsum", lambda x: torch.einsum("ii,ij->j", constant(4, 4), x)),
    "einsum, a length of one": Setting("einsum", lambda x: torch.einsum("ij,jk->ik", x, constant(3, 2)), (4, 1)),
    "einsum, an ellipsis": Setting("einsum", lambda x: torch.einsum("...ij,jk->...ki", x, constant(8, 2)), LINE),
    # convolutions
    "conv1d, same, even": Setting("conv1d", lambda x: F.conv1d(x, constant(2, 3, 4), padding="same"), LINE),
    "conv1d, same, dilated": Setting(
        "conv1d", lambda x: F.conv1d(x, constant(2, 3, 2), padding="same", dilation=3), LINE
    ),
    "conv1d, valid": Setting("conv1d", lambda x: F.conv1d(x, constant(2, 3, 3), padding="valid", stride=2), LINE),
    "conv1d, short of the end": Setting("conv1d", lambda x: F.conv1d(x, constant(2, 3, 2), stride=3), LINE),
    "conv1d, dilated in groups": Setting(
        "conv1d", lambda x: F.conv1d(x, constant(6, 1, 3), None, 2, 2, 2, groups=3), LINE
    ),
    "conv1d, far padding": Setting("conv1d", lambda x: F.conv1d(x, constant(2, 3, 2), padding=4, stride=3), LINE),
    "conv1d, without a batch": Setting("conv1d", lambda x: F.conv1d(x, constant(2, 3, 3)), (3, 8)),
    "conv2d, uneven": Setting(
        "conv2d", lambda x: F.conv2d(x, constant(2, 1, 2, 3), None, (2, 1), (1, 0), (1, 2), 2), SMALL
    ),
    "conv2d, same": Setting("conv2d", lambda x: F.conv2d(x, constant(2, 2, 2, 3), None, 1, "same", (3, 2)), SMALL),
    "conv2d, short of the end": Setting("conv2d", lambda x: F.conv2d(x, constant(1, 2, 2, 2), stride=(4, 3)), SMALL),
    "conv2d, a random kernel": Setting(
        "conv2d", lambda x: F.conv2d(constant(2, 2, 7, 8), x, constant(1), (2, 3), (1, 2), (1, 2)), (1, 2, 2, 3)
    ),
    "conv2d, a random kernel in groups": Setting(
        "conv2d", lambda x: F.conv2d(constant(2, 6, 5, 4), x, None, 1, "same", groups=2), (4, 3, 2, 2)
    ),
    "conv2d, kernel and bias": Setting(
        "conv2d", lambda x: F.conv2d(constant(1, 2, 4, 4), x, other(x)[:, 0, 0, 0]), (2, 2, 2, 2)
    ),
    "conv2d, input and bias": Setting(
        "conv2d", lambda x: F.conv2d(x, constant(5, 2, 3, 3), other(x)[0, 0, :, 0]), SMALL
    ),
    "conv1d, a kernel on no batch": Setting("conv1d", lambda x: F.conv1d(constant(3, 8), x), (2, 3, 3)),
    "conv2d, a random bias": Setting("conv2d", lambda x: F.conv2d(constant(1, 2, 4, 4), constant(5, 2, 2, 2), x), (5,)),
    "conv3d, strides": Setting(
        "conv3d", lambda x: F.conv3d(x, constant(2, 1, 2, 1, 3), None, (2, 3, 1), (1, 0, 1), groups=2), VOLUME
    ),
    "conv_transpose1d, output padding": Setting(
        "conv_transpose1d", lambda x: F.conv_transpose1d(x, constant(3, 2, 3), constant(2), 3, 1, 2), LINE
    ),
    "conv_transpose1d, far padding": Setting(
        "conv_transpose1d", lambda x: F.conv_transpose1d(x, constant(3, 2, 4), None, 2, 3, dilation=2), LINE
    ),
    "conv_transpose1d, without a batch": Setting(
        "conv_transpose1d", lambda x: F.conv_transpose1d(x, constant(3, 2, 3), stride=2), (3, 4)
    ),
    "conv_transpose2d, groups": Setting(
        "conv_transpose2d",
        lambda x: F.conv_transpose2d(x, constant(2, 3, 2, 3), None, (2, 3), 1, (1, 0), 2, (1, 2)),
        SMALL,
    ),
    "conv_transpose2d, a random kernel": Setting(
        "conv_transpose2d",
        lambda x: F.conv_transpose2d(constant(2, 4, 3, 2), x, None, (2, 3), (1, 0), (1, 2), 2, (1, 2)),
        (4, 3, 2, 2),
    ),
    "conv_transpose1d, a kernel on no batch": Setting(
        "conv_transpose1d", lambda x: F.conv_transpose1d(constant(2, 5), x), (2, 3, 3)
    ),
    "conv_transpose3d, output padding": Setting(
        "conv_transpose3d",
        lambda x: F.conv_transpose3d(x, constant(2, 1, 2, 1, 2), None, 2, 0, (1, 0, 1)),
        (1, 2, 2, 2, 2),
    ),
    # averages over windows
    **{
        f"avg_pool2d {settings}": Setting(
            "avg_pool2d", lambda x, settings=settings: F.avg_pool2d(x, **settings), (2, 1, 6, 7)
        )
        for settings in (
            {"kernel_size": 3, "ceil_mode": True},
            {"kernel_size": 2, "stride": 3},
            {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
            {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
            {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1), "divisor_override": 5},
            {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "count_include_pad": False},
            {"kernel_size": 4, "stride": 3, "ceil_mode": True, "divisor_override": 7},
        )
    },
    "avg_pool1d, ceil": Setting("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), LINE),
    "avg_pool1d, ceil, counted": Setting("avg_pool1d", lambda x: F.avg_pool1d(x, 4, 3, 1, True), LINE),
    "avg_pool1d, without a batch": Setting("avg_pool1d", lambda x: F.avg_pool1d(x, [3], stride=[2]), (3, 8)),
    "avg_pool3d, ceil": Setting("avg_pool3d", lambda x: F.avg_pool3d(x, 3, 2, 1, True, False), VOLUME),
    "avg_pool3d, divisor": Setting("avg_pool3d", lambda x: F.avg_pool3d(x, (2, 1, 3), divisor_override=3), VOLUME),
    "adaptive_avg_pool1d, more": Setting("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 11), LINE),
    "adaptive_avg_pool2d, uneven": Setting("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (4, None)), SMALL),
    "adaptive_avg_pool2d, more": Setting("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 8)), (2, 5, 6)),
    "adaptive_avg_pool3d, uneven": Setting(
        "adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (3, 1, 2)), VOLUME
    ),
    # resampling
    **{
        f"interpolate {settings}": Setting(
            "interpolate", lambda x, settings=settings: F.interpolate(x, **settings), shape
        )
        for shape, settings in (
            (LINE, {"scale_factor": 2}),
            (LINE, {"size": 5, "mode": "nearest-exact"}),
            (LINE, {"size": 13, "mode": "linear"}),
            (LINE, {"scale_factor": 0.6, "mode": "linear", "align_corners": True}),
            (LINE, {"size": 3, "mode": "area"}),
            (SMALL, {"scale_factor": (2, 1)}),
            (SMALL, {"size": (3, 4)}),
            (SMALL, {"size": (8, 4), "mode": "bilinear"}),
            (SMALL, {"size": (8, 4), "mode": "bilinear", "align_corners": True}),
            (SMALL, {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
            (SMALL, {"scale_factor": (1.7, 0.5), "mode": "bilinear"}),
            (SMALL, {"size": (3, 2), "mode": "bilinear", "antialias": True}),
            (SMALL, {"scale_factor": 2.0, "mode": "bicubic"}),
            (SMALL, {"size": (3, 9), "mode": "bicubic", "align_corners": True}),
            (SMALL, {"size": (2, 3), "mode": "bicubic", "antialias": True}),
            (SMALL, {"size": (2, 3), "mode": "area"}),
            (VOLUME, {"size": (3, 5, 2), "mode": "trilinear"}),
            (VOLUME, {"scale_factor": (1.0, 2.0, 0.5)}),
        )
    },
    **{
        f"grid_sample {settings}": Setting(
            "grid_sample", lambda x, settings=settings: F.grid_sample(x, 1.3 * constant(1, 2, 3, 2), **settings), SMALL
        )
        for settings in (
            {"align_corners": True},
            {"align_corners": False, "padding_mode": "border"},
            {"align_corners": True, "padding_mode": "border"},
            {"align_corners": False, "padding_mode": "reflection"},
            {"align_corners": True, "padding_mode": "reflection"},
            {"mode": "nearest", "align_corners": False},
            {"mode": "nearest", "align_corners": True, "padding_mode": "border"},
            {"mode": "nearest", "align_corners": False, "padding_mode": "reflection"},
        )
    },
    "grid_sample of a volume": Setting(
        "grid_sample", lambda x: F.grid_sample(x, 1.3 * constant(1, 2, 1, 3, 3), align_corners=False), VOLUME
    ),
    "grid_sample of a volume, nearest": Setting(
        "grid_sample",
        lambda x: F.grid_sample(x, 1.3 * constant(1, 2, 1, 3, 3), "nearest", "border", align_corners=False),
        VOLUME,
    ),
    "fold, overlapping": Setting(
        "fold", lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=(1, 2), dilation=(2, 1)), (1, 6, 12)
    ),
    "max_unpool2d of windows that overlap": Setting(
        "max_unpool2d", lambda x: F.max_unpool2d(x, index(1, 1, 3, 3, below=7), 2), (1, 1, 3, 3)
    ),
    # normalization
    "batch_norm without weights": Setting(
        "batch_norm", lambda x: F.batch_norm(x, constant(6), 2 + constant(6), eps=0.1)
    ),
    "batch_norm in 3d": Setting(
        "batch_norm", lambda x: F.batch_norm(x, constant(2), 2 + constant(2), None, constant(2), False), VOLUME
    ),
    # rows of a table
    "embedding, a row of padding": Setting("embedding", lambda x: F.embedding(index(2, 5, below=4), x, padding_idx=1)),
    "embedding, by frequency": Setting(
        "embedding", lambda x: F.embedding(index(2, 5, below=4), x, scale_grad_by_freq=True)
    ),
    "embedding_bag, sums": Setting("embedding_bag", lambda x: F.embedding_bag(index(2, 3, below=4), x, mode="sum")),
    "embedding_bag, offsets": Setting(
        "embedding_bag", lambda x: F.embedding_bag(index(4, below=4), x, torch.tensor([0, 1, 1]))
    ),
    "embedding_bag, last offset": Setting(
        "embedding_bag",
        lambda x: F.embedding_bag(index(4, below=4), x, torch.tensor([0, 3, 4]), mode="sum", include_last_offset=True),
    ),
    "embedding_bag, padding": Setting(
        "embedding_bag", lambda x: F.embedding_bag(index(2, 3, below=4), x, padding_idx=2)
    ),
    "embedding_bag, weights": Setting(
        "embedding_bag",
        lambda x: F.embedding_bag(index(2, 3, below=4), x, mode="sum", per_sample_weights=constant(2, 3)),
    ),
    "embedding_bag, random weights": Setting(
        "embedding_bag",
        lambda x: F.embedding_bag(index(2, 3, below=4), constant(4, 6), mode="sum", per_sample_weights=x),
        (2, 3),
    ),
    "embedding_bag, random weights at offsets": Setting(
        "embedding_bag",
        lambda x: F.embedding_bag(
            index(6, below=4), constant(4, 6), torch.tensor([0, 2]), mode="sum", per_sample_weights=x, padding_idx=2
        ),
        (6,),
    ),
    # writing
    "setitem, a value": Setting("setitem", lambda x: _set(x.clone(), (slice(1, 3), 2), other(x)[2:, 0])),
    "setitem, one for several": Setting("setitem", lambda x: _set(x.clone(), slice(1, 3), other(x)[0])),
    "setitem, a mask": Setting("setitem", lambda x: _set(x.clone(), constant(4, 6) > 0, 0.5)),
    "copy, one for several": Setting("copy", lambda x: x.clone().copy_(other(x)[0])),
    "scatter, a value": Setting("scatter", lambda x: x.scatter(1, index(4, 2, below=6), other(x))),
    "scatter, overwritten": Setting("scatter", lambda x: x.scatter(1, index(4, 2, below=1), other(x))),
    "scatter, added": Setting("scatter", lambda x: x.scatter(1, index(4, 3, below=2), other(x), reduce="add")),
    "scatter, a number": Setting("scatter", lambda x: x.scatter(1, index(4, 2, below=6), 2.0)),
    "scatter_add, a value": Setting("scatter_add", lambda x: x.scatter_add(1, index(4, 3, below=2), other(x))),
    "scatter_add into plain": Setting(
        "scatter_add", lambda x: torch.scatter_add(constant(4, 6), 1, index(4, 6, below=3), x)
    ),
    "index_add, a value": Setting("index_add", lambda x: x.index_add(0, index(4, below=2), other(x), alpha=-3)),
    "index_copy, a value": Setting("index_copy", lambda x: x.index_copy(0, index(2, below=4), other(x)[:2])),
    "index_put, a value": Setting("index_put", lambda x: x.index_put((index(2, below=4),), other(x)[0])),
    "index_put, added": Setting("index_put", lambda x: x.index_put((index(5, below=3),), other(x)[0], accumulate=True)),
    "index_put, all added": Setting(
        "index_put", lambda x: x.index_put((index(4, below=2),), other(x), accumulate=True)
    ),
    "index_put, added to plain": Setting(
        "index_put", lambda x: torch.index_put(constant(4, 6), (index(5, below=3),), x[0], accumulate=True)
    ),
    "masked_scatter, a value": Setting("masked_scatter", lambda x: x.masked_scatter(constant(4, 6) > 0, other(x))),
    "slice_scatter, a value": Setting("slice_scatter", lambda x: torch.slice_scatter(x, other(x)[:, 2:4], 1, 1, 3)),
    "select_scatter into plain": Setting("select_scatter", lambda x: torch.select_scatter(constant(4, 2, 6), x, 1, 1)),
    "diagonal_scatter, a value": Setting(
        "diagonal_scatter", lambda x: torch.diagonal_scatter(x, other(x)[:, 0], 1), (4, 5)
    ),
    # moving
    "getitem, indices": Setting("getitem", lambda x: x[torch.tensor([2, 0])]),
    "getitem, repeated": Setting("getitem", lambda x: x[:, torch.tensor([2, 0, 2])]),
    "getitem, a list": Setting("getitem", lambda x: x[[1, 1]]),
    "getitem, counted from both ends": Setting("getitem", lambda x: x[torch.tensor([3, -1])]),
    "getitem, pairs": Setting("getitem", lambda x: x[torch.tensor([1, 1]), torch.tensor([0, 1])]),
    "getitem, a mask": Setting("getitem", lambda x: x[constant(4, 6) > 0]),
    "getitem, everything": Setting("getitem", lambda x: x[None, ..., ::2]),
    "gather, repeated": Setting("gather", lambda x: x.gather(1, index(4, 3, below=2))),
    "index_select, repeated": Setting("index_select", lambda x: x.index_select(0, torch.tensor([0, 3, 0]))),
    "take, repeated": Setting("take", lambda x: x.take(torch.tensor([0, -1, 23]))),
    "masked_select by a mask": Setting("masked_select", lambda x: x.masked_select(constant(4, 6) > 0)),
    "where, one for several": Setting("where", lambda x: torch.where(constant(4, 6) > 0, x[0], 0.5)),
    "where, a number": Setting("where", lambda x: torch.where(constant(4, 6) > 0, 0.5, x)),
    "masked_fill, one for several": Setting("masked_fill", lambda x: x[0].masked_fill(constant(4, 6) > 0, 0.5)),
    "masked_fill, a random filling": Setting(
        "masked_fill", lambda x: x.masked_fill(constant(4, 6) > 0, other(x)[0, 0])
    ),
    "pad, replicate": Setting("pad", lambda x: F.pad(x, (2, 1), "replicate"), LINE),
    "pad, replicate in 2d": Setting("pad", lambda x: F.pad(x, (2, 1, 0, 1), "replicate"), SMALL),
    "pad, reflect in 2d": Setting("pad", lambda x: F.pad(x, (2, 1, 0, 1), "reflect"), SMALL),
    "pad, circular": Setting("pad", lambda x: F.pad(x, (2, 1, 3, 0), "circular"), SMALL),
    "pad, cropped": Setting("pad", lambda x: F.pad(x, (-1, 2, 1, -2)), SMALL),
    "cat with itself": Setting("cat", lambda x: torch.cat([x, x])),
    "stack with itself": Setting("stack", lambda x: torch.stack([x, constant(4, 6), x])),
    "stack along the middle": Setting("stack", lambda x: torch.stack([x, constant(4, 6), other(x)], 1)),
    "expand in the middle": Setting("expand", lambda x: x[:, None].expand(4, 3, 6)),
    "repeat in blocks": Setting("repeat", lambda x: x.repeat(2, 1, 3)),
    "repeat_interleave, unequal": Setting(
        "repeat_interleave", lambda x: x.repeat_interleave(torch.tensor([0, 2, 1, 1]), 0)
    ),
    "unfold of windows": Setting("unfold", lambda x: F.unfold(x, (2, 3), (1, 2), 1, (2, 1)), SMALL),
    "unfold, overlapping": Setting("unfold", lambda x: x.unfold(1, 3, 1)),
    "as_strided, overlapping": Setting("as_strided", lambda x: x.as_strided((5, 3), (1, 2), 1)),
    "diagonal, off": Setting("diagonal", lambda x: x.diagonal(1, 1, 2), LINE),
    "diag of a vector": Setting("diag", lambda x: torch.diag(x, 1), (3,)),
    "tril, off": Setting("tril", lambda x: x.tril(-1), LINE),
    "split in pieces": Setting("split", lambda x: x.split(4, 1)),
    "without gradients": Setting("requires_grad_", lambda x: x.requires_grad_(False)),
    "packed": Setting(
        "_pack_padded_sequence",
        lambda x: torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1]), batch_first=True),
        (3, 4, 2),
    ),
    "packed and padded": Setting(
        "_pad_packed_sequence",
        lambda x: torch.nn.utils.rnn.pad_packed_sequence(
            torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1]), batch_first=True),
            padding_value=0.5,
            total_length=6,
        ),
        (3, 4, 2),
    ),
    "heads": Setting("permute", lambda x: x.permute(0, 2, 1, 3), HEADS),
    "channels moved": Setting("movedim", lambda x: x.movedim(1, -1), IMAGE),
}


def _set(x: Any, at: Any, new: Any) -> Any:
    x[at] = new
    return x
