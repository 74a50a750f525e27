"""An extension of griffe, which reads the docstrings for the documentation.

* The fields of a component or a NamedTuple are the parameters with which it is made.
* A section `Example:` is one of examples, so that its code is shown as code.
* A default `Suggested(50)` is shown as the number that it is.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

MADE_OF_FIELDS = {"Component", "NamedTuple", "Stateless", "nn.Module"}  # the bases of classes without an `__init__`
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SUGGESTED = re.compile(r"Suggested\((\d+)\)")


class Components(griffe.Extension):
    """Gives components a signature, and examples a section."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change everything in a package that was loaded."""
        self._visit(pkg)

    def _visit(self, parent: griffe.Object) -> None:
        if parent.docstring:
            parent.docstring.value = EXAMPLE.sub("Examples:", parent.docstring.value)
        for member in [*parent.members.values()]:
            if not isinstance(member, griffe.Object):
                continue
            if isinstance(member, griffe.Class) and MADE_OF_FIELDS & {str(base) for base in member.bases}:
                _add_init(member)
            if isinstance(member, griffe.Attribute) and (found := SUGGESTED.fullmatch(str(member.value))):
                member.value = found[1]
            self._visit(member)


def _add_init(component: griffe.Class) -> None:
    """Give a class the method `__init__` that its fields describe."""
    fields = [one for one in component.members.values() if isinstance(one, griffe.Attribute) and _is_field(one)]
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for one in fields:
        text = str(one.value) if one.value is not None else None
        kind = griffe.ParameterKind.positional_or_keyword
        if text is not None and text.startswith("field("):
            options = {option.name: option.value for option in one.value.arguments}
            if "kw_only" in options:
                kind = griffe.ParameterKind.keyword_only
            text = options.get("default")
        parameters.append(griffe.Parameter(one.name, annotation=one.annotation, kind=kind, default=text))
    parameters.sort(key=lambda parameter: parameter.kind is griffe.ParameterKind.keyword_only)
    init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=component)
    component.set_member("__init__", init)


def _is_field(attribute: griffe.Attribute) -> bool:
    is_declared = attribute.annotation is not None and "property" not in attribute.labels
    return is_declared and not str(attribute.annotation).startswith("ClassVar")
