r"""Follows the correlations that a pass of AP2 ignores.

For jointly normal $X$, $Y$ and any function, $\mathrm{Cov}(f(X), Y) = E f'(X)\,\mathrm{Cov}(X, Y)$, and $E f'$ is the
derivative of the result's mean by the input's mean. So every result splits into a part that moves linearly with its
inputs and a *rest* that is uncorrelated with it: new noise, *born* at that unit. The covariance of the outputs is
$\sum G\,\mathrm{diag}(r)\,G^\top$ over all places of birth, with the derivatives $G$ of the outputs along the means and
the variances $r$ of the rests. It is exact for linear networks.

* `births`: what is born where, and what it adds to the covariance of the outputs.
* `rests`: the variance of the rest of each operation.
* `gates`: derivatives along the means only.
* `following`, `within`: the watcher that collects births in a pass, and values that live inside a model.
* `shared_weights`: weights, each of which is one source of noise for all items.
* `shielded`: watchers that correct variances in such a pass.
* `adjoint`, `items`: one backward pass for each output, and where the items of a batch lie.
* `outputs`, `graph`: outputs as `Joint` values; what a graph depends on and holds.
* `linearly`: the delta method. `refusals`: what cannot be followed.
* `probes`: the watcher that lets random directions travel along, and corrects means and variances by them.
* `carrying`, `draws`: how probes pass an operation, and their random numbers.
* `pooling`, `layout`: what they say of variances; which units an operation mixes, and which are of one channel.
* `bending`: what they say of rests that depend on each other.
"""
