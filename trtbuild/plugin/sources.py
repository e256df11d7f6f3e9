"""Where the plugin's C++ and CUDA sources lie: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Sources:
    """A folder with the CMakeLists.txt of plugins/, and the folder of the kernels' .cu files."""

    root: Path
    kernels: Path


def find_sources() -> Sources:
    """The sources that belong to this trtbuild."""
    installed = _PACKAGE / "data" / "plugins"
    root = installed if installed.is_dir() else _PACKAGE.parent / "plugins"
    return Sources(root, root / "src" / "kernels")
