"""Kernels compiled from their own formulas: recorded once, printed as C or Triton, and built in the background.

A kernel is written once, in torch. `formula` records the operations that it makes. `printed_c` and `printed_triton`
print them as one loop over the elements or the rows, which `c_library` and `triton_launch` build and call. C makes and
uses the rows of a `contraction` one by one (`printed_contraction`). `programs` knows which kernels are built, and
`worker` builds the others in the background, in `processes` with a time limit; `cache` is the folder that keeps them.
Until a kernel is built, and where there is no compiler, the formula itself runs.
"""
