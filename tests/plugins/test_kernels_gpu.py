"""The same problems on a GPU: the kernels as nvcc compiles them, against float64, and under compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CACHE, ROOT
from tests.plugins.cases import Case, check
from tests.plugins.cuda import Cuda
from tests.plugins.gpu_cases import CASES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def library() -> Path:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a CUDA build of torch")
    target = "sm_{}{}".format(*torch.cuda.get_device_capability(0))
    found = os.environ.get("TRTBUILD_KERNELS_LIBRARY")
    if found:
        return Path(found)
    folder = CACHE / "kernels" / target
    trtbuild = Path(sys.executable).parent / "trtbuild"
    command = [trtbuild, "plugin", "build", "--target", target, "--out", folder, "--force"]
    subprocess.run(command, check=True)
    return folder / "libtrtbuild_kernels.so"


@pytest.fixture(scope="module")
def cuda(library: Path) -> Cuda:
    return Cuda(library)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(cuda: Cuda, case: Case) -> None:
    check(case, cuda)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_under_compute_sanitizer(library: Path, tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer, of the CUDA toolkit, is not on PATH")
    program = (
        "import sys; from pathlib import Path; from tests.plugins.cuda import Cuda; "
        "from tests.plugins.gpu_cases import CASES; from tests.plugins.cases import check\n"
        "cuda = Cuda(Path(sys.argv[1]))\n"
        "for case in CASES[:15] + CASES[20:30]: check(case, cuda)\n"
    )
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", program, str(library)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
