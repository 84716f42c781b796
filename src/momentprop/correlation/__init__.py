r"""Follows the correlations that an AP2 pass ignores.

For jointly normal $X$, $Y$ and any function, $\mathrm{Cov}(f(X), Y) = E f'(X)\,\mathrm{Cov}(X, Y)$, and $E f'$ is the
derivative of the result's mean by the input's mean. So every result splits into a part that moves linearly with its
inputs and an uncorrelated *rest*: new noise, *born* at that unit. The covariance of the outputs is
$\sum G\,\mathrm{diag}(r)\,G^\top$ over all places of birth, with the derivatives $G$ of the outputs along the means and
the variances $r$ of the rests. It is exact for linear networks.

* `births`: noise, where it is born, and what it adds to the covariance of the outputs.
* `rests`: the variance of each operation's rest.
* `gates`: derivatives along the means only.
* `following`, `within`: the watcher that collects births in a pass, and values inside a model.
* `shared_weights`: weights, each one source of noise for all items.
* `shielded`: watchers that correct variances in such a pass.
* `adjoint`, `items`: one backward pass for each output, and where a batch's items lie.
* `outputs`, `graph`: outputs as `Joint` values; what a graph depends on and holds.
* `linearly`: the delta method. `refusals`: what cannot be followed.
* `probes`: the watcher that carries random directions along and corrects means and variances by them.
* `carrying`, `draws`: how probes pass an operation, and their random numbers.
* `pooling`, `layout`: what probes say about variances; which units an operation mixes, and which form a channel.
* `bending`: what probes say about rests that depend on each other.
"""
