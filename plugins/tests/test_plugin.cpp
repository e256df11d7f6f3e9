#include <cuda_runtime_api.h>

#include <deque>
#include <memory>

#include "check.h"
#include "fakes.h"
#include "plugin.h"

using namespace nvinfer1;
using trtbuild::AttentionFields;
using trtbuild::RopeAlibiAttention;

namespace {

// A dimension as TensorRT's builder hands it over: a constant, or one that is known at run time only (-1).
class Extent final : public IDimensionExpr {
  public:
    explicit Extent(int64_t value) : value_(value) { mImpl = &value_; }
    ~Extent() noexcept override = default;

  private:
    struct Value final : apiv::VDimensionExpr {
        explicit Value(int64_t value) : value(value) {}
        bool isConstant() const override { return value >= 0; }
        int64_t getConstantValue() const override { return value; }
        bool isSizeTensor() const override { return false; }
        int64_t value;
    };
    Value value_;
};

class Builder final : public IExprBuilder {
  public:
    Builder() { mImpl = &extents_; }
    ~Builder() noexcept override = default;

    DimsExprs shape(std::vector<int64_t> const& extents) {
        DimsExprs shape{static_cast<int32_t>(extents.size()), {}};
        for (size_t i = 0; i < extents.size(); ++i) shape.d[i] = constant(extents[i]);
        return shape;
    }

  private:
    struct Extents final : apiv::VExprBuilder {
        IDimensionExpr const* constant(int64_t value) override { return &made.emplace_back(value); }
        IDimensionExpr const* operation(DimensionOperation, IDimensionExpr const&, IDimensionExpr const&) override {
            return nullptr;
        }
        IDimensionExpr const* declareSizeTensor(int32_t, IDimensionExpr const&, IDimensionExpr const&) override {
            return nullptr;
        }
        std::deque<Extent> made;
    };
    Extents extents_;
};

Dims dims_of(std::vector<int64_t> const& extents) {
    Dims dims{static_cast<int32_t>(extents.size()), {}};
    for (size_t i = 0; i < extents.size(); ++i) dims.d[i] = extents[i];
    return dims;
}

using Extents = std::vector<std::vector<int64_t>>;

// The inputs of SmolLM2's attention, with a cache of 64 pages of 16.
Extents inputs_of(int64_t tokens, int64_t batch, int64_t max_pages) {
    return {{tokens, 960}, {64, 2, 3, 16, 64}, {batch, max_pages}, {batch + 1}, {batch}, {tokens, 64}};
}

DataType const TYPES[] = {DataType::kHALF,  DataType::kHALF,  DataType::kINT32, DataType::kINT32,
                          DataType::kINT32, DataType::kFLOAT, DataType::kHALF,  DataType::kHALF};

std::vector<PluginTensorDesc> tensors_of(Extents const& shapes, DataType type = DataType::kHALF) {
    std::vector<PluginTensorDesc> tensors;
    for (size_t i = 0; i < shapes.size(); ++i) {
        DataType const own = TYPES[i] == DataType::kHALF ? type : TYPES[i];
        tensors.push_back({dims_of(shapes[i]), own, TensorFormat::kLINEAR, 1.0f});
    }
    return tensors;
}

// As in a profile: run-time extents are -1, and `largest` holds their upper bounds.
std::vector<DynamicPluginTensorDesc> profile_of(Extents const& largest) {
    std::vector<DynamicPluginTensorDesc> tensors;
    for (PluginTensorDesc const& tensor : tensors_of(largest)) {
        DynamicPluginTensorDesc described{tensor, tensor.dims, tensor.dims, tensor.dims};
        described.desc.dims.d[0] = -1;
        tensors.push_back(described);
    }
    return tensors;
}

// The eight tensors of the operator, one of them of another type or format.
std::vector<DynamicPluginTensorDesc> tensors_but(size_t position, DataType type, TensorFormat format,
                                                 DataType activations = DataType::kHALF) {
    std::vector<DynamicPluginTensorDesc> tensors;
    for (DataType one : TYPES) {
        DynamicPluginTensorDesc tensor{};
        tensor.desc.type = one == DataType::kHALF ? activations : one;
        tensor.desc.format = TensorFormat::kLINEAR;
        tensors.push_back(tensor);
    }
    tensors.at(position).desc.type = type;
    tensors.at(position).desc.format = format;
    return tensors;
}

std::string shapes_refused(RopeAlibiAttention& plugin, Extents const& inputs, int32_t outputs = 2) {
    Builder builder;
    std::vector<DimsExprs> shapes;
    for (auto const& extents : inputs) shapes.push_back(builder.shape(extents));
    DimsExprs made[2];
    int32_t const error =
        plugin.getOutputShapes(shapes.data(), static_cast<int32_t>(shapes.size()), nullptr, 0, made, outputs, builder);
    std::string const said = fakes::message();
    CHECK((error == 0) == said.empty());
    std::string const prefix = "E: RopeAlibiAttention: ";
    return said.empty() ? said : said.substr(prefix.size());
}

// Buffers that are told apart by their addresses; nothing reads them.
struct Buffers {
    char places[9] = {};
    void const* inputs[6] = {&places[0], &places[1], &places[2], &places[3], &places[4], &places[5]};
    void* outputs[2] = {&places[6], &places[1]};  // the pages are updated in place
    void* workspace = &places[8];
};

int32_t run(RopeAlibiAttention& plugin, std::vector<PluginTensorDesc> const& inputs, Buffers const& buffers) {
    return plugin.enqueue(inputs.data(), nullptr, buffers.inputs, buffers.outputs, buffers.workspace, nullptr);
}

}  // namespace

TEST(output_shapes_follow_the_inputs) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    Builder builder;
    std::vector<DimsExprs> inputs;
    for (auto const& extents : Extents{{-1, 960}, {-1, 2, 3, 16, 64}, {-1, -1}, {-1}, {-1}, {-1, 64}}) {
        inputs.push_back(builder.shape(extents));
    }
    DimsExprs outputs[2];
    CHECK_EQ(plugin.getNbOutputs(), 2);
    CHECK_EQ(plugin.getOutputShapes(inputs.data(), 6, nullptr, 0, outputs, 2, builder), 0);
    CHECK(outputs[0].d[0] == inputs[0].d[0]);  // the very expression: tokens
    CHECK_EQ(outputs[0].d[1]->getConstantValue(), 576);
    CHECK_EQ(outputs[0].nbDims, 2);
    CHECK_EQ(outputs[1].nbDims, 5);
    for (int i = 0; i < 5; ++i) CHECK(outputs[1].d[i] == inputs[1].d[i]);
}

TEST(wrong_shapes_are_named) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    CHECK_EQ(shapes_refused(plugin, inputs_of(7, 2, 4)), "");
    Extents inputs = inputs_of(7, 2, 4);
    inputs[0] = {7, 576};
    CHECK_EQ(shapes_refused(plugin, inputs), "input 0 (qkv) is [7, 576]; it must be [tokens, 960]");
    inputs[0] = {1, 7, 960};
    CHECK_EQ(shapes_refused(plugin, inputs), "input 0 (qkv) is [1, 7, 960]; it must be [tokens, 960]");
    inputs = inputs_of(7, 2, 4);
    inputs[1] = {64, 3, 2, 16, 64};
    CHECK_EQ(shapes_refused(plugin, inputs),
             "input 1 (kv_pages) is [64, 3, 2, 16, 64]; it must be [pages, 2, 3, page_size, 64]");
    inputs = inputs_of(7, 2, 4);
    inputs[2] = {8};
    CHECK_EQ(shapes_refused(plugin, inputs), "input 2 (block_table) is [8]; it must be [batch, max_pages]");
    inputs = inputs_of(7, 2, 4);
    inputs[3] = {2};
    CHECK_EQ(shapes_refused(plugin, inputs), "input 3 (cu_seqlens) is [2]; it must be [batch+1=3]");
    inputs = inputs_of(7, 2, 4);
    inputs[4] = {3};
    CHECK_EQ(shapes_refused(plugin, inputs), "input 4 (past_lengths) is [3]; it must be [batch=2]");
    inputs = inputs_of(7, 2, 4);
    inputs[5] = {-1, 32};
    CHECK_EQ(shapes_refused(plugin, inputs), "input 5 (rope_cos_sin) is [?, 32]; it must be [tokens=7, 64]");
    inputs.pop_back();
    CHECK_EQ(shapes_refused(plugin, inputs), "there are 5 inputs; there must be 6, with rope_cos_sin");
    CHECK_EQ(shapes_refused(plugin, inputs_of(7, 2, 4), 1), "there are 1 outputs; there must be 2");
}

TEST(without_rotation_there_are_five_inputs) {
    fakes::reset();
    AttentionFields fields = fakes::smollm2();
    fields.rotary_dim = 0;
    fields.alibi_slopes.assign(9, 0.5f);
    RopeAlibiAttention plugin(fields);
    Extents inputs = inputs_of(7, 2, 4);
    CHECK_EQ(shapes_refused(plugin, inputs), "there are 6 inputs; there must be 5, as rotary_dim is 0");
    inputs.pop_back();
    CHECK_EQ(shapes_refused(plugin, inputs), "");
}

TEST(output_types_are_those_of_the_inputs) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    for (DataType type : {DataType::kHALF, DataType::kBF16, DataType::kFLOAT}) {
        DataType inputs[] = {type, type, DataType::kINT32, DataType::kINT32, DataType::kINT32, DataType::kFLOAT};
        DataType outputs[] = {DataType::kINT8, DataType::kINT8};
        CHECK_EQ(plugin.getOutputDataTypes(outputs, 2, inputs, 6), 0);
        CHECK(outputs[0] == type && outputs[1] == type);
        inputs[2] = DataType::kINT64;
        CHECK_EQ(plugin.getOutputDataTypes(outputs, 2, inputs, 6), 1);
        CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: input 2 is not INT32");
        inputs[2] = DataType::kINT32;
        inputs[1] = DataType::kFP8;
        CHECK_EQ(plugin.getOutputDataTypes(outputs, 2, inputs, 6), 1);
        CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: kv_pages is not of the type of qkv");
        inputs[0] = DataType::kINT8;
        CHECK_EQ(plugin.getOutputDataTypes(outputs, 2, inputs, 6), 1);
        CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: the type of qkv is none of FP16, BF16 and FP32");
    }
}

TEST(one_format_and_one_type_for_each_tensor) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    DataType const all[] = {DataType::kFLOAT, DataType::kHALF, DataType::kINT8, DataType::kINT32, DataType::kBOOL,
                            DataType::kUINT8, DataType::kFP8,  DataType::kBF16, DataType::kINT64, DataType::kINT4};
    for (DataType activations : {DataType::kHALF, DataType::kBF16, DataType::kFLOAT}) {
        for (int32_t position = 0; position < 8; ++position) {
            DataType const expected = TYPES[position] == DataType::kHALF ? activations : TYPES[position];
            for (DataType type : all) {
                auto const at = static_cast<size_t>(position);
                auto tensors = tensors_but(at, type, TensorFormat::kLINEAR, activations);
                bool const free =
                    position == 0 && (type == DataType::kHALF || type == DataType::kBF16 || type == DataType::kFLOAT);
                CHECK_EQ(plugin.supportsFormatCombination(position, tensors.data(), 6, 2), free || type == expected);
                for (int32_t format = 1; format < 13; ++format) {
                    tensors = tensors_but(at, type, static_cast<TensorFormat>(format), activations);
                    CHECK(!plugin.supportsFormatCombination(position, tensors.data(), 6, 2));
                }
            }
        }
    }
    CHECK(fakes::messages().empty());
    auto const tensors = tensors_but(0, DataType::kHALF, TensorFormat::kLINEAR);
    CHECK(!plugin.supportsFormatCombination(0, tensors.data(), 5, 2));
    CHECK(!plugin.supportsFormatCombination(8, tensors.data(), 6, 2));
}

TEST(the_second_output_is_the_second_input) {
    RopeAlibiAttention plugin(fakes::smollm2());
    CHECK_EQ(plugin.getAliasedInput(0), -1);
    CHECK_EQ(plugin.getAliasedInput(1), 1);
}

TEST(capabilities) {
    RopeAlibiAttention plugin(fakes::smollm2());
    auto const version = [&](PluginCapabilityType type) {
        InterfaceInfo const info = plugin.getCapabilityInterface(type)->getInterfaceInfo();
        return std::string(info.kind) + " " + std::to_string(info.major) + "." + std::to_string(info.minor);
    };
    CHECK_EQ(version(PluginCapabilityType::kCORE), "PLUGIN_V3ONE_CORE 1.0");
    CHECK_EQ(version(PluginCapabilityType::kBUILD), "PLUGIN_V3ONE_BUILD 2.0");  // 2: with aliases
    CHECK_EQ(version(PluginCapabilityType::kRUNTIME), "PLUGIN_V3ONE_RUNTIME 1.0");
    CHECK(plugin.getCapabilityInterface(static_cast<PluginCapabilityType>(7)) == nullptr);
    std::unique_ptr<IPluginV3> const copy(plugin.clone());
    CHECK_EQ(std::string(static_cast<RopeAlibiAttention*>(copy.get())->getMetadataString()),
             plugin.getMetadataString());
}

TEST(the_workspace_is_enough_for_every_smaller_batch) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    std::vector<int32_t> asked;
    // Not growing with the batch: 10 splits shared out and rounded up, so that 3 sequences need 12 and 5 need 10.
    fakes::kernels().workspace = [&](TrtbuildAttention const& a) {
        asked.push_back(a.batch);
        CHECK_EQ(a.tokens, 2048);
        CHECK_EQ(a.max_pages, 40);
        CHECK_EQ(a.multiprocessors, 132);
        return static_cast<size_t>(a.batch * ((10 + a.batch - 1) / a.batch));
    };
    auto const largest = profile_of(inputs_of(2048, 5, 40));
    CHECK_EQ(plugin.configurePlugin(largest.data(), 6, nullptr, 2), 0);
    CHECK_EQ(plugin.getWorkspaceSize(largest.data(), 6, nullptr, 2), 12u);
    CHECK(asked == (std::vector<int32_t>{5, 4, 3, 2, 1}));
    auto const five = profile_of(inputs_of(2048, 5, 40));
    CHECK_EQ(plugin.configurePlugin(five.data(), 5, nullptr, 2), 1);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: there are 5 inputs; there must be 6, with rope_cos_sin");
}

TEST(a_run_hands_everything_to_the_kernels) {
    fakes::reset();
    AttentionFields fields = fakes::smollm2();
    fields.interleaved = 1;
    fields.window = 100;
    fields.soft_cap = 30.0f;
    fields.alibi_slopes = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    RopeAlibiAttention plugin(fields);
    std::unique_ptr<IPluginV3> const attached(plugin.attachToContext(nullptr));
    auto& running = *static_cast<RopeAlibiAttention*>(attached.get());
    auto const inputs = tensors_of(inputs_of(11, 2, 4), DataType::kBF16);
    Buffers const buffers;
    CHECK_EQ(running.onShapeChange(inputs.data(), 6, nullptr, 2), 0);
    CHECK_EQ(run(running, inputs, buffers), 0);
    CHECK_EQ(run(running, inputs, buffers), 0);
    CHECK_EQ(fakes::device().questions, 1);  // in attachToContext
    CHECK_EQ(fakes::kernels().runs.size(), 2u);
    TrtbuildAttention const& a = fakes::kernels().runs.back();
    CHECK(a.qkv == buffers.inputs[0] && a.kv_pages == buffers.outputs[1] && a.block_table == buffers.inputs[2]);
    CHECK(a.cu_seqlens == buffers.inputs[3] && a.past_lengths == buffers.inputs[4]);
    CHECK(a.rope_cos_sin == buffers.inputs[5] && a.output == buffers.outputs[0] && a.workspace == buffers.workspace);
    CHECK_EQ(a.type, static_cast<int32_t>(TRTBUILD_BFLOAT16));
    CHECK_EQ(a.tokens, 11);
    CHECK_EQ(a.batch, 2);
    CHECK_EQ(a.max_pages, 4);
    CHECK_EQ(a.pages, 64);
    CHECK_EQ(a.page_size, 16);
    CHECK_EQ(a.heads, 9);
    CHECK_EQ(a.kv_heads, 3);
    CHECK_EQ(a.head_dim, 64);
    CHECK_EQ(a.rotary_dim, 64);
    CHECK_EQ(a.interleaved, 1);
    CHECK_EQ(a.window, 100);
    CHECK_EQ(a.scale, 0.125f);
    CHECK_EQ(a.soft_cap, 30.0f);
    CHECK_EQ(a.has_alibi, 1);
    CHECK_EQ(a.alibi_slopes[0], 9.0f);
    CHECK_EQ(a.alibi_slopes[8], 1.0f);
    CHECK_EQ(a.multiprocessors, 132);
    CHECK(fakes::device().copies.empty());
    CHECK(fakes::messages().empty());
}

TEST(shapes_of_a_run_are_those_of_its_tensors) {
    fakes::reset();
    AttentionFields fields = fakes::smollm2();
    fields.rotary_dim = 0;
    RopeAlibiAttention plugin(fields);
    Extents shapes = inputs_of(11, 2, 4);
    shapes.pop_back();
    auto inputs = tensors_of(shapes);
    CHECK_EQ(plugin.onShapeChange(inputs.data(), 5, nullptr, 2), 0);
    shapes = inputs_of(3, 3, 5);
    shapes.pop_back();
    inputs = tensors_of(shapes, DataType::kFLOAT);
    Buffers const buffers;
    CHECK_EQ(run(plugin, inputs, buffers), 0);
    TrtbuildAttention const& a = fakes::kernels().runs.at(0);
    CHECK_EQ(a.tokens, 3);
    CHECK_EQ(a.batch, 3);
    CHECK_EQ(a.max_pages, 5);
    CHECK_EQ(a.type, static_cast<int32_t>(TRTBUILD_FLOAT32));
    CHECK(a.rope_cos_sin == nullptr);
    CHECK_EQ(a.has_alibi, 0);
}

TEST(pages_that_are_not_aliased_are_copied_and_said_to_be_once) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    auto const inputs = tensors_of(inputs_of(11, 2, 4));
    Buffers buffers;
    buffers.outputs[1] = &buffers.places[7];
    CHECK_EQ(run(plugin, inputs, buffers), 0);
    CHECK_EQ(run(plugin, inputs, buffers), 0);
    CHECK(fakes::device().copies == (std::vector<size_t>{786432, 786432}));  // 64 * 2 * 3 * 16 * 64 halves
    CHECK(fakes::kernels().runs.back().kv_pages == &buffers.places[7]);
    std::vector<std::string> const said = fakes::messages();
    CHECK_EQ(said.size(), 1u);
    CHECK(said.at(0).find("W: RopeAlibiAttention: the updated kv_pages are another buffer") == 0);
    CHECK(said.at(0).find("ALIASED_PLUGIN_IO_10_03") != std::string::npos);
}

TEST(failures_of_a_run_are_said) {
    fakes::reset();
    RopeAlibiAttention plugin(fakes::smollm2());
    Buffers const buffers;
    auto inputs = tensors_of(inputs_of(11, 2, 4));
    fakes::kernels().error = 700;
    CHECK_EQ(run(plugin, inputs, buffers), 1);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: the kernels did not start: a CUDA error");
    fakes::kernels().error = 0;
    fakes::kernels().wrong = "page_size is odd";
    inputs[1].dims.d[3] = 17;
    CHECK_EQ(run(plugin, inputs, buffers), 1);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: page_size is odd");
    fakes::kernels().wrong = nullptr;
    auto huge = tensors_of(inputs_of(int64_t{1} << 31, 2, 4));
    CHECK_EQ(plugin.onShapeChange(huge.data(), 6, nullptr, 2), 1);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: there are 2147483648 tokens, which is out of range");
    CHECK_EQ(run(plugin, huge, buffers), 1);
    CHECK_EQ(fakes::kernels().runs.size(), 1u);
}

TEST(a_larger_gpu_than_the_builders_is_used_like_that) {
    fakes::reset();
    AttentionFields fields = fakes::smollm2();
    fields.multiprocessors = 72;
    Buffers const buffers;
    auto const inputs = tensors_of(inputs_of(11, 2, 4));
    for (int here : {132, 40}) {
        fakes::device().multiprocessors = here;
        RopeAlibiAttention plugin(fields);
        std::unique_ptr<IPluginV3> const attached(plugin.attachToContext(nullptr));
        CHECK_EQ(run(*static_cast<RopeAlibiAttention*>(attached.get()), inputs, buffers), 0);
        CHECK_EQ(fakes::kernels().runs.back().multiprocessors, here == 132 ? 72 : 40);
    }
}

TEST(no_device) {
    fakes::reset();
    fakes::device().error = 35;
    RopeAlibiAttention plugin(fakes::smollm2());
    CHECK(plugin.attachToContext(nullptr) == nullptr);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: the current CUDA device is not known: a CUDA error");
    CHECK(plugin.getFieldsToSerialize() == nullptr);
    auto const largest = profile_of(inputs_of(2048, 5, 40));
    CHECK_EQ(plugin.getWorkspaceSize(largest.data(), 6, nullptr, 2), 0u);
}
