"""The defects that adversarial tests once found, each with a reproduction that must stay mended.

A row is a function: it runs the reproduction, asserts what is right, and returns what it measured, for the table of
`python -m tests.reliability`.
"""
