#include "loaded.h"

#include <NvInferVersion.h>
#include <dlfcn.h>

#define TRTBUILD_TEXT_OF(x) #x
#define TRTBUILD_TEXT(x) TRTBUILD_TEXT_OF(x)

namespace trtbuild {

void* tensorrt_symbol(char const* name) noexcept {
    // By its handle, not among the global symbols: Triton opens its backends with RTLD_LOCAL.
    void* const library = dlopen("libnvinfer.so." TRTBUILD_TEXT(NV_TENSORRT_MAJOR), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    void* const symbol = dlsym(library, name);
    dlclose(library);  // gives back the reference; whoever loaded the library keeps it
    return symbol;
}

}  // namespace trtbuild
