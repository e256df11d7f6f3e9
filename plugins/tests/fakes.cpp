#include "fakes.h"

#include <cuda_runtime_api.h>

#include <utility>

namespace {

class Logger : public nvinfer1::ILogger {
  public:
    void log(Severity severity, char const* text) noexcept override {
        said.push_back(std::string(1, "IEWIV"[static_cast<int>(severity)]) + ": " + text);
    }
    std::vector<std::string> said;
};

Logger logger;

}  // namespace

namespace fakes {

Device& device() {
    static Device only;
    return only;
}

Kernels& kernels() {
    static Kernels only;
    return only;
}

std::vector<std::string> messages() { return std::exchange(logger.said, {}); }

std::string message() {
    std::vector<std::string> const said = messages();
    return said.empty() ? "" : said.back();
}

void reset() {
    device() = {};
    kernels() = {};
    messages();
}

trtbuild::AttentionFields smollm2() {
    trtbuild::AttentionFields fields;
    fields.num_heads = 9;
    fields.num_kv_heads = 3;
    fields.head_dim = 64;
    fields.rotary_dim = 64;
    fields.scale = 0.125f;
    return fields;
}

}  // namespace fakes

extern "C" {

// As libnvinfer has it; the library of that name which the tests load forwards to it.
nvinfer1::ILogger* fake_logger() { return &logger; }

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return static_cast<cudaError_t>(fakes::device().error);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    ++fakes::device().questions;
    *value = attribute == cudaDevAttrMultiProcessorCount ? fakes::device().multiprocessors : -1;
    return static_cast<cudaError_t>(fakes::device().error);
}

cudaError_t cudaMemcpyAsync(void*, void const*, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    fakes::device().copies.push_back(bytes);
    return cudaSuccess;
}

char const* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "a CUDA error"; }

char const* trtbuild_attention_check(TrtbuildAttention const*) { return fakes::kernels().wrong; }

size_t trtbuild_attention_workspace(TrtbuildAttention const* attention) {
    return fakes::kernels().workspace ? fakes::kernels().workspace(*attention) : 0;
}

int trtbuild_attention_run(TrtbuildAttention const* attention, void*) {
    fakes::kernels().runs.push_back(*attention);
    return fakes::kernels().error;
}

char const* trtbuild_kernels_version(void) { return "fake"; }
}
