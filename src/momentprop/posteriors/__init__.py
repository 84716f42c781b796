"""Models with random weights, made of the posteriors that other libraries have found.

None of these libraries is needed to import this package: what they made is read by its attributes.
"""

from momentprop.posteriors.laplace import from_laplace
from momentprop.posteriors.swag import from_swag
from momentprop.posteriors.variational import from_variational

__all__ = ["from_laplace", "from_swag", "from_variational"]
