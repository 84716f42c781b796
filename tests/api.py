"""The public names of both packages with their signatures, as `tests/api.txt` keeps them.

A module is public if it defines `__all__`, and its public names are those. `python -m tests.api` renews the file after
a change that is meant.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "api.txt"
SOURCES = (ROOT / "src" / "momentprop", ROOT / "experiments" / "src" / "momentprop_experiments")


def public_modules() -> list[ModuleType]:
    """Import every module that defines `__all__`."""
    paths = sorted((path, source.parent) for source in SOURCES for path in source.rglob("*.py"))
    return [
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
        for path, root in paths
        if _has_all(path)
    ]


def _has_all(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in body)


def public_names() -> dict[str, Any]:
    """Every public name in full, with what it means."""
    return {
        f"{module.__name__}.{name}": getattr(module, name) for module in public_modules() for name in module.__all__
    }


def lines() -> Iterator[str]:
    """One line for each public name, and below a class one for each of its public members."""
    seen: dict[int, str] = {}
    for name, thing in public_names().items():
        if isinstance(thing, ModuleType):
            yield f"{name}: module"
        elif id(thing) in seen and callable(thing):
            yield f"{name}: {seen[id(thing)]}"
        else:
            seen[id(thing)] = name
            yield from _described(name, thing)


def _described(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
        yield f"class {name}{_signature(thing)}" + (f", a {bases}" if bases else "")
        for member, found in sorted(vars(thing).items()):
            if not member.startswith("_") and (function := _written(found, thing)):
                yield f"    .{member}{'' if isinstance(found, property) else _signature(function)}"
    elif callable(thing):
        yield f"{name}{_signature(thing)}"
    else:
        yield f"{name}: {type(thing).__name__}"


def _written(found: Any, owner: type) -> Any:
    """The function behind a method or a property that is written out in the class; most methods of values are made."""
    if isinstance(found, property):
        function = found.fget
    else:
        function = getattr(found, "__func__", found)
    return function if getattr(function, "__qualname__", "").startswith(f"{owner.__qualname__}.") else None


def _signature(function: Any) -> str:
    """The parameters and their defaults; annotations are left to mypy, because Python's versions print them unlike."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of an exception that Python itself builds
        return ""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<(?:function (\S+) at 0x\w+|class '([\w.]+)')>", r"\1\2", shown)


if __name__ == "__main__":
    KEPT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
