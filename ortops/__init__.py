"""ortops: ONNX models, fast and trainable, on plain ONNX Runtime.

`import ortops` is cheap: it loads no library, touches no GPU, and imports nothing but numpy before it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
