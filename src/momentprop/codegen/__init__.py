"""Kernels compiled from their own formulas: recorded once, printed as C or Triton, and built behind the scenes.

A kernel is written once, in torch. `formula` records the operations that it makes. `printed_c` and `printed_triton`
print them as one loop over the elements or the rows, which `c_library` and `triton_launch` build and call. Rows of a
`contraction` are made and used one by one in C (`printed_contraction`). `programs` knows which kernels have been built,
and `worker` builds the others behind the scenes, by `processes` that end in time; `cache` is the folder where they are
kept. Until then, and where there is no compiler, the formula itself runs.
"""
