// What the tests stand in for: a CUDA device, the kernels, TensorRT's logger and its expressions.
#pragma once

#include <NvInfer.h>

#include <functional>
#include <string>
#include <vector>

#include "fields.h"
#include "trtbuild/attention.h"

namespace fakes {

struct Device {
    int multiprocessors = 132;
    int error = 0;  // of every call
    int questions = 0;
    std::vector<size_t> copies;
};
Device& device();

struct Kernels {
    char const* wrong = nullptr;  // what the check says
    int error = 0;                // what a run returns
    std::vector<TrtbuildAttention> runs;
    std::function<size_t(TrtbuildAttention const&)> workspace;
};
Kernels& kernels();

// The messages since the last call, each with its severity in front: "E: …".
std::vector<std::string> messages();
// The last one of them, "" if there is none.
std::string message();

// Everything as it was.
void reset();

// Nine query heads and three key/value heads of 64, as in SmolLM2-135M, with full RoPE.
trtbuild::AttentionFields smollm2();

}  // namespace fakes
