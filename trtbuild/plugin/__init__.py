"""The TensorRT plugin: its C++ sources, what compiles them, and what a compiled library says of itself."""
