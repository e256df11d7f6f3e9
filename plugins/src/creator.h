// Makes plugins from fields: those of a network's node, or those of a serialised plan.
#pragma once

#include <NvInfer.h>

#include <vector>

namespace trtbuild {

class RopeAlibiAttentionCreator final : public nvinfer1::IPluginCreatorV3One {
  public:
    RopeAlibiAttentionCreator();

    // Null, and a message through the logger, if a field is wrong.
    nvinfer1::IPluginV3* createPlugin(char const* name, nvinfer1::PluginFieldCollection const* fields,
                                      nvinfer1::TensorRTPhase phase) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override { return &collection_; }
    char const* getPluginName() const noexcept override;
    char const* getPluginVersion() const noexcept override;
    char const* getPluginNamespace() const noexcept override;

  private:
    std::vector<nvinfer1::PluginField> names_;
    nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace trtbuild
