"""Models with random weights, made from the posteriors of other libraries.

None of these libraries is needed to import this package: it reads the attributes of what they made.
"""

from momentprop.posteriors.laplace import from_laplace
from momentprop.posteriors.swag import from_swag
from momentprop.posteriors.variational import from_variational

__all__ = ["from_laplace", "from_swag", "from_variational"]
