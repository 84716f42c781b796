"""The place in a model where an operation runs, for messages."""

import sys
from types import FrameType

import torch
from torch import nn


def where() -> str:
    """Return the path of the running module, read from the live frames, which costs nothing until an error needs it."""
    if torch.compiler.is_compiling():
        return "the place shown by the user stack"
    frame: FrameType | None = sys._getframe(1)
    modules: list[nn.Module] = []
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and not any(owner is module for module in modules):
            modules.append(owner)
        frame = frame.f_back
    if not modules:
        return "top level"
    inner, outer = modules[0], modules[-1]
    if inner is outer:
        return f"module {type(inner).__name__}"
    path = next((name for name, module in outer.named_modules() if module is inner), "?")
    return f"module {path!r} ({type(inner).__name__}) of {type(outer).__name__}"
