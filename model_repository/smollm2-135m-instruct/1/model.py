"""Triton's Python backend loads this file; the model is in the package beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trtbuild_serving.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
