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
    until: str = ""  # the branch that mends it

    def allows(self, name: str, verdict: str, text: str, against_draws: bool) -> bool:
        """Return whether a call may end so; what is refused without variance may be refused with it."""
        if verdict in ("different", "unclear") and against_draws != self.against_draws:
            return False
        if verdict != self.verdict or (self.operators != "*" and name not in self.operators.split()):
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
    for name in "binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss kl_div hinge_embedding_loss "
    "cosine_embedding_loss".split()
)
_NORMS = (
    "norm norm.nuc norm.inf linalg.norm linalg.norm.subgradients_at_zero linalg.vector_norm "
    "nn.functional.pairwise_distance nn.functional.normalize"
)

EXCEPTIONS: tuple[Exception_, ...] = (
    # what is random, or has no contents
    Exception_(_NOISE, "different", r"variance \d", "Noise makes a certain value random; the draws check its moments."),
    Exception_(
        "empty_like new_empty new_empty_strided", "different", "largest element", "The elements are not initialized."
    ),
    # what a random value does not have
    Exception_(_POOLS, "refused", "cannot return indices", "Random maxima have no indices."),
    Exception_(
        "max.reduction_with_dim min.reduction_with_dim", "different", "NoneType", "Random extremes have no indices."
    ),
    Exception_(
        "log_softmax log_softmax.with_dtype",
        "different",
        r"(shape|by .* largest)",
        "`log_softmax` of a value is the class posterior, with the classes along the last dimension.",
    ),
    Exception_(
        "div.trunc_rounding div.floor_rounding", "refused", "rounding_mode", "Rounding a random value has no rule."
    ),
    # arguments that have to be certain, or are of an order that has no rule
    Exception_("clamp clamp_max clamp_min", "refused", "certain bounds", "The bounds of `clamp` must be certain."),
    Exception_("pow", "refused", "exponent must be|exponent of a random", "`pow` takes one random side, and a number."),
    Exception_("__rpow__", "refused", "exponent must be|must be positive", "`pow` takes a positive base."),
    Exception_(_LOSSES, "missing", "random `target`|'eq' on a random", "The targets of these losses must be certain."),
    Exception_("nn.functional.batch_norm", "missing", "random weight", "Random statistics have no rule."),
    Exception_(
        "heaviside nn.functional.prelu", "missing", "several random", "The slope and the value at zero are certain."
    ),
    Exception_(
        "nn.functional.grid_sample", "missing", "random places|bicubic", "Only plain places, and no cubic weights."
    ),
    Exception_("scatter", "missing", "reduce=", "Products, means and extremes of scattered elements have no rule."),
    Exception_(
        "nn.functional.embedding nn.functional.embedding_bag",
        "missing",
        "max_norm|mode='max'",
        "Rescaling a random table and the maximum of its rows have no rule.",
    ),
    Exception_(_NORMS, "refused", "orders 1, 2 and inf|Frobenius|p=1 or p=2", "Norms of other orders have no rule."),
    # how Python spells it
    Exception_("__rdiv__", "unclear", "no attribute '__rdiv__'", "Python 3 spells it `__rtruediv__`; nobody calls it."),
    Exception_("__rpow__", "different", "NotImplementedType", "A tensor hands `value ** tensor` back to the value."),
)
