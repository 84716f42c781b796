"""The statistics of a data set, one mean and one variance for each channel, as a value that passes a network."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from momentprop.dispatch import MissingRule, where
from momentprop.values.base import may_look_at
from momentprop.values.normal import Normal

_NAMED = 8  # at most so many channels are named in an error


class Statistics(Normal):
    r"""Mean and variance of every channel over all examples of a data set and all positions: *one pixel*.

    It is made of two tensors of shape (channels,) and passes a network in place of a batch. A convolution sums its
    kernel over space, $\mu' = \sum_k w\mu$ and $\sigma'^2 = \sum_k w^2\sigma^2$; elementwise operations, dropout and
    stochastic layers act as on a `Normal`; a linear layer that takes the pixels of an image gets every channel as often
    as it expects. Inside a network it has the shape of a batch of one image of one pixel.

    >>> import torch
    >>> convolution = torch.nn.Conv2d(2, 1, 3, bias=False)
    >>> _ = torch.nn.init.constant_(convolution.weight, 0.5)
    >>> convolution(Statistics(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 4.0])))
    Statistics(loc=tensor([[[[4.5000]]]], grad_fn=<ViewBackward0>),
               variance=tensor([[[[11.2500]]]], grad_fn=<ViewBackward0>))

    `momentprop.input_statistics` estimates the statistics of a data set, and `momentprop.dataset_statistics` gives
    those at every module of a network. A channel without variance is refused.
    """

    loc: Tensor
    variance: Tensor

    refused: ClassVar[frozenset[str]] = frozenset(
        """
        _pack_padded_sequence _pad_packed_sequence adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        addbmm addmv addr as_strided baddbmm bilinear binary_cross_entropy binary_cross_entropy_with_logits
        block_diag bmm class_posterior cosine_embedding_loss cosine_similarity cross_entropy cumsum diag
        diag_embed diagflat diagonal diagonal_scatter dot einsum embedding embedding_bag fold gaussian_nll_loss
        grid_sample gru gru_cell hinge_embedding_loss huber_loss index_add index_copy index_fill index_put inner
        kl_div l1_loss linalg_multi_dot linalg_norm linalg_vector_norm linear_cross_entropy linear_posterior
        lp_pool1d lp_pool2d lp_pool3d lstm lstm_cell margin_ranking_loss masked_scatter masked_select
        max_unpool1d max_unpool2d max_unpool3d mse_loss multi_head_attention_forward multi_margin_loss
        multilabel_margin_loss multilabel_soft_margin_loss mv norm outer pairwise_distance pixel_unshuffle
        poisson_nll_loss rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell rot90 scaled_dot_product_attention
        scatter scatter_add select_scatter setitem slice_scatter smooth_l1_loss soft_margin_loss std std_mean
        take take_along_dim tensordot tril triplet_margin_loss triplet_margin_with_distance_loss triu unfold var
        var_mean vdot
        """.split()
    )

    def __init__(self, loc: Tensor | float, variance: Tensor | float, *, validate_args: bool | None = None) -> None:
        super().__init__(loc, variance, validate_args=validate_args)
        if self.loc.ndim != 1:
            raise ValueError(
                f"statistics have one mean for each channel, a shape like (3,), but loc has {tuple(self.loc.shape)}: "
                "`momentprop.input_statistics(images)` computes them"
            )
        if may_look_at(self.variance, validate_args) and not bool((self.variance > 0).all()):
            raise ValueError(
                f"{named_channels(self.variance == 0)} of zero variance: leave out what is constant in the data, or "
                "give it a small variance"
            )

    @classmethod
    def without_rule(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Say that the operation has no meaning for one pixel, or that it has no rule at all."""
        name = getattr(function, "__name__", "")
        if name.strip("_") in cls.refused or name in cls.refused:
            raise MissingRule(
                f"no Statistics rule for {name!r} at {where()}: it relates positions or examples, and the statistics "
                "of one pixel do not tell how they depend on each other"
            )
        return super().without_rule(function, args, kwargs)


class TrainingStatistics(Statistics):
    """As `Statistics`, but dropout acts on it in evaluation mode too: a network's statistics as it is trained."""


def named_channels(which: Tensor) -> str:
    """The channels that a mask marks, in words.

    >>> import torch
    >>> named_channels(torch.tensor([True, False, True]))
    'channels 0, 2 are'
    """
    indices = [str(i) for i in torch.nonzero(which).flatten().tolist()]
    if len(indices) == 1:
        return f"channel {indices[0]} is"
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return f"channels {', '.join(indices[:_NAMED])}{more} are"
