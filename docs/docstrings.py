"""A griffe extension that turns the library's docstrings, written for a terminal, into good Markdown.

Examples (`>>> …`) become code blocks, and the fields `Error:` and `Source:` of a rule become paragraphs of their own.
A name that is both a module and the function in it, such as `momentprop.propagate`, stands for the function.
"""

import re
from typing import Any

from griffe import Extension, Module, Object

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"\n+^(Error|Source): ", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites each docstring as it is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Griffe calls this for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Griffe calls this for a package, once all of it is loaded."""
        for name in {*pkg.members} & {*(pkg.exports or ())}:
            module = pkg.members[name]
            if not module.is_alias and module.is_module and name in module.members:
                function = module.members[name]
                function.parent = pkg
                pkg.members[name] = function


def to_markdown(text: str) -> str:
    r"""Return a docstring with its examples fenced and its fields set apart.

    >>> to_markdown("Adds.\n\nError: exact.\nSource: algebra.")
    'Adds.\n\n*Error:* exact.\n\n*Source:* algebra.'
    """
    text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return _FIELD.sub(r"\n\n*\1:* ", text)
