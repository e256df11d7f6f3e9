#include <memory>

#include "check.h"
#include "creator.h"
#include "fakes.h"
#include "plugin.h"

using namespace nvinfer1;
using trtbuild::RopeAlibiAttention;

namespace {

// The plugin of these fields, through the creator; null if they are refused.
std::unique_ptr<RopeAlibiAttention> create(std::vector<PluginField> const& fields,
                                           TensorRTPhase phase = TensorRTPhase::kBUILD) {
    trtbuild::RopeAlibiAttentionCreator creator;
    PluginFieldCollection const collection{static_cast<int32_t>(fields.size()), fields.data()};
    return std::unique_ptr<RopeAlibiAttention>(
        static_cast<RopeAlibiAttention*>(creator.createPlugin("/model/layers.0/attn", &collection, phase)));
}

int32_t const HEADS = 40, KV_HEADS = 8, HEAD_DIM = 128, PLANES = 48;
float const SCALE = 0.0883883f;

std::vector<PluginField> needed() {
    return {{"num_heads", &HEADS, PluginFieldType::kINT32, 1},
            {"num_kv_heads", &KV_HEADS, PluginFieldType::kINT32, 1},
            {"head_dim", &HEAD_DIM, PluginFieldType::kINT32, 1},
            {"scale", &SCALE, PluginFieldType::kFLOAT32, 1}};
}

}  // namespace

TEST(the_creator_says_who_it_is_and_what_it_takes) {
    trtbuild::RopeAlibiAttentionCreator creator;
    CHECK_EQ(std::string(creator.getPluginName()), "RopeAlibiAttention");
    CHECK_EQ(std::string(creator.getPluginVersion()), "1");
    CHECK_EQ(std::string(creator.getPluginNamespace()), "trtbuild");
    PluginFieldCollection const* const names = creator.getFieldNames();
    CHECK_EQ(names->nbFields, 9);
    CHECK_EQ(std::string(names->fields[0].name), "num_heads");
    CHECK(names->fields[0].type == PluginFieldType::kINT32);
    CHECK_EQ(std::string(names->fields[8].name), "alibi_slopes");
    CHECK(names->fields[8].type == PluginFieldType::kFLOAT32);
}

TEST(a_plugin_of_a_node) {
    fakes::reset();
    auto const plugin = create(needed());
    CHECK(plugin != nullptr);
    CHECK_EQ(plugin->fields().num_heads, 40);
    CHECK_EQ(plugin->fields().scale, 0.0883883f);
    CHECK_EQ(std::string(plugin->getPluginNamespace()), "trtbuild");
    CHECK(fakes::messages().empty());
    CHECK_EQ(fakes::device().questions, 0);  // a network is written on machines without a GPU
}

TEST(a_bad_field_gives_null_and_one_message) {
    fakes::reset();
    std::vector<PluginField> fields = needed();
    fields[2] = {"head_dim", &PLANES, PluginFieldType::kINT32, 1};
    CHECK(create(fields) == nullptr);
    std::vector<std::string> const said = fakes::messages();
    CHECK_EQ(said.size(), 1u);
    CHECK_EQ(said.at(0),
             "E: RopeAlibiAttention: node '/model/layers.0/attn': field 'head_dim' is 48; it must be 64, 80, 96, 128 "
             "or 256");
    fields[2].type = PluginFieldType::kINT64;
    CHECK(create(fields) == nullptr);
    CHECK(fakes::message().find("field 'head_dim' must be int32, and is int64") != std::string::npos);
    fields[2].type = static_cast<PluginFieldType>(99);
    CHECK(create(fields) == nullptr);
    CHECK(fakes::message().find("and is of another type") != std::string::npos);
}

TEST(no_fields_at_all) {
    fakes::reset();
    trtbuild::RopeAlibiAttentionCreator creator;
    CHECK(creator.createPlugin(nullptr, nullptr, TensorRTPhase::kBUILD) == nullptr);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: field 'num_heads' is missing");
    PluginFieldCollection const broken{3, nullptr};
    CHECK(creator.createPlugin("", &broken, TensorRTPhase::kBUILD) == nullptr);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: the fields have no data");
}

TEST(what_kernels_refuse_is_refused_with_their_reason) {
    fakes::reset();
    fakes::kernels().wrong = "the moon is full";
    CHECK(create(needed()) == nullptr);
    CHECK_EQ(fakes::message(), "E: RopeAlibiAttention: node '/model/layers.0/attn': the moon is full");
}

TEST(a_plan_gives_the_same_plugin) {
    fakes::reset();
    std::vector<float> slopes(40);
    for (size_t i = 0; i < slopes.size(); ++i) slopes[i] = 1.0f / static_cast<float>(i + 1);
    std::vector<PluginField> fields = needed();
    fields.emplace_back("alibi_slopes", slopes.data(), PluginFieldType::kFLOAT32, 40);
    auto const built = create(fields);
    PluginFieldCollection const* const plan = built->getFieldsToSerialize();
    CHECK(plan != nullptr);
    auto const loaded = create({plan->fields, plan->fields + plan->nbFields}, TensorRTPhase::kRUNTIME);
    CHECK(loaded != nullptr);
    CHECK_EQ(std::string(loaded->getMetadataString()), built->getMetadataString());
    CHECK(loaded->fields().alibi_slopes == slopes);
    CHECK_EQ(loaded->fields().multiprocessors, 132);
    // A plan's fields are not a node's, and the other way round.
    CHECK(create({plan->fields, plan->fields + plan->nbFields}) == nullptr);
    CHECK(fakes::message().find("field 'multiprocessors' is unknown") != std::string::npos);
    CHECK(create(needed(), TensorRTPhase::kRUNTIME) == nullptr);
    CHECK(fakes::message().find("field 'multiprocessors' is missing") != std::string::npos);
}
