"""Safe YAML in which `1e-6` is a number and no key may come twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"  # the key <<, which may come several times


def parse(text: str) -> Any:
    """Read YAML; refuse with `ValueError` what is broken, given twice, or would build objects.

    Example:
        >>> parse("{rate: 1e-6, length: 250_000}")
        {'rate': 1e-06, 'length': 250000}
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"the YAML text cannot be read: {error}") from error


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys, of which the first ones would silently be lost."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != MERGE]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a point and a sign in numbers with an exponent.
_EXPONENT = re.compile(r"^[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
