r"""Losses of random outputs; each returns a plain tensor.

A loss that is the negative logarithm of a probability takes the marginal probability, $-\log q(y)$. These are
`cross_entropy`, `binary_cross_entropy`, `binary_cross_entropy_with_logits` and their relatives, and
`gaussian_nll_loss`. The others are *expected risks*, $E\,\ell(X, y)$: `mse_loss`, `l1_loss`, the hinge losses.
"""
