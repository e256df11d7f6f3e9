"""The kernels' own sources, compiled by g++ and run by the SIMT emulator on the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.conftest import CACHE, ROOT
from tests.plugins.cases import Array, Attention, Problem, declared, poison

PLUGINS = ROOT / "plugins"
FLAGS = ["-std=c++17", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE", "-DTRTBUILD_EMULATE"]
INCLUDES = (PLUGINS / "include", PLUGINS / "emulator")
KERNELS = tuple(sorted((PLUGINS / "src" / "kernels").glob("*.cu")))


def built(sources: Sequence[Path] = KERNELS, includes: Sequence[Path] = INCLUDES) -> Path:
    """A library of these sources and the emulator, made once for each state of them."""
    sources = [*sources, PLUGINS / "emulator" / "simt.cpp"]
    headers = [file for folder in includes for file in sorted(folder.rglob("*")) if file.is_file()]
    state = hashlib.sha256(b"".join(file.read_bytes() for file in [*sources, *headers])).hexdigest()
    folder = CACHE / "emulator" / state[:16]
    library = folder / "library.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        objects = [folder / f"{source.stem}.{os.getpid()}.o" for source in sources]
        flags = [*FLAGS, *(f"-I{include}" for include in includes)]

        def compiled(source: Path, to: Path) -> None:
            subprocess.run(["g++", "-x", "c++", *flags, "-c", str(source), "-o", str(to)], check=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, sources, objects))
        temporary = folder / f"{os.getpid()}.so"
        subprocess.run(["g++", "-shared", "-o", str(temporary), *map(str, objects)], check=True)
        temporary.rename(library)
        for file in objects:
            file.unlink()
    return library


def opened(library: Path) -> ctypes.CDLL:
    """With the emulator's own functions declared."""
    found = ctypes.CDLL(str(library))
    found.simt_error.restype = ctypes.c_char_p
    found.simt_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


class Emulator:
    """Runs problems; every buffer is registered with its exact size, inputs as read-only."""

    def __init__(self, library: Path | None = None) -> None:
        self.library = declared(opened(library or built()))

    def check(self, fields: Attention) -> str | None:
        """What is wrong with the parameters."""
        found: Any = self.library.trtbuild_attention_check(fields)
        return None if found is None else str(found.decode())

    def counts(self) -> tuple[int, int, int]:
        """Of the last run: bytes of global memory that blocks read and wrote, in whole sectors, and mma operations."""
        found = (ctypes.c_ulonglong * 3)()
        self.library.simt_counts(found)
        return found[0] * 32, found[1] * 32, found[2]

    def __call__(self, given: Problem) -> tuple[Array, Array]:
        """Run one problem. Raises AssertionError with the emulator's message."""
        fields, arrays = given.fields, dict(given.arrays)
        assert self.check(fields) is None, self.check(fields)
        room = self.library.trtbuild_attention_workspace(fields)
        arrays["workspace"] = poison((room,), "u1")
        self.library.simt_forget()
        for name, array in arrays.items():
            setattr(fields, name, array.ctypes.data)
            self.library.simt_register(array.ctypes.data, array.nbytes, name in ("kv_pages", "output", "workspace"))
        error = self.library.trtbuild_attention_run(fields, None)
        assert error == 0, self.library.simt_error().decode()
        return arrays["output"], arrays["kv_pages"]
