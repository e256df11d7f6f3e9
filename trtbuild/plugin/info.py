"""What a compiled plugin library says of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import InputError

PLUGIN_LIBRARY = "libtrtbuild_plugin.so"
_EXPORT = "trtbuild_plugin_info"
# In a process of its own: a library that is loaded once stays (and a newer file by the same name is then not seen), and
# a strange one may do anything.
_ASK = f"""
import ctypes, sys
try:
    function = ctypes.CDLL(sys.argv[1]).{_EXPORT}
except (OSError, AttributeError) as error:
    sys.exit(str(error))
function.restype = ctypes.c_char_p
sys.stdout.buffer.write(function())
"""


@dataclass(frozen=True, slots=True)
class PluginField:
    """One attribute of the operator's node."""

    name: str
    type: str
    """"int32", "float32" or "float32[num_heads]"."""
    required: bool
    default: int | float | None
    meaning: str


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The operator that a library registers, and how the library was compiled."""

    library: Path
    name: str
    plugin_version: str
    namespace: str
    version: str
    """Of the trtbuild that compiled it."""
    kernels: str
    tensorrt_headers: str
    targets: tuple[str, ...]
    """Compute capabilities whose machine code is inside, "sm_90"."""
    fields: tuple[PluginField, ...]


def read_info(library: Path) -> PluginInfo:
    """Ask a library, or that of a folder of `trtbuild plugin build`; needs neither TensorRT nor a GPU.

    Raises InputError if it is not there, cannot be loaded here, or is not the plugin.
    """
    file = library / PLUGIN_LIBRARY if library.is_dir() else library
    if not file.is_file():
        raise InputError(f"There is no {file}. Make it with `trtbuild plugin build --target sm_90`, or name another.")
    command = [sys.executable, "-I", "-c", _ASK, str(file.resolve())]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or [f"the process ended with {result.returncode}"])[-1]
        raise InputError(f"{file} is not trtbuild's plugin, or cannot be loaded on this machine: {reason}")
    return _parse(file, json.loads(result.stdout))


def _parse(file: Path, data: dict[str, Any]) -> PluginInfo:
    fields = tuple(PluginField(**entry) for entry in data.pop("fields"))
    return PluginInfo(library=file, fields=fields, targets=tuple(data.pop("targets")), **data)
