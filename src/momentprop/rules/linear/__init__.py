"""Rules of operations that move elements, and of linear and bilinear maps."""
