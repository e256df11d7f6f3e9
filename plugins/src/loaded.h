// TensorRT's library, where the process has loaded it. It is not linked: this library must load without it too.
#pragma once

namespace trtbuild {

// A function of it; null where there is none.
//
// Only the library of the release whose headers we were compiled with counts: other ones (TensorRT-RTX, TensorRT 11)
// lay out IPluginRegistry, ILogger and ILoggerFinder otherwise, and a call through a wrong layout crashes (seen).
void* tensorrt_symbol(char const* name) noexcept;

}  // namespace trtbuild
