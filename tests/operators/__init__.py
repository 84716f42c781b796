"""Torch's own operator tests as ours.

Torch ships sample inputs for all its operators, `op_db`. Every operator that has a rule runs on them: without variance
it must give what torch gives, and with variance what many draws give. `exceptions` lists what may differ, and why;
`python -m tests.operators` prints how many agree.
"""
