"""Run the examples of README.md and docs/*.md as doctests, except those that need a missing package.

`python -I tools/doc_examples.py` runs them with the installed package, in an environment with torch alone. It skips an
example that imports a package that is not installed, calls a method that needs one, or uses a name that a skipped
example would have made, and prints every skip with its reason.
"""

import ast
import builtins
import doctest
import importlib.util
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST  # as pytest does

_TORCHS_OWN = (  # warnings that we cannot prevent, as in conftest.py
    "Failed to initialize NumPy",
    r".torch\.jit\.script(_method)?. is deprecated",
    ".*should not be instantiated",
    "Guards may run slower on Python 3.13.0",
)

_METHODS = {"plot": "matplotlib", "to_dataframe": "pandas", "to_onnx": "onnxscript"}  # and what they need


@dataclass
class Page:
    """The examples of a page that can run here, and for each other the reason why not."""

    path: Path
    runs: list[doctest.Example] = field(default_factory=list)
    skips: list[tuple[int, str]] = field(default_factory=list)  # line, and what is missing

    def __str__(self) -> str:
        shown = f"{self.path.name}: {len(self.runs)} ran"
        if self.skips:
            lines = ", ".join(str(line) for line, _ in self.skips)
            needs = ", ".join(sorted({need for _, need in self.skips}))
            shown += f", {len(self.skips)} skipped for want of {needs} (lines {lines})"
        return shown


def read(path: Path) -> Page:
    """Divide the examples of a page."""
    page, lacking = Page(path), {}
    for example in doctest.DocTestParser().get_examples(path.read_text(encoding="utf-8"), str(path)):
        tree = ast.parse(example.source)
        made = set(_made(tree))
        needs = [*_missing_packages(tree), *(lacking[name] for name in sorted(_used(tree, made)) if name in lacking)]
        if needs:
            page.skips.append((example.lineno + 1, needs[0]))
            lacking |= dict.fromkeys(made, needs[0])
        else:
            page.runs.append(example)
            lacking = {name: need for name, need in lacking.items() if name not in made}
    return page


def _made(tree: ast.AST) -> Iterator[str]:
    """The names that an example assigns, imports or defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _used(tree: ast.Module, made: set[str]) -> set[str]:
    """The names that an example takes from those before it; `x = x + 1` makes `x` and takes it."""
    assigned = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    taken = {node.id for value in assigned for node in ast.walk(value) if isinstance(node, ast.Name)}
    return taken | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - made


def _missing_packages(tree: ast.AST) -> Iterator[str]:
    """The packages that an example needs and that are not installed; momentprop itself must be there."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [_METHODS[node.attr]] if isinstance(node, ast.Attribute) and node.attr in _METHODS else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for package in (name.split(".")[0] for name in names):
            if package != "momentprop" and importlib.util.find_spec(package) is None:
                yield package


def run(page: Page) -> int:
    """Run the examples of a page in order, print what failed, and return how many did."""
    names = {"__name__": "__main__", "__builtins__": builtins}
    test = doctest.DocTest(page.runs, names, page.path.name, str(page.path), 0, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as in pyproject.toml
        for message in _TORCHS_OWN:
            warnings.filterwarnings("ignore", message)
        return doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test).failed


def main(paths: list[Path]) -> int:
    """Run all pages; return 1 if an example failed."""
    with warnings.catch_warnings(action="ignore"):  # torch's own warning that there is no numpy
        import momentprop
    assert "site-packages" in momentprop.__file__, f"momentprop was imported from {momentprop.__file__}"
    sys.path.append(str(ROOT))  # for the package `examples`, which the documentation shows
    failed, pages = 0, [page for page in map(read, paths) if page.runs or page.skips]
    for page in pages:
        started = time.process_time()
        failed += run(page)
        print(f"{page} in {time.process_time() - started:.1f} s", flush=True)
    ran, skipped = sum(len(page.runs) for page in pages), sum(len(page.skips) for page in pages)
    print(f"{ran} examples of {len(pages)} pages ran, {failed} failed, {skipped} were skipped")
    return int(failed > 0 or ran == 0)


if __name__ == "__main__":
    sys.exit(main([ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]))
