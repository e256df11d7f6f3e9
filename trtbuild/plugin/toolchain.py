"""What compiles the plugin: nvcc, a C++ compiler, CMake with a build tool, and TensorRT's headers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.errors import InputError

INSTALL = "pip install 'trtbuild[plugin]'"
INSTALL_IT = f"Install it: {INSTALL}"
LEAST_TARGET = 80
"""The kernels' matrix products (mma.sync of 16x8x16, BF16) exist from compute capability 8.0 on."""
_GENERATORS = (("ninja", "Ninja"), ("make", "Unix Makefiles"))
_WHEEL_PARTS = {
    "nvvm/bin/cicc": "nvidia-nvvm",
    "bin/crt": "nvidia-cuda-crt",
    "include/cuda_runtime_api.h": "nvidia-cuda-runtime",
    "include/cccl": "nvidia-cuda-cccl",
}


@dataclass(frozen=True, slots=True)
class Nvcc:
    """A CUDA compiler that runs."""

    path: Path
    version: str
    targets: tuple[str, ...]
    """Compute capabilities that it compiles for and the kernels run on, "sm_90"."""
    libraries: Path | None = None
    """Where the linker finds the CUDA runtime, if nvcc does not say so itself."""

    @property
    def command(self) -> tuple[str, ...]:
        """How to call it by hand."""
        return (str(self.path), *([] if self.libraries is None else [f"-L{self.libraries}"]))


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Everything that is needed, found."""

    nvcc: Nvcc
    cmake: Path
    generator: str
    build_tool: Path
    headers: Path | None
    """TensorRT's, from a wheel; CMake takes them only where the system has none and TENSORRT_INCLUDE_DIR is not set."""
    environment: Mapping[str, str] = field(repr=False)


def find_toolchain(environment: Mapping[str, str] | None = None) -> Toolchain:
    """Look for the tools as a shell with these variables would. Raises InputError for the first one that is missing."""
    variables = dict(os.environ if environment is None else environment)
    nvcc = find_nvcc(variables)
    asked = variables.get("TENSORRT_INCLUDE_DIR")
    if asked and not (Path(asked) / "NvInfer.h").is_file():
        raise InputError(f"TENSORRT_INCLUDE_DIR is {asked}, and there is no NvInfer.h in it. Correct it, or unset it.")
    cmake = _which("cmake", variables)
    if cmake is None:
        raise InputError(f"CMake, which builds the plugin, is not on PATH. {INSTALL_IT}.")
    tools = ((_which(name, variables), generator) for name, generator in _GENERATORS)
    build_tool, generator = next((found for found in tools if found[0] is not None), (None, ""))
    if build_tool is None:
        raise InputError(f"Neither ninja nor make, one of which builds the plugin, is on PATH. {INSTALL_IT}.")
    if not variables.get("CXX") and not any(_which(name, variables) for name in ("c++", "g++", "clang++")):
        raise InputError("There is no C++ compiler on PATH. Install one, such as the g++ package, or set CXX.")
    if nvcc.libraries is not None:
        # nvcc's own profile names lib64, and the wheel has lib.
        place = variables.get("LIBRARY_PATH")
        variables["LIBRARY_PATH"] = str(nvcc.libraries) + (f":{place}" if place else "")
    return Toolchain(nvcc, cmake, generator, build_tool, _wheel_headers(), variables)


def find_nvcc(environment: Mapping[str, str] | None = None) -> Nvcc:
    """CUDA_HOME's compiler, else that on PATH, else the wheels'. Raises InputError if there is none, or it fails."""
    variables = os.environ if environment is None else environment
    candidates = list(_nvccs(variables))
    for path, libraries in candidates:
        if path.is_file():
            return _describe(path, libraries, variables)
    tried = ", ".join([*(str(path) for path, _ in candidates), "PATH", "the wheel nvidia-cuda-nvcc"])
    raise InputError(f"There is no CUDA compiler (tried {tried}). {INSTALL_IT}, or set CUDA_HOME.")


def _nvccs(variables: Mapping[str, str]) -> Iterator[tuple[Path, Path | None]]:
    """Where nvcc may be, in order, each with the folder of its libraries where it needs to be told."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if variables.get(name):
            yield Path(variables[name]) / "bin" / "nvcc", None
    on_path = shutil.which("nvcc", path=variables.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path), None
    spec = importlib.util.find_spec("nvidia")  # a namespace of many wheels; CUDA 13's share one folder in it
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for path in sorted(Path(folder).glob("cu*/bin/nvcc"), reverse=True):
            _refuse_incomplete(path.parent.parent)
            yield path, path.parent.parent / "lib"


def _refuse_incomplete(toolkit: Path) -> None:
    missing = [wheel for part, wheel in _WHEEL_PARTS.items() if not (toolkit / part).exists()]
    if missing:
        raise InputError(
            f"The wheel nvidia-cuda-nvcc in {toolkit} needs {', '.join(missing)} of the same version. {INSTALL_IT}."
        )


def _describe(path: Path, libraries: Path | None, variables: Mapping[str, str]) -> Nvcc:
    version = re.search(r"release ([\d.]+)", _ask(path, "--version", variables))
    numbers = re.findall(r"sm_(\d+)\b", _ask(path, "--list-gpu-code", variables))
    targets = tuple(f"sm_{number}" for number in sorted(set(map(int, numbers))) if number >= LEAST_TARGET)
    if version is None or not targets:
        raise InputError(f"{path} does not answer as a CUDA compiler of release 11.1 or later does. Set CUDA_HOME.")
    return Nvcc(path, version[1], targets, libraries)


def _ask(path: Path, option: str, variables: Mapping[str, str]) -> str:
    try:
        result = subprocess.run(
            [path, option], env=dict(variables), capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"The CUDA compiler {path} does not run: {error}.") from error
    if result.returncode != 0:
        said = (result.stderr or result.stdout).strip().splitlines()[:1]
        raise InputError(f"The CUDA compiler {path} fails at {option}: {''.join(said) or result.returncode}")
    return result.stdout


def _which(name: str, variables: Mapping[str, str]) -> Path | None:
    """On PATH, else beside the Python that runs: a virtual environment need not be activated."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=os.pathsep.join((variables.get("PATH", ""), str(beside))))
    return None if found is None else Path(found)


def _wheel_headers() -> Path | None:
    """TensorRT 10.14's in the wheel kernel-lens. It is not imported: it would import torch."""
    spec = importlib.util.find_spec("kernel_lens")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        headers = Path(folder) / "include" / "tensorrt"
        if (headers / "NvInfer.h").is_file():
            return headers
    return None
