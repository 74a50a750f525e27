"""gymnax, imported without its drawing libraries, which only the `render` methods of its environments use.

matplotlib and seaborn, which import pandas and scipy, take two thirds of the time of `import gymnax` (1.0.1). This file
delays their import until something is drawn. It can be removed when gymnax imports them inside `render`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Generator
from types import ModuleType
from typing import TYPE_CHECKING, Any

DRAWING = ("matplotlib", "matplotlib.colors", "matplotlib.pyplot", "seaborn")  # a parent comes before its children


class Deferred(ModuleType):
    """A placeholder for a module. The module is imported when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for these, and must not load the module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred(*names: str) -> Generator[None]:
    """Within the block, importing one of these modules gives a placeholder, unless the module is loaded already."""
    standing_in = {name: Deferred(name) for name in names if name not in sys.modules}
    for name, module in standing_in.items():
        parent, _, child = name.rpartition(".")
        if parent in standing_in:
            setattr(standing_in[parent], child, module)
    sys.modules.update(standing_in)
    try:
        yield
    finally:
        for name, module in standing_in.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


with deferred(*DRAWING):
    import gymnax
    from gymnax.environments import environment, spaces

if TYPE_CHECKING:

    class Environment:
        """gymnax's base class of environments. gymnax has no annotations, so type checkers would not know it."""

        def __getattr__(self, name: str) -> Any: ...

else:
    Environment = environment.Environment

__all__ = ["Environment", "environment", "gymnax", "spaces"]
