"""The operators, one module a family. Call one on graph values to append a node, on arrays to compute its reference."""

import importlib
import pkgutil

from ortops._declare import Op

__all__: list[str] = []

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    for _name, _value in vars(importlib.import_module(f"{__name__}.{_module}")).items():
        if isinstance(_value, Op):
            globals()[_name] = _value
            __all__.append(_name)
