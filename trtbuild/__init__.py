"""Compile a Hugging Face model to a TensorRT engine and a Triton model repository.

import trtbuild
result = trtbuild.compile("./SmolLM2-135M-Instruct", Path("smollm2"), trtbuild.CompileOptions())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trtbuild.exporting import export
    from trtbuild.options import Backend, CompileOptions, EngineOptions, ExportOptions, Precision
    from trtbuild.pipeline import compile

_HOMES = {
    "compile": "trtbuild.pipeline",
    "export": "trtbuild.exporting",
    "Backend": "trtbuild.options",
    "CompileOptions": "trtbuild.options",
    "EngineOptions": "trtbuild.options",
    "ExportOptions": "trtbuild.options",
    "Precision": "trtbuild.options",
}

__all__ = ["Backend", "CompileOptions", "EngineOptions", "ExportOptions", "Precision", "compile", "export"]


def __getattr__(name: str) -> Any:
    """Import on first use: `import trtbuild` itself takes milliseconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trtbuild' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
