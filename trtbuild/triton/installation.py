"""Where a real tritonserver comes from: the machine's own, else the one inside the nvidia-pytriton wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import InputError
from trtbuild.files import atomic_folder, link_or_copy
from trtbuild.store import default_cache

CONTAINER = Path("/opt/tritonserver")
"""Where NVIDIA's containers have it."""
_WHEEL = "nvidia-pytriton"
_INSTALL = "Install it with: pip install 'trtbuild[serve]'"


@dataclass(frozen=True, slots=True)
class Installation:
    """A tritonserver and what it needs to start."""

    binary: Path
    backends: Path
    caches: Path
    libraries: Path | None = None
    """Goes before LD_LIBRARY_PATH; None where the system finds them."""

    @property
    def python_path(self) -> Path:
        """Goes before PATH: the Python backend's stub runs in the environment of the first `python3` there."""
        return Path(sys.executable).parent


def find_server(cache: Path | None = None) -> Installation:
    """The tritonserver on PATH or in /opt/tritonserver, else nvidia-pytriton's, put together once under `cache`.

    `cache` None takes the user's cache folder. Raises InputError if there is none, or if nvidia-pytriton's cannot work
    in this Python environment.
    """
    found = shutil.which("tritonserver")
    if found is not None:
        return _installed(Path(found).resolve())
    if (CONTAINER / "bin" / "tritonserver").is_file():
        return _installed(CONTAINER / "bin" / "tritonserver")
    return _from_wheel(cache or default_cache())


def _installed(binary: Path) -> Installation:
    root = binary.parent.parent
    return Installation(binary, root / "backends", root / "caches")


def _from_wheel(cache: Path) -> Installation:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise InputError(f"There is no tritonserver on PATH or in {CONTAINER}, and no {_WHEEL}. {_INSTALL}")
    refuse_numpy_2()
    package = Path(spec.origin).parent
    version = importlib.metadata.version(_WHEEL)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = cache / "tritonserver" / f"{version}-python{python}"
    if not root.is_dir():
        _assemble(package / "tritonserver", python, root)
    return Installation(
        binary=root / "bin" / "tritonserver",
        backends=root / "backends",
        caches=root / "caches",
        libraries=package.parent / "nvidia_pytriton.libs",
    )


def refuse_numpy_2() -> None:
    """Raise InputError under numpy 2: the stub of tritonserver 2.51 was built for numpy 1 and returns empty outputs
    without a word."""
    try:
        version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        raise InputError(f"numpy is not installed, and models in Triton need it. {_INSTALL}") from None
    if int(version.split(".")[0]) >= 2:
        raise InputError(
            f"numpy {version} is installed, and the Python backend of {_WHEEL}'s tritonserver silently returns nothing "
            "with numpy 2. Install numpy 1 (pip install 'numpy<2'), or serve in NVIDIA's Triton container."
        )


def _assemble(source: Path, python: str, root: Path) -> None:
    """The wheel's parts as tritonserver wants them: the stub of the running Python beside the Python backend."""
    stub = source / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.is_file():
        known = sorted((folder.name for folder in stub.parent.parent.glob("3.*")), key=lambda name: int(name[2:]))
        raise InputError(
            f"{_WHEEL}'s tritonserver runs models in Python {', '.join(known)}, and this is Python {python}. "
            "Use one of those, or serve in NVIDIA's Triton container."
        )
    with atomic_folder(root, replace=True) as folder:
        for part in ("bin", "backends", "caches"):
            for file in sorted((source / part).rglob("*")):
                if file.is_file():
                    _place(file, folder / file.relative_to(source))
        _place(stub, folder / "backends" / "python" / stub.name)


def _place(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.unlink(missing_ok=True)
    link_or_copy(source, destination)
    if not os.access(destination, os.X_OK) and source.suffix in ("", ".so"):
        destination.chmod(0o755)
