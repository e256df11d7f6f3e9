"""Compile a Hugging Face model to a TensorRT engine and a Triton model repository."""

__version__ = "0.1.0"
