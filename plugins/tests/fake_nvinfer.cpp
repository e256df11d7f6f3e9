// A library by the name of TensorRT's own, with a registry that keeps creators and refuses one that it has.
#include <NvInfer.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

using nvinfer1::AsciiChar;
using nvinfer1::IPluginCreatorInterface;
using nvinfer1::IPluginCreatorV3One;

class Registry final : public nvinfer1::IPluginRegistry {
  public:
    bool registerCreator(IPluginCreatorInterface& creator, AsciiChar const* const) noexcept override {
        auto const& added = static_cast<IPluginCreatorV3One&>(creator);
        if (getCreator(added.getPluginName(), added.getPluginVersion(), added.getPluginNamespace()) != nullptr) {
            return false;
        }
        creators_.push_back(&creator);
        return true;
    }
    bool deregisterCreator(IPluginCreatorInterface const& creator) noexcept override {
        auto const found = std::find(creators_.begin(), creators_.end(), &creator);
        if (found == creators_.end()) return false;
        creators_.erase(found);
        return true;
    }
    IPluginCreatorInterface* getCreator(AsciiChar const* const name, AsciiChar const* const version,
                                        AsciiChar const* const name_space) noexcept override {
        for (IPluginCreatorInterface* creator : creators_) {
            auto* const one = static_cast<IPluginCreatorV3One*>(creator);
            if (std::strcmp(one->getPluginName(), name) == 0 && std::strcmp(one->getPluginVersion(), version) == 0 &&
                std::strcmp(one->getPluginNamespace(), name_space) == 0) {
                return creator;
            }
        }
        return nullptr;
    }
    IPluginCreatorInterface* const* getAllCreators(int32_t* const count) const noexcept override {
        *count = static_cast<int32_t>(creators_.size());
        return creators_.data();
    }
    IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t* const count) noexcept override {
        return getAllCreators(count);
    }
    void setErrorRecorder(nvinfer1::IErrorRecorder* const) noexcept override {}
    nvinfer1::IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }
    bool isParentSearchEnabled() const override { return false; }
    void setParentSearchEnabled(bool const) override {}
    PluginLibraryHandle loadLibrary(AsciiChar const*) noexcept override { return nullptr; }
    void deregisterLibrary(PluginLibraryHandle) noexcept override {}
    nvinfer1::IPluginResource* acquirePluginResource(AsciiChar const*, nvinfer1::IPluginResource*) noexcept override {
        return nullptr;
    }
    int32_t releasePluginResource(AsciiChar const*) noexcept override { return 0; }
#if NV_TENSORRT_MAJOR < 11
    bool registerCreator(nvinfer1::IPluginCreator&, AsciiChar const* const) noexcept override { return false; }
    bool deregisterCreator(nvinfer1::IPluginCreator const&) noexcept override { return false; }
    nvinfer1::IPluginCreator* const* getPluginCreatorList(int32_t* const) const noexcept override { return nullptr; }
    nvinfer1::IPluginCreator* getPluginCreator(AsciiChar const* const, AsciiChar const* const,
                                               AsciiChar const* const) noexcept override {
        return nullptr;
    }
#endif

  private:
    std::vector<IPluginCreatorInterface*> creators_;
};

}  // namespace

extern "C" __attribute__((weak)) nvinfer1::ILogger* fake_logger();

extern "C" nvinfer1::IPluginRegistry* getPluginRegistry() noexcept {
    static Registry registry;
    return &registry;
}

extern "C" nvinfer1::ILogger* getLogger() noexcept { return fake_logger != nullptr ? fake_logger() : nullptr; }
