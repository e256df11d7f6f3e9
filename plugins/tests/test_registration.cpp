// How the library is found, in a process that has what libnvinfer has, or not yet. Arguments: the plugin library, the
// library that stands for libnvinfer, and one of `before`, `after`: when that one is opened.
#include <NvInfer.h>
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "check.h"

using nvinfer1::IPluginCreatorInterface;
using nvinfer1::IPluginRegistry;

namespace {

// As Triton opens backends and plugins.
void* open_library(char const* path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::cerr << dlerror() << '\n';
    return library;
}

template <class Function>
Function* symbol(void* library, char const* name) {
    return reinterpret_cast<Function*>(dlsym(library, name));
}

int32_t registered(IPluginRegistry& registry) {
    int32_t count = -1;
    registry.getAllCreators(&count);
    return count;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) return 2;
    bool const before = std::strcmp(arguments[3], "before") == 0;
    void *tensorrt = nullptr, *plugin = nullptr;
    if (before) tensorrt = open_library(arguments[2]);
    plugin = open_library(arguments[1]);
    if (!before) tensorrt = open_library(arguments[2]);
    if (tensorrt == nullptr || plugin == nullptr) return 1;
    CHECK(dlsym(RTLD_DEFAULT, "getPluginRegistry") == nullptr);  // else the test would prove nothing
    IPluginRegistry& registry = *symbol<IPluginRegistry*()>(tensorrt, "getPluginRegistry")();

    // Opened after TensorRT, it registers itself; before, it cannot (so LD_PRELOAD is of no use).
    CHECK_EQ(registered(registry), before ? 1 : 0);
    CHECK((registry.getCreator("RopeAlibiAttention", "1", "trtbuild") != nullptr) == before);

    // loadLibrary: the same creator can be registered, and is, once.
    int32_t made = 0;
    IPluginCreatorInterface* const* const creators =
        symbol<IPluginCreatorInterface* const*(int32_t&)>(plugin, "getCreators")(made);
    CHECK_EQ(made, 1);
    CHECK_EQ(registered(registry), 0);
    CHECK(registry.registerCreator(*creators[0], ""));
    CHECK_EQ(registered(registry), 1);
    // deregisterLibrary asks for the creators once more (seen in TensorRT-RTX).
    CHECK(symbol<IPluginCreatorInterface* const*(int32_t&)>(plugin, "getCreators")(made)[0] == creators[0]);
    CHECK_EQ(registered(registry), 1);

    // Closed, it stays: the registry still holds its creator.
    dlclose(plugin);
    auto* const kept = static_cast<nvinfer1::IPluginCreatorV3One*>(creators[0]);
    CHECK_EQ(std::string(kept->getPluginName()), "RopeAlibiAttention");
    CHECK(kept->createPlugin("", nullptr, nvinfer1::TensorRTPhase::kBUILD) == nullptr);
    std::cout << (check::failures() == 0 ? "ok\n" : "FAILED\n");
    return check::failures() == 0 ? 0 : 1;
}
