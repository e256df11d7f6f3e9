// The operator in a TensorRT network: shapes and types while it is built, and the kernels' launch while it runs.
#pragma once

#include <NvInfer.h>

#include <string>
#include <vector>

#include "call.h"
#include "fields.h"

namespace trtbuild {

constexpr char PLUGIN_NAME[] = "RopeAlibiAttention";
constexpr char PLUGIN_VERSION[] = "1";
// TensorRT's ONNX parser looks a plugin up by a node's op_type and its attributes `plugin_version` ("1" if absent) and
// `plugin_namespace` ("" if absent); the node's domain it does not read (onnx-tensorrt, FallbackPluginImporter, in 10.1
// and since). A node with `plugin_namespace` is a plugin's before it is an operator's or a model-local function's
// (parseNode, in later releases than 10.1), so ours carry it.
constexpr char PLUGIN_NAMESPACE[] = "trtbuild";

class RopeAlibiAttention final : public nvinfer1::IPluginV3,
                                 public nvinfer1::IPluginV3OneCore,
                                 public nvinfer1::IPluginV3OneBuildV2,
                                 public nvinfer1::IPluginV3OneRuntime {
  public:
    explicit RopeAlibiAttention(AttentionFields fields);

    AttentionFields const& fields() const noexcept { return fields_; }

    // IPluginV3
    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;

    // IPluginV3OneCore
    char const* getPluginName() const noexcept override { return PLUGIN_NAME; }
    char const* getPluginVersion() const noexcept override { return PLUGIN_VERSION; }
    char const* getPluginNamespace() const noexcept override { return PLUGIN_NAMESPACE; }

    // IPluginV3OneBuildV2
    int32_t getNbOutputs() const noexcept override { return OUTPUTS; }
    int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t outputs, nvinfer1::DataType const* input_types,
                               int32_t inputs) const noexcept override;
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t input_number, nvinfer1::DimsExprs const* shapes,
                            int32_t shape_number, nvinfer1::DimsExprs* outputs, int32_t output_number,
                            nvinfer1::IExprBuilder& builder) noexcept override;
    bool supportsFormatCombination(int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors, int32_t inputs,
                                   int32_t outputs) noexcept override;
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t input_number,
                            nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t output_number) noexcept override;
    size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t input_number,
                            nvinfer1::DynamicPluginTensorDesc const* outputs,
                            int32_t output_number) const noexcept override;
    int32_t getAliasedInput(int32_t output) noexcept override { return output == UPDATED_PAGES ? KV_PAGES : -1; }
    char const* getMetadataString() noexcept override { return description_.c_str(); }

    // IPluginV3OneRuntime
    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t input_number,
                          nvinfer1::PluginTensorDesc const* outputs, int32_t output_number) noexcept override;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* input_tensors, nvinfer1::PluginTensorDesc const* output_tensors,
                    void const* const* inputs, void* const* outputs, void* workspace,
                    cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

  private:
    TrtbuildAttention const& prepare(nvinfer1::PluginTensorDesc const* inputs);
    void* pages_to_update(void const* input, void* output, cudaStream_t stream);

    AttentionFields fields_;
    std::string description_;
    // Of the device, but no more than those that the plan's workspace was measured for; 0 until it is attached.
    int32_t multiprocessors_ = 0;
    TrtbuildAttention attention_{};  // for the shapes of the last call; without pointers
    bool prepared_ = false;
    bool warned_of_copies_ = false;
    std::vector<nvinfer1::PluginField> serialized_;
    nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace trtbuild
