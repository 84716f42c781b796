"""A griffe extension that makes the library's docstrings, written for a terminal, good Markdown.

Examples (`>>> …`) become code blocks, and the fields `Error:` and `Source:` of a rule become paragraphs of their own.
Names that a module re-exports (`from … import name as name`) are shown as its own.
"""

import ast
import re
from typing import Any

from griffe import Extension, Module, Object, ObjectNode

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"\n+^(Error|Source): ", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites each docstring as it is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Griffe calls this for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_module_members(self, *, node: ast.AST | ObjectNode, mod: Module, **_: Any) -> None:
        """Griffe calls this for every module, once its members are known."""
        if mod.exports is None and isinstance(node, ast.Module):
            mod.exports = reexported(node) or None


def reexported(module: ast.Module) -> list[str]:
    """Return the names that a module imports under their own name, `X as X`.

    >>> reexported(ast.parse("from a import b as b, c, d as e"))
    ['b']
    """
    imports = (statement for statement in module.body if isinstance(statement, ast.ImportFrom))
    return [alias.name for statement in imports for alias in statement.names if alias.asname == alias.name]


def to_markdown(text: str) -> str:
    r"""Return a docstring with its examples fenced and its fields set apart.

    >>> to_markdown("Adds.\n\nError: exact.\nSource: algebra.")
    'Adds.\n\n*Error:* exact.\n\n*Source:* algebra.'
    """
    text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return _FIELD.sub(r"\n\n*\1:* ", text)
