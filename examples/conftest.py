"""Leaves out the examples whose libraries are not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("lightning") else ["lightning_module.py"]
