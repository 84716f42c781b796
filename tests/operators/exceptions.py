"""What may differ from torch, and why: one row for each reason."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Exception_:  # noqa: N801 (the builtin has the name)
    """Calls that may differ: of some operators, with one verdict, whose description matches a pattern."""

    operators: str  # their names, separated by blanks; `*` for all
    verdict: str
    pattern: str
    reason: str
    against_draws: bool = False

    def allows(self, name: str, verdict: str, text: str, against_draws: bool) -> bool:
        """Return whether a call may end so; what is refused without variance may be refused with it."""
        if verdict in ("different", "unclear") and against_draws != self.against_draws:
            return False
        if verdict not in self.verdict.split("|") or (self.operators != "*" and name not in self.operators.split()):
            return False
        return re.search(self.pattern, text) is not None

    def __str__(self) -> str:
        return f"{self.operators[:40]} {self.verdict} {self.pattern[:40]}"


_NOISE = (
    "nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout "
    "nn.functional.feature_alpha_dropout.with_train nn.functional.rrelu nn.functional.scaled_dot_product_attention "
    "nn.functional.multi_head_attention_forward"
)
_POOLS = " ".join(f"nn.functional.{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
_LOSSES = " ".join(
    f"nn.functional.{name}"
    for name in "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy linear_cross_entropy "
    "linear_cross_entropy.chunked linear_cross_entropy.chunked_none soft_margin_loss multilabel_soft_margin_loss "
    "multi_margin_loss multilabel_margin_loss poisson_nll_loss kl_div hinge_embedding_loss cosine_embedding_loss "
    "gaussian_nll_loss".split()
)
_NORMS = (
    "norm norm.nuc norm.inf linalg.norm linalg.norm.subgradients_at_zero linalg.vector_norm "
    "nn.functional.pairwise_distance nn.functional.normalize"
)
_STATISTICS = (
    "var var.unbiased std std.unbiased var_mean var_mean.unbiased std_mean std_mean.unbiased linalg.norm "
    "linalg.norm.subgradients_at_zero"
)
_TRIPLETS = "nn.functional.triplet_margin_loss nn.functional.triplet_margin_with_distance_loss"

_LASTING: tuple[Exception_, ...] = (
    # what is random, or has no contents
    Exception_(_NOISE, "different", r"variance \d", "Noise makes a certain value random; the draws check its moments."),
    Exception_(
        "empty_like new_empty new_empty_strided",
        "different|rounding",
        "largest element",
        "The elements are not initialized.",
    ),
    # what a random value does not have
    Exception_(_POOLS, "refused", "cannot return the indices of random maxima", "Random maxima have no indices."),
    Exception_(
        "max.reduction_with_dim min.reduction_with_dim", "different", "NoneType", "Random extremes have no indices."
    ),
    Exception_(
        "log_softmax log_softmax.with_dtype",
        "different",
        "(shape|by .* largest)",
        "`log_softmax` of a value is the class posterior, with the classes along the last dimension.",
    ),
    Exception_(
        "div.trunc_rounding div.floor_rounding", "refused", "rounding_mode", "Rounding a random value has no rule."
    ),
    # arguments that have to be certain, or are of an order that has no rule
    Exception_("clamp clamp_max clamp_min", "refused", "bounds of `clamp`", "The bounds of `clamp` must be certain."),
    Exception_("pow", "refused", "random exponent|exponent of a random", "`pow` takes one random side, and a number."),
    Exception_("__rpow__", "refused", "random exponent", "`pow` takes a positive base."),
    Exception_(
        _LOSSES,
        "missing",
        "random `(target|weight|pos_weight)`|'(eq|ne|__ge__)' on a random",
        "The targets and weights of these losses must be certain.",
    ),
    Exception_(
        "nn.functional.batch_norm nn.functional.instance_norm",
        "missing",
        "random (weight|running)",
        "Random running statistics have no rule.",
    ),
    Exception_(
        "heaviside", "missing", "several random|random `values`", "The value of a step at zero must be certain."
    ),
    Exception_(
        "nn.functional.grid_sample", "missing", "random grid|bicubic", "Only plain places, and no cubic weights."
    ),
    Exception_("scatter", "missing", "reduce=", "Products, means and extremes of scattered elements have no rule."),
    Exception_(
        "nn.functional.embedding nn.functional.embedding_bag",
        "missing",
        "max_norm|mode='max'",
        "Rescaling a random table and the maximum of its rows have no rule.",
    ),
    Exception_(_NORMS, "refused", "orders 1, 2 and inf|Frobenius|p=1 or p=2", "Norms of other orders have no rule."),
    Exception_(
        "nn.functional.multi_head_attention_forward",
        "refused",
        "_none_or_dtype",
        "Torch itself refuses a mask that is not a tensor.",
    ),
    # how Python spells it
    Exception_("__rdiv__", "unclear", "no attribute '__rdiv__'", "Python 3 spells it `__rtruediv__`; nobody calls it."),
    Exception_(
        "__rdiv__", "refused", "no attribute '__rdiv__'", "Python 3 spells it `__rtruediv__`; nobody calls it.", True
    ),
    Exception_("__rpow__", "different", "NotImplementedType", "A tensor hands `value ** tensor` back to the value."),
    # rounding
    Exception_(
        "div.no_rounding_mode true_divide __rdiv__ addcdiv",
        "rounding",
        r"random \((0, )?(1, )?[12],?\)",
        "By a random divisor it is a product with the reciprocal, which is not linear.",
    ),
    Exception_(
        "linalg.multi_dot",
        "rounding",
        "element",
        "Torch takes the cheapest order, the rule goes from left to right.",
    ),
    Exception_(
        "nn.functional.softmin nn.functional.softmin.with_dtype", "rounding", "element", "It is made of `softmax`."
    ),
    Exception_(
        "nn.functional.scaled_dot_product_attention",
        "different",
        r"float32 .*by \d\.\de-06 of the largest",
        "Scores of some hundreds, rounded in another order: in float32 torch itself is as far off.",
    ),
    # edges that torch itself treats as it likes
    Exception_(
        "nn.functional.batch_norm",
        "unclear",
        r"\(float\d+\[0\],",
        "A batch of no elements has no dimension of channels.",
    ),
    Exception_(
        "amax amin", "accepted", "only tensors with up to 64 dims", "A maximum may be over more than 64 dimensions."
    ),
)

_DRAWN: tuple[Exception_, ...] = (
    Exception_(
        "linalg.multi_dot",
        "different",
        "deviation times",
        "Of more than two factors, the elements of a product are taken as independent, as the rule states.",
        True,
    ),
    Exception_(
        "nn.functional.embedding_bag",
        "different",
        r"random \(0,.*deviation times",
        "The rule is for rows that occur once in a bag, as it states; these occur several times.",
        True,
    ),
    Exception_("topk sort", "different", "mean off", "The choice is made by the means, with a warning.", True),
    Exception_(
        "nn.functional.group_norm",
        "different",
        "eps=-0.5",
        "With a negative `eps` the result has a pole where the variance of a group is `-eps`.",
        True,
    ),
    Exception_(
        "nn.functional.margin_ranking_loss",
        "different",
        r"deviation 1.0 .*random \(0, 1, 2\) .*mean off",
        "With a random target the hinge is of a product, which is taken as normal.",
        True,
    ),
    Exception_(
        " ".join(
            f"nn.functional.{name}"
            for name in "cross_entropy linear_cross_entropy linear_cross_entropy.chunked "
            "linear_cross_entropy.chunked_none binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss "
            "multilabel_soft_margin_loss gaussian_nll_loss".split()
        ),
        "different",
        "mean off by",
        "The loss is that of the mean probability, not the mean of the loss.",
        True,
    ),
    Exception_(
        "nn.functional.normalize",
        "different",
        "p=1",
        "The norm of order 1 is taken as lognormal; off by up to 0.25 for 8 units, as the rule states.",
        True,
    ),
    Exception_(
        "nn.functional.cosine_similarity",
        "different",
        r"float64\[\], float64\[\]|float64\[5, 2\]|float64\[2, 1, 3\]",
        "The rule states its error for vectors of at least 32 elements; these have at most 3.",
        True,
    ),
    Exception_(
        _TRIPLETS,
        "different",
        r"random \(0,( 1, 2)?\) .*mean off",
        "Both distances have the random anchor, as if independent; a random positive or negative alone agrees.",
        True,
    ),
    Exception_(
        "nn.functional.batch_norm", "different", "training=True", "Batch statistics are taken as certain.", True
    ),
    Exception_(
        "nn.functional.multi_head_attention_forward",
        "different",
        "(mean off|deviation times)",
        "Projections mix the elements of an argument, taken as independent; scores have deviations of hundreds.",
        True,
    ),
)

_OUT = "masked_select gather index_select take cat"
_EDGES: tuple[Exception_, ...] = (
    Exception_("addbmm", "refused", "^in place", "Torch lets `addbmm_` change its shape."),
    Exception_(_OUT, "refused", "out=", "A random result does not fit into a plain `out`."),
    Exception_("gather", "accepted", "out=", "`out` may be of another type."),
    Exception_(
        f"{_STATISTICS} norm linalg.vector_norm",
        "refused",
        "no elements",
        "A statistic of no elements is refused, where torch gives NaN or zero.",
    ),
    Exception_(
        "log_softmax log_softmax.with_dtype",
        "refused",
        "needs a dimension of classes",
        "A class posterior needs a dimension of classes.",
    ),
)

EXCEPTIONS = _LASTING + _EDGES + _DRAWN
