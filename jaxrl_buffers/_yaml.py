"""Safe YAML: `1e-6` is a number, no key may come twice, and a short text cannot expand to a huge value."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"  # the tag of the key <<, which may come several times
MAX_DEPTH = 64  # how deep values may be nested
MAX_VALUES = 20_000  # an alias counts as many values as its anchor holds


def parse(text: str) -> Any:
    """Read YAML. Refuse broken text, keys that come twice, tags, and more values than one writes by hand.

    Raises:
        ValueError: with the line and column of the problem.

    Example:
        >>> parse("{rate: 1e-6, length: 250_000}")
        {'rate': 1e-06, 'length': 250000}
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError comes from text that only looks like a date
        raise ValueError(f"the YAML text cannot be read: {error}") from error


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str):
        super().__init__(stream)
        self._depth, self._num_values = 0, 0
        self._sizes: dict[yaml.Node, int] = {}  # how many values each complete node holds, itself included

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        """Refuse tags, and values that would take very long to build, before they are built."""
        event = self.peek_event()
        self._num_values += 1
        if getattr(event, "tag", None) is not None:
            self._refuse(f"the tag {event.tag!r} is not allowed; write the value alone", event)
        if self._depth == MAX_DEPTH:
            self._refuse(f"values are nested more than {MAX_DEPTH} levels deep; use fewer levels", event)
        self._depth += 1
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                self._refuse(f"the alias {event.anchor!r} is inside its own anchor; take it out", event)
        else:
            self._sizes[node] = 1 + sum(self._sizes[part] for part in _parts(node))
        if max(self._num_values, self._sizes[node]) > MAX_VALUES:
            self._refuse(f"there are more than {MAX_VALUES} values; use fewer", event)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that comes twice: its first value would be lost silently."""
        seen = set()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value if key.tag != MERGE):
            if isinstance(key, Hashable):  # other keys are refused below
                if key in seen:
                    self._refuse(f"the key {key!r} is given twice", node)
                seen.add(key)
        return super().construct_mapping(node, deep)

    def _refuse(self, problem: str, where: yaml.Node | yaml.Event) -> None:
        raise yaml.constructor.ConstructorError(None, None, problem, where.start_mark)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes directly inside a node."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


# YAML 1.1 itself needs a point and a sign in numbers with an exponent.
_EXPONENT = re.compile(r"^[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
