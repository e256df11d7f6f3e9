#include "plugin.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "log.h"

namespace trtbuild {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::ILogger;
using nvinfer1::PluginTensorDesc;

void check(cudaError_t error, char const* what) {
    if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

int32_t device_multiprocessors() {
    int device = 0, count = 0;
    check(cudaGetDevice(&device), "the current CUDA device is not known");
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
          "the number of multiprocessors is not known");
    return count;
}

Dims known_extents(DimsExprs const& expressions) {
    Dims dims{expressions.nbDims, {}};
    for (int32_t i = 0; i < dims.nbDims; ++i) {
        dims.d[i] = expressions.d[i]->isConstant() ? expressions.d[i]->getConstantValue() : -1;
    }
    return dims;
}

template <class Tensor, class GetDims>
Shapes shapes_of(Tensor const* inputs, int32_t count, GetDims get_dims) {
    Shapes shapes{};
    for (int32_t i = 0; i < count; ++i) shapes[static_cast<size_t>(i)] = get_dims(inputs[i]);
    return shapes;
}

DataType needed_type(int32_t position, int32_t inputs, DataType qkv) {
    if (position == BLOCK_TABLE || position == CU_SEQLENS || position == PAST_LENGTHS) return DataType::kINT32;
    return position == ROPE_COS_SIN && position < inputs ? DataType::kFLOAT : qkv;
}

void check_types(DataType const* types, int32_t inputs) {
    if (!is_supported(types[QKV])) throw std::invalid_argument("the type of qkv is none of FP16, BF16 and FP32");
    if (types[KV_PAGES] != types[QKV]) throw std::invalid_argument("kv_pages is not of the type of qkv");
    for (int32_t i = BLOCK_TABLE; i <= PAST_LENGTHS; ++i) {
        if (types[i] != DataType::kINT32) throw std::invalid_argument("input " + std::to_string(i) + " is not INT32");
    }
    if (inputs > ROPE_COS_SIN && types[ROPE_COS_SIN] != DataType::kFLOAT) {
        throw std::invalid_argument("rope_cos_sin is not FP32");
    }
}

bool same_sizes(TrtbuildAttention const& attention, PluginTensorDesc const* inputs, TrtbuildType type) {
    Dims const &pages = inputs[KV_PAGES].dims, &table = inputs[BLOCK_TABLE].dims;
    return attention.tokens == inputs[QKV].dims.d[0] && attention.batch == table.d[0] &&
           attention.max_pages == table.d[1] && attention.pages == pages.d[0] && attention.page_size == pages.d[3] &&
           attention.type == type;
}

}  // namespace

RopeAlibiAttention::RopeAlibiAttention(AttentionFields fields)
    : fields_(std::move(fields)), description_(fields_text(fields_)) {}

nvinfer1::IPluginCapability* RopeAlibiAttention::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept {
    switch (type) {
        case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
        case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
        case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* RopeAlibiAttention::clone() noexcept {
    return guarded<nvinfer1::IPluginV3*>(nullptr, [this] {
        auto copy = std::make_unique<RopeAlibiAttention>(fields_);
        copy->multiprocessors_ = multiprocessors_;
        return copy.release();
    });
}

int32_t RopeAlibiAttention::getOutputDataTypes(DataType* output_types, int32_t outputs, DataType const* input_types,
                                               int32_t inputs) const noexcept {
    return guarded(1, [&] {
        check_counts(fields_, inputs, outputs);
        check_types(input_types, inputs);
        output_types[ATTENDED] = input_types[QKV];
        output_types[UPDATED_PAGES] = input_types[KV_PAGES];
        return 0;
    });
}

int32_t RopeAlibiAttention::getOutputShapes(DimsExprs const* inputs, int32_t input_number, DimsExprs const*, int32_t,
                                            DimsExprs* outputs, int32_t output_number,
                                            nvinfer1::IExprBuilder& builder) noexcept {
    return guarded(1, [&] {
        check_counts(fields_, input_number, output_number);
        check_shapes(fields_, shapes_of(inputs, input_number, known_extents));
        outputs[ATTENDED].nbDims = 2;
        outputs[ATTENDED].d[0] = inputs[QKV].d[0];
        outputs[ATTENDED].d[1] = builder.constant(static_cast<int64_t>(fields_.num_heads) * fields_.head_dim);
        outputs[UPDATED_PAGES] = inputs[KV_PAGES];
        return 0;
    });
}

bool RopeAlibiAttention::supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const* tensors,
                                                   int32_t inputs, int32_t outputs) noexcept {
    return guarded(false, [&] {
        check_counts(fields_, inputs, outputs);
        if (position < 0 || position >= inputs + outputs) return false;
        PluginTensorDesc const& tensor = tensors[position].desc;
        if (tensor.format != nvinfer1::TensorFormat::kLINEAR) return false;
        if (position == QKV) return is_supported(tensor.type);
        return tensor.type == needed_type(position, inputs, tensors[QKV].desc.type);
    });
}

int32_t RopeAlibiAttention::configurePlugin(DynamicPluginTensorDesc const* inputs, int32_t input_number,
                                            DynamicPluginTensorDesc const*, int32_t output_number) noexcept {
    return guarded(1, [&] {
        check_counts(fields_, input_number, output_number);
        check_shapes(fields_, shapes_of(inputs, input_number, [](auto const& input) { return input.desc.dims; }));
        return 0;
    });
}

size_t RopeAlibiAttention::getWorkspaceSize(DynamicPluginTensorDesc const* inputs, int32_t input_number,
                                            DynamicPluginTensorDesc const*, int32_t output_number) const noexcept {
    return guarded<size_t>(0, [&]() -> size_t {
        check_counts(fields_, input_number, output_number);
        int32_t const multiprocessors = multiprocessors_ > 0 ? multiprocessors_ : device_multiprocessors();
        Shapes const shapes = shapes_of(inputs, input_number, [](auto const& input) { return input.max; });
        TrtbuildAttention attention = make_attention(fields_, shapes, inputs[QKV].desc.type, multiprocessors);
        // TensorRT asks once, for the largest shapes; but fewer sequences are split more finely, and may need more.
        size_t most = 0;
        for (; attention.batch > 0; --attention.batch) most = std::max(most, trtbuild_attention_workspace(&attention));
        return most;
    });
}

int32_t RopeAlibiAttention::onShapeChange(PluginTensorDesc const* inputs, int32_t input_number, PluginTensorDesc const*,
                                          int32_t output_number) noexcept {
    return guarded(1, [&] {
        prepared_ = false;
        check_counts(fields_, input_number, output_number);
        prepare(inputs);
        return 0;
    });
}

int32_t RopeAlibiAttention::enqueue(PluginTensorDesc const* input_tensors, PluginTensorDesc const*,
                                    void const* const* inputs, void* const* outputs, void* workspace,
                                    cudaStream_t stream) noexcept {
    return guarded(1, [&] {
        TrtbuildAttention attention = prepare(input_tensors);
        attention.qkv = inputs[QKV];
        attention.kv_pages = pages_to_update(inputs[KV_PAGES], outputs[UPDATED_PAGES], stream);
        attention.block_table = static_cast<int32_t const*>(inputs[BLOCK_TABLE]);
        attention.cu_seqlens = static_cast<int32_t const*>(inputs[CU_SEQLENS]);
        attention.past_lengths = static_cast<int32_t const*>(inputs[PAST_LENGTHS]);
        attention.rope_cos_sin = fields_.rotary_dim > 0 ? static_cast<float const*>(inputs[ROPE_COS_SIN]) : nullptr;
        attention.output = outputs[ATTENDED];
        attention.workspace = workspace;
        check(static_cast<cudaError_t>(trtbuild_attention_run(&attention, stream)), "the kernels did not start");
        return 0;
    });
}

nvinfer1::IPluginV3* RopeAlibiAttention::attachToContext(nvinfer1::IPluginResourceContext*) noexcept {
    return guarded<nvinfer1::IPluginV3*>(nullptr, [this] {
        auto attached = std::make_unique<RopeAlibiAttention>(fields_);
        int32_t const here = device_multiprocessors(), built = fields_.multiprocessors;
        // A plan for several GPUs may run on a larger one than it was built on; its workspace has not grown.
        attached->multiprocessors_ = built > 0 ? std::min(here, built) : here;
        return attached.release();
    });
}

nvinfer1::PluginFieldCollection const* RopeAlibiAttention::getFieldsToSerialize() noexcept {
    return guarded<nvinfer1::PluginFieldCollection const*>(nullptr, [this] {
        if (fields_.multiprocessors == 0) fields_.multiprocessors = device_multiprocessors();
        serialized_.clear();
        for (Field const& field : write_fields(fields_)) {
            bool const whole = field.type == FieldType::INT32;
            auto const type = whole ? nvinfer1::PluginFieldType::kINT32 : nvinfer1::PluginFieldType::kFLOAT32;
            serialized_.emplace_back(field.name, field.data, type, field.length);
        }
        collection_.nbFields = static_cast<int32_t>(serialized_.size());
        collection_.fields = serialized_.data();
        return &collection_;
    });
}

TrtbuildAttention const& RopeAlibiAttention::prepare(PluginTensorDesc const* inputs) {
    if (!prepared_ || !same_sizes(attention_, inputs, kernel_type(inputs[QKV].type))) {
        if (multiprocessors_ == 0) multiprocessors_ = device_multiprocessors();
        Shapes const shapes = shapes_of(inputs, input_count(fields_), [](auto const& input) { return input.dims; });
        attention_ = make_attention(fields_, shapes, inputs[QKV].type, multiprocessors_);
        prepared_ = true;
    }
    return attention_;
}

void* RopeAlibiAttention::pages_to_update(void const* input, void* output, cudaStream_t stream) {
    if (input == output) return output;
    // A network built without ALIASED_PLUGIN_IO_10_03 has two buffers; the result is right all the same, only slower.
    if (!warned_of_copies_) {
        warned_of_copies_ = true;
        log(ILogger::Severity::kWARNING,
            "the updated kv_pages are another buffer than the input, so the whole cache is copied in each step; build "
            "with the preview feature ALIASED_PLUGIN_IO_10_03, and bind both names to one address");
    }
    size_t const element = attention_.type == TRTBUILD_FLOAT32 ? 4 : 2;
    size_t const page = size_t{2} * attention_.kv_heads * attention_.page_size * attention_.head_dim * element;
    check(cudaMemcpyAsync(output, input, page * attention_.pages, cudaMemcpyDeviceToDevice, stream),
          "the cache could not be copied");
    return output;
}

}  // namespace trtbuild
