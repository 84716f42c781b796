"""Models with random weights, made of the posteriors that other libraries have found.

None of these libraries is needed to import this package: what they made is read by its attributes.
"""

from momentprop.posteriors.laplace import from_laplace as from_laplace
from momentprop.posteriors.swag import from_swag as from_swag
from momentprop.posteriors.variational import from_variational as from_variational
