"""Imports go one way: each part of the library uses only the parts below it."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "momentprop"

LAYERS = [  # from bottom to top; a part imports from lower layers only
    ("errors", "markdown", "distributions", "randomness", "renamed"),
    ("torch_compat", "files"),
    ("dispatch", "codegen", "undoing"),
    ("kernels",),
    ("noise", "paper"),
    ("values",),
    ("functional", "lognormal_model", "as_tensors", "sampling", "recording", "repeated", "stand_ins", "weights"),
    ("rules", "fallbacks", "mode", "folding"),
    ("correlation", "nn", "running", "kept_draws", "nothing_random", "given"),
    ("joint_outputs",),
    ("propagate",),
    ("checking", "normalization", "belief", "data", "built_kernels", "to_onnx", "posteriors"),
    ("calibration",),
    ("__init__",),
    ("training",),
    ("cli",),
    ("__main__",),
]

INSIDE_FUNCTIONS = {  # the modules that may import from the library inside a function, and why
    "cli.__init__": "the command line needs typer, and says so in one sentence where that is missing",
}


class Import(NamedTuple):
    """One module imports another; both are named without `momentprop`, as in `kernels.fuse`."""

    importer: str
    imported: str
    line: int
    inside_function: bool

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported} in line {self.line}"

    @property
    def parts(self) -> tuple[str, str]:
        """The top-level modules or packages of both."""
        return self.importer.split(".")[0], self.imported.split(".")[0]


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")


PATHS = {_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}
PARTS = {name.split(".")[0] for name in PATHS}


def _imports(importer: str) -> Iterator[Import]:
    tree = TREES[importer]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        for full in _full_names(node):
            root, _, name = full.partition(".")
            if root == "momentprop":
                yield Import(importer, _module(name), getattr(node, "lineno", 0), id(node) in inside)


def _full_names(node: ast.AST) -> list[str]:
    """The names that a statement imports, in full."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        return [f"{node.module}.{name.name}" for name in node.names]
    return []


def _module(name: str) -> str:
    """The module that holds a name: the longest beginning of it that is a file."""
    while name:
        for candidate in (name, f"{name}.__init__"):
            if candidate in PATHS:
                return candidate
        name = name.rpartition(".")[0]
    return "__init__"


IMPORTS = [found for name in PATHS for found in _imports(name)]


def _on_cycles(edges: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    """What is left of a graph once all nodes without outgoing edges are removed, again and again."""
    left: dict[str, set[str]] = {}
    for start, end in edges:
        left.setdefault(end, set())
        left.setdefault(start, set()).update({end} - {start})
    while done := {node for node, ends in left.items() if not ends}:
        left = {node: ends - done for node, ends in left.items() if node not in done}
    return left


def test_every_part_of_the_library_has_its_layer() -> None:
    assert sorted(part for layer in LAYERS for part in layer) == sorted(PARTS)


def test_parts_import_from_lower_layers_only() -> None:
    height = {part: i for i, layer in enumerate(LAYERS) for part in layer}
    wrong = dict.fromkeys(str(found) for found in IMPORTS if not _goes_down(found, height))
    assert not wrong, "\n".join(wrong)


def _goes_down(found: Import, height: Mapping[str, int]) -> bool:
    importer, imported = found.parts
    return importer == imported or height.get(imported, len(LAYERS)) < height.get(importer, -1)


def test_parts_import_each_other_without_cycles() -> None:
    assert not _on_cycles(found.parts for found in IMPORTS)


def test_modules_import_each_other_without_cycles() -> None:
    assert not _on_cycles((found.importer, found.imported) for found in IMPORTS)


def test_imports_inside_functions_are_listed() -> None:
    assert {found.importer for found in IMPORTS if found.inside_function} == set(INSIDE_FUNCTIONS)


def test_the_library_does_not_import_the_experiments() -> None:
    roots = {
        name: {full.split(".")[0] for node in ast.walk(tree) for full in _full_names(node)}
        for name, tree in TREES.items()
    }
    assert not [name for name, found in roots.items() if "momentprop_experiments" in found]
