"""NVIDIA's Triton containers and the TensorRT in each: a plan runs with the version that built it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Container:
    """A monthly release of nvcr.io/nvidia/tritonserver."""

    release: str
    tensorrt: str

    @property
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.release}-py3"

    @property
    def devel_image(self) -> str:
        """NVIDIA's TensorRT container of the same month, which has the same Python and CUDA's compiler and headers."""
        return f"nvcr.io/nvidia/tensorrt:{self.release}-py3"


# Only what was seen in December 2026 in public repositories and documents; NVIDIA's own support matrix could not be
# reached. 26.02: builds with trtexec inside tritonserver:26.02-py3 report 10.15.1, an image on it pins 10.15.1.29.
# 26.03: tensorrt:26.03-py3 reports 10.16.0.72, a list of images gives TRT 10.16 for tritonserver:26.03-py3. 26.04: a
# benchmark in tensorrt:26.04-py3 reports 10.16.1, and tritonserver:26.04-py3 is named as an image with 10.16.
CONTAINERS = (
    Container("26.02", "10.15.1"),
    Container("26.03", "10.16.0"),
    Container("26.04", "10.16.1"),
)
NEWEST = CONTAINERS[-1]


def container_for(version: str) -> Container | None:
    """The newest known release whose TensorRT is `version` ("10.15.1.29"), or None.

    Major, minor and patch must agree; the fourth part is the build of the package.
    """
    wanted = version.split(".")[:3]
    return next((known for known in reversed(CONTAINERS) if known.tensorrt.split(".") == wanted), None)
