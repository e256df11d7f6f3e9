"""Compiles the plugin library for given GPUs, with CMake, into a folder that appears whole or not at all."""

from __future__ import annotations

import os
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import trtbuild
from trtbuild.engine.gpu import devices
from trtbuild.engine.targets import refuse_unknown
from trtbuild.errors import BuildError, InputError
from trtbuild.files import atomic_folder, refuse_existing
from trtbuild.plugin.compiling import run
from trtbuild.plugin.info import PLUGIN_LIBRARY, PluginInfo, read_info
from trtbuild.plugin.sources import Sources, find_sources
from trtbuild.plugin.toolchain import Toolchain, find_toolchain
from trtbuild.stages import Stage, Stages

KERNELS_LIBRARY = "libtrtbuild_kernels.so"
"""The kernels' C API alone (plugins/include/trtbuild/attention.h), for use without TensorRT."""

HEADERS_FROM_A_WHEEL = "pip install --no-deps kernel-lens==2.0.1"
"""That wheel carries those of 10.14; its own needs (torch, triton) are not used."""


@dataclass(frozen=True, slots=True)
class PluginBuild:
    """What was made."""

    folder: Path
    plugin: PluginInfo
    kernels: Path
    nvcc: str


def build_plugin(
    out: Path,
    targets: tuple[str, ...] = (),
    *,
    stages: Stages,
    jobs: int | None = None,
    force: bool = False,
    sources: Sources | None = None,
    toolchain: Toolchain | None = None,
) -> PluginBuild:
    """Compile both libraries into the new folder `out`, for `targets` ("sm_90"), or for this machine's GPUs.

    `jobs` compilers run at a time, one for each core if not given. Raises InputError for a missing tool, an unknown
    target or an `out` that exists; BuildError, with the compiler's first errors, when it does not compile.
    """
    refuse_existing(out, replace=force)
    tools = toolchain or find_toolchain()
    wanted = tuple(dict.fromkeys(targets)) or own_targets()
    refuse_unknown(wanted, tools.nvcc.targets, f"The nvcc of CUDA {tools.nvcc.version}, with these kernels,")
    with atomic_folder(out, replace=force) as place:
        work = place / "work"
        _compile(work, wanted, sources or find_sources(), tools, jobs or len(os.sched_getaffinity(0)), stages)
        for library in (PLUGIN_LIBRARY, KERNELS_LIBRARY):
            (work / library).replace(place / library)
        shutil.rmtree(work)
        made = read_info(place / PLUGIN_LIBRARY)
        if made.targets != wanted:
            raise BuildError(f"The library says that it is for {', '.join(made.targets)}, not {', '.join(wanted)}.")
    folder = out.absolute()
    return PluginBuild(folder, read_info(folder / PLUGIN_LIBRARY), folder / KERNELS_LIBRARY, tools.nvcc.version)


def own_targets() -> tuple[str, ...]:
    """Of this machine's GPUs, each once. Raises InputError if there is none."""
    own = tuple(dict.fromkeys(gpu.target for gpu in devices()))
    if not own:
        raise InputError("No NVIDIA GPU is visible here, so say which to compile for: --target sm_90, or sm_89,sm_90.")
    return own


def _compile(
    work: Path, targets: tuple[str, ...], sources: Sources, tools: Toolchain, jobs: int, stages: Stages
) -> None:
    temporaries = work / "temporaries"  # nvcc's are large, and stay when it is killed
    temporaries.mkdir(parents=True)
    environment = {**tools.environment, "TMPDIR": str(temporaries)}
    settings: dict[str, object] = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_COMPILER": tools.nvcc.path,
        "CMAKE_CUDA_ARCHITECTURES": ";".join(f"{target.removeprefix('sm_')}-real" for target in targets),
        "CMAKE_MAKE_PROGRAM": tools.build_tool,
        "TRTBUILD_VERSION": trtbuild.__version__,
        "TRTBUILD_KERNELS": sources.kernels,
        "TRTBUILD_FALLBACK_INCLUDE_DIR": tools.headers or "",
    }
    with stages.stage("configure") as stage:
        command: list[str | Path] = [tools.cmake, "-S", sources.root, "-B", work, "-G", tools.generator]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        try:
            run(command, "CMake", environment=environment)
        except BuildError as error:
            if "Could NOT find TensorRT" in str(error):
                raise InputError(_about_headers(str(error))) from error
            raise
        _measure(stage)
    with stages.stage("compile") as stage:
        run(
            [tools.cmake, "--build", work, "--parallel", str(jobs)],
            "Compiling the plugin",
            environment=environment,
            advance=stages.progress.update,
        )
        stage.output_bytes = sum((work / name).stat().st_size for name in (PLUGIN_LIBRARY, KERNELS_LIBRARY))
        stage.note = f"{', '.join(targets)} with CUDA {tools.nvcc.version}"
        _measure(stage)


def _about_headers(said: str) -> str:
    old = re.search(r'unsuitable version "([\d.]+)".*\(found ([^,)]+)', said)
    wrong = (
        "TensorRT's C++ headers were not found" if old is None else f"The headers in {old[2]} are TensorRT {old[1]}'s"
    )
    return (
        f"{wrong}; those of 10.3 or later are needed. Set TENSORRT_INCLUDE_DIR to the folder of their NvInfer.h, or "
        f"take them from a wheel: {HEADERS_FROM_A_WHEEL}"
    )


def _measure(stage: Stage) -> None:
    stage.peak_rss_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
