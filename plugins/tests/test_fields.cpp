#include <limits>

#include "check.h"
#include "fakes.h"
#include "fields.h"

using namespace trtbuild;

namespace {

Field ints(char const* name, std::vector<int32_t> const& values) {
    return {name, FieldType::INT32, "int32", values.data(), static_cast<int32_t>(values.size())};
}

Field floats(char const* name, std::vector<float> const& values) {
    return {name, FieldType::FLOAT32, "float32", values.data(), static_cast<int32_t>(values.size())};
}

std::vector<int32_t> const TWELVE{12}, FOUR{4}, EIGHTY{80};
std::vector<float> const EIGHTH{0.125f};

std::vector<Field> needed() {
    return {ints("num_heads", TWELVE), ints("num_kv_heads", FOUR), ints("head_dim", EIGHTY), floats("scale", EIGHTH)};
}

// The message for the needed fields with one of them replaced, or with one more.
std::string refused(Field const& field, Origin origin = Origin::NODE) {
    std::vector<Field> given = needed();
    bool replaced = false;
    for (Field& one : given) {
        if (field.name != nullptr && std::string(one.name) == field.name) {
            one = field;
            replaced = true;
        }
    }
    if (!replaced) given.push_back(field);
    try {
        read_fields(given, origin);
        return "";
    } catch (FieldError const& error) {
        return error.what();
    }
}

std::string refused(char const* name, int32_t value) {
    std::vector<int32_t> const values{value};
    return refused(ints(name, values));
}

std::string refused(char const* name, float value) {
    std::vector<float> const values{value};
    return refused(floats(name, values));
}

}  // namespace

TEST(defaults_of_optional_fields) {
    AttentionFields const fields = read_fields(needed(), Origin::NODE);
    CHECK_EQ(fields.num_heads, 12);
    CHECK_EQ(fields.num_kv_heads, 4);
    CHECK_EQ(fields.head_dim, 80);
    CHECK_EQ(fields.scale, 0.125f);
    CHECK_EQ(fields.rotary_dim, 0);
    CHECK_EQ(fields.interleaved, 0);
    CHECK_EQ(fields.window, 0);
    CHECK_EQ(fields.soft_cap, 0.0f);
    CHECK(fields.alibi_slopes.empty());
}

TEST(every_field_is_needed_once) {
    for (size_t left_out = 0; left_out < needed().size(); ++left_out) {
        std::vector<Field> given = needed();
        std::string const name = given[left_out].name;
        given.erase(given.begin() + static_cast<long>(left_out));
        try {
            read_fields(given, Origin::NODE);
            CHECK(false);
        } catch (FieldError const& error) {
            CHECK_EQ(std::string(error.what()), "field '" + name + "' is missing");
        }
    }
    std::vector<Field> twice = needed();
    twice.push_back(ints("num_heads", TWELVE));
    try {
        read_fields(twice, Origin::NODE);
        CHECK(false);
    } catch (FieldError const& error) {
        CHECK_EQ(std::string(error.what()), "field 'num_heads' is given twice");
    }
}

TEST(fields_that_are_not_there) {
    CHECK_EQ(refused(ints("head_size", FOUR)),
             "field 'head_size' is unknown; there are num_heads, num_kv_heads, head_dim, rotary_dim, interleaved, "
             "window, scale, soft_cap, alibi_slopes");
    CHECK_EQ(refused({nullptr, FieldType::INT32, "int32", FOUR.data(), 1}), "a field has no name");
    CHECK_EQ(refused(ints("multiprocessors", FOUR)).substr(0, 35), "field 'multiprocessors' is unknown;");
}

TEST(wrong_types_and_lengths) {
    CHECK_EQ(refused(floats("num_heads", EIGHTH)), "field 'num_heads' must be int32, and is float32");
    CHECK_EQ(refused(ints("scale", FOUR)), "field 'scale' must be float32, and is int32");
    CHECK_EQ(refused({"head_dim", FieldType::OTHER, "int64", FOUR.data(), 1}),
             "field 'head_dim' must be int32, and is int64");
    std::vector<int32_t> const two{1, 2};
    CHECK_EQ(refused(ints("window", two)), "field 'window' must be one value, and has 2");
    CHECK_EQ(refused(ints("window", {})), "field 'window' must be one value, and has 0");
    CHECK_EQ(refused({"window", FieldType::INT32, "int32", nullptr, 1}), "field 'window' has no data");
    CHECK_EQ(refused({"alibi_slopes", FieldType::FLOAT32, "float32", nullptr, 12}), "field 'alibi_slopes' has no data");
    CHECK_EQ(refused({"alibi_slopes", FieldType::FLOAT32, "float32", EIGHTH.data(), -1}),
             "field 'alibi_slopes' has no data");
}

TEST(values_out_of_range) {
    float const nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    CHECK_EQ(refused("num_heads", 0), "field 'num_heads' is 0; it must be 1 or more");
    CHECK_EQ(refused("num_kv_heads", 0), "field 'num_kv_heads' is 0; it must be a divisor of num_heads, 12");
    CHECK_EQ(refused("num_kv_heads", 5), "field 'num_kv_heads' is 5; it must be a divisor of num_heads, 12");
    CHECK_EQ(refused("num_kv_heads", -4), "field 'num_kv_heads' is -4; it must be a divisor of num_heads, 12");
    CHECK_EQ(refused("head_dim", 72), "field 'head_dim' is 72; it must be 64, 80, 96, 128 or 256");
    CHECK_EQ(refused("rotary_dim", 81), "field 'rotary_dim' is 81; it must be even, from 0 to head_dim, 80");
    CHECK_EQ(refused("rotary_dim", 79), "field 'rotary_dim' is 79; it must be even, from 0 to head_dim, 80");
    CHECK_EQ(refused("rotary_dim", -2), "field 'rotary_dim' is -2; it must be even, from 0 to head_dim, 80");
    CHECK_EQ(refused("interleaved", 2), "field 'interleaved' is 2; it must be 0 or 1");
    CHECK_EQ(refused("window", -1), "field 'window' is -1; it must be 0 (all positions) or more");
    CHECK_EQ(refused("scale", 0.0f), "field 'scale' is 0; it must be finite and above 0");
    CHECK_EQ(refused("scale", nan), "field 'scale' is nan; it must be finite and above 0");
    CHECK_EQ(refused("scale", infinity), "field 'scale' is inf; it must be finite and above 0");
    CHECK_EQ(refused("soft_cap", -50.0f), "field 'soft_cap' is -50; it must be 0 (none) or a finite bound");
    CHECK_EQ(refused("soft_cap", nan), "field 'soft_cap' is nan; it must be 0 (none) or a finite bound");
}

TEST(slopes) {
    std::vector<float> slopes(12, 0.5f);
    CHECK_EQ(refused(floats("alibi_slopes", slopes)), "");
    slopes[3] = -0.25f;
    CHECK_EQ(refused(floats("alibi_slopes", slopes)),
             "field 'alibi_slopes' is -0.25 at head 3; it must be finite and not below 0");
    slopes.pop_back();
    CHECK_EQ(refused(floats("alibi_slopes", slopes)),
             "field 'alibi_slopes' has 11 values; it must have one for each of the 12 heads");
    CHECK_EQ(refused(floats("alibi_slopes", {})), "field 'alibi_slopes' has no values");
    std::vector<float> const many(260, 0.5f);
    std::vector<int32_t> const heads{260};
    std::vector<Field> given{ints("num_heads", heads), ints("num_kv_heads", FOUR), ints("head_dim", EIGHTY),
                             floats("scale", EIGHTH), floats("alibi_slopes", many)};
    try {
        read_fields(given, Origin::NODE);
        CHECK(false);
    } catch (FieldError const& error) {
        CHECK_EQ(std::string(error.what()), "field 'alibi_slopes' has 260 values; there may be 256 at most");
    }
}

TEST(unaligned_data_are_read) {
    char bytes[5] = {};
    int32_t const value = 16;
    __builtin_memcpy(bytes + 1, &value, sizeof(value));
    std::vector<Field> given = needed();
    given.push_back({"window", FieldType::INT32, "int32", bytes + 1, 1});
    CHECK_EQ(read_fields(given, Origin::NODE).window, 16);
}

TEST(a_plan_says_what_it_was_built_on) {
    AttentionFields fields = fakes::smollm2();
    fields.interleaved = 1;
    fields.window = 4096;
    fields.soft_cap = 50.0f;
    fields.alibi_slopes = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    fields.multiprocessors = 132;
    AttentionFields const read = read_fields(write_fields(fields), Origin::PLAN);
    CHECK_EQ(fields_text(read), fields_text(fields));
    CHECK_EQ(read.multiprocessors, 132);
    CHECK_EQ(fields_text(read),
             "num_heads=9, num_kv_heads=3, head_dim=64, rotary_dim=64, interleaved=1, window=4096, scale=0.125, "
             "soft_cap=50, alibi_slopes=1 2 3 4 5 6 7 8 9");
    fields.multiprocessors = 0;
    try {
        read_fields(write_fields(fields), Origin::PLAN);
        CHECK(false);
    } catch (FieldError const& error) {
        CHECK_EQ(std::string(error.what()), "field 'multiprocessors' is 0; it must be 1 or more");
    }
    CHECK_EQ(refused(ints("window", FOUR), Origin::PLAN), "field 'multiprocessors' is missing");
}
