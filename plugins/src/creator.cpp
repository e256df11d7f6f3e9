#include "creator.h"

#include <memory>
#include <stdexcept>
#include <string>

#include "call.h"
#include "fields.h"
#include "log.h"
#include "plugin.h"

namespace trtbuild {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

PluginFieldType tensorrt_type(FieldType type) {
    return type == FieldType::INT32 ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32;
}

FieldType field_type(PluginFieldType type) {
    if (type == PluginFieldType::kINT32) return FieldType::INT32;
    return type == PluginFieldType::kFLOAT32 ? FieldType::FLOAT32 : FieldType::OTHER;
}

char const* type_name(PluginFieldType type) {
    switch (type) {
        case PluginFieldType::kFLOAT16: return "float16";
        case PluginFieldType::kFLOAT32: return "float32";
        case PluginFieldType::kFLOAT64: return "float64";
        case PluginFieldType::kINT8: return "int8";
        case PluginFieldType::kINT16: return "int16";
        case PluginFieldType::kINT32: return "int32";
        case PluginFieldType::kINT64: return "int64";
        case PluginFieldType::kCHAR: return "char";
        case PluginFieldType::kBF16: return "bfloat16";
        default: return "of another type";
    }
}

std::vector<Field> given_fields(PluginFieldCollection const* fields) {
    std::vector<Field> given;
    if (fields == nullptr) return given;
    if (fields->nbFields > 0 && fields->fields == nullptr) throw std::invalid_argument("the fields have no data");
    for (int32_t i = 0; i < fields->nbFields; ++i) {
        PluginField const& field = fields->fields[i];
        given.push_back({field.name, field_type(field.type), type_name(field.type), field.data, field.length});
    }
    return given;
}

// The kernels have the last word on what they can do; asked here, so that a node is refused and not the built network.
void check_with_kernels(AttentionFields const& fields) {
    constexpr int32_t PAGE_SIZE = 16;
    int64_t const width = (static_cast<int64_t>(fields.num_heads) + 2 * fields.num_kv_heads) * fields.head_dim;
    Shapes const smallest{{{2, {1, width}},
                           {5, {1, 2, fields.num_kv_heads, PAGE_SIZE, fields.head_dim}},
                           {2, {1, 1}},
                           {1, {2}},
                           {1, {1}},
                           {2, {1, fields.rotary_dim}}}};
    make_attention(fields, smallest, nvinfer1::DataType::kHALF, 1);
}

}  // namespace

RopeAlibiAttentionCreator::RopeAlibiAttentionCreator() {
    for (FieldSpec const& spec : field_specs()) {
        if (spec.presence == Presence::PLAN_ONLY) continue;
        names_.emplace_back(spec.name, nullptr, tensorrt_type(spec.type()), spec.is_list() ? 0 : 1);
    }
    collection_.nbFields = static_cast<int32_t>(names_.size());
    collection_.fields = names_.data();
}

nvinfer1::IPluginV3* RopeAlibiAttentionCreator::createPlugin(char const* name, PluginFieldCollection const* fields,
                                                             nvinfer1::TensorRTPhase phase) noexcept {
    return guarded<nvinfer1::IPluginV3*>(nullptr, [&]() -> nvinfer1::IPluginV3* {
        bool const building = phase == nvinfer1::TensorRTPhase::kBUILD;
        try {
            AttentionFields read = read_fields(given_fields(fields), building ? Origin::NODE : Origin::PLAN);
            check_with_kernels(read);
            return std::make_unique<RopeAlibiAttention>(std::move(read)).release();
        } catch (std::exception const& error) {
            std::string const node = name != nullptr && *name != '\0' ? "node '" + std::string(name) + "': " : "";
            throw std::invalid_argument(node + error.what());
        }
    });
}

char const* RopeAlibiAttentionCreator::getPluginName() const noexcept { return PLUGIN_NAME; }
char const* RopeAlibiAttentionCreator::getPluginVersion() const noexcept { return PLUGIN_VERSION; }
char const* RopeAlibiAttentionCreator::getPluginNamespace() const noexcept { return PLUGIN_NAMESPACE; }

}  // namespace trtbuild
