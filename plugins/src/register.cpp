// How the library is found. TensorRT's loadLibrary() calls getCreators(); Triton's TensorRT backend only opens the
// library (dlopen, RTLD_LOCAL), so that it must put its creator into the registry itself.
#include <NvInfer.h>

#include <atomic>
#include <string>

#include "creator.h"
#include "fields.h"
#include "loaded.h"
#include "log.h"
#include "plugin.h"
#include "trtbuild/attention.h"

#define TRTBUILD_EXPORT extern "C" __attribute__((visibility("default")))
#define TRTBUILD_TEXT_OF(x) #x
#define TRTBUILD_TEXT(x) TRTBUILD_TEXT_OF(x)

namespace trtbuild {
namespace {

using nvinfer1::IPluginRegistry;

std::atomic<IPluginRegistry*> registered_in{nullptr};

RopeAlibiAttentionCreator& creator() {
    // Never destroyed: a registry may outlive this library's destructors.
    static auto* const only = new RopeAlibiAttentionCreator;
    return *only;
}

IPluginRegistry* loaded_registry() {
    auto const get = reinterpret_cast<IPluginRegistry* (*)()>(tensorrt_symbol("getPluginRegistry"));
    return get != nullptr ? get() : nullptr;
}

__attribute__((constructor)) void register_on_load() {
    guarded(false, [] {
        IPluginRegistry* const registry = loaded_registry();
        if (registry != nullptr && registry->registerCreator(creator(), PLUGIN_NAMESPACE)) registered_in = registry;
        return true;
    });
}

// loadLibrary() refuses a library whose creator is registered already (seen: 'plugin creator … exists already', and the
// library is unloaded under its registered creator), and the constructor has run by then. So the one that explicitly
// asks for the creators gets them.
void withdraw() {
    IPluginRegistry* const registry = registered_in.exchange(nullptr);
    if (registry != nullptr) registry->deregisterCreator(creator());
}

std::string list_as_json(std::string const& words) {
    std::string text = "[\"";
    for (char letter : words) text += letter == ',' ? std::string("\", \"") : std::string(1, letter);
    return text + "\"]";
}

std::string info() {
    std::string const headers =
        TRTBUILD_TEXT(NV_TENSORRT_MAJOR) "." TRTBUILD_TEXT(NV_TENSORRT_MINOR) "." TRTBUILD_TEXT(NV_TENSORRT_PATCH);
    return std::string("{\"name\": \"") + PLUGIN_NAME + "\", \"plugin_version\": \"" + PLUGIN_VERSION +
           "\", \"namespace\": \"" + PLUGIN_NAMESPACE + "\", \"version\": \"" TRTBUILD_VERSION "\", \"kernels\": \"" +
           trtbuild_kernels_version() + "\", \"tensorrt_headers\": \"" + headers +
           "\", \"targets\": " + list_as_json(TRTBUILD_TARGETS) + ", \"fields\": " + field_specs_json() + "}";
}

}  // namespace
}  // namespace trtbuild

TRTBUILD_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    static nvinfer1::IPluginCreatorInterface* const creators[] = {&trtbuild::creator()};
    trtbuild::guarded(false, [] {
        trtbuild::withdraw();
        return true;
    });
    count = 1;
    return creators;
}

TRTBUILD_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) { trtbuild::set_logger_finder(finder); }

// What was built, as JSON; for `trtbuild plugin info`, which loads the library without TensorRT.
TRTBUILD_EXPORT char const* trtbuild_plugin_info() {
    static std::string const* const text = new std::string(trtbuild::info());
    return text->c_str();
}
