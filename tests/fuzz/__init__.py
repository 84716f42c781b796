"""A fuzzer: random inputs, programs, models and interrupts, without end, and nothing may be silently wrong.

`make fuzz` runs it for ten minutes; `python -m tests.fuzz --help` lists the options. Each module of this package has a
function `trial(random, device)`: it makes one random trial and returns what it counted. A trial depends on the seed and
on its own number only, so that each failure can be repeated alone, by the command that the report prints.
"""
