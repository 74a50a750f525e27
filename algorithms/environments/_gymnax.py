"""gymnax, imported without the drawing libraries that its environments import and only their `render` methods use.

matplotlib, seaborn and with them pandas and scipy take two thirds of the time of `import gymnax` (1.0.1). Here they are
loaded when something is drawn. This file can go when gymnax imports them inside `render`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Generator
from types import ModuleType
from typing import Any

DRAWING = ("matplotlib", "matplotlib.colors", "matplotlib.pyplot", "seaborn")  # parents first


class Deferred(ModuleType):
    """Stands for a module that is imported as soon as something is taken from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import system, which must not load anything
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred(*names: str) -> Generator[None]:
    """Within the block, importing one of the modules, unless it is there already, gives what stands for it."""
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

__all__ = ["environment", "gymnax", "spaces"]
