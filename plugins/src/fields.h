// The operator's fields: one table of names, types and meanings, by which they are read, written and described.
// Nothing here knows TensorRT.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace trtbuild {

struct AttentionFields {
    int32_t num_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t rotary_dim = 0;
    int32_t interleaved = 0;
    int32_t window = 0;
    float scale = 0.0f;
    float soft_cap = 0.0f;
    std::vector<float> alibi_slopes;  // by head; empty for none
    int32_t multiprocessors = 0;      // of the GPU that built the plan; 0 while there is no plan
};

enum class FieldType { INT32, FLOAT32, OTHER };

// A field as it is handed over: `length` values at `data`.
struct Field {
    char const* name;
    FieldType type;
    char const* type_name;  // for messages
    void const* data;
    int32_t length;
};

// PLAN_ONLY: written by the builder, never by a node.
enum class Presence { REQUIRED, OPTIONAL, PLAN_ONLY };

struct FieldSpec {
    using Member =
        std::variant<int32_t AttentionFields::*, float AttentionFields::*, std::vector<float> AttentionFields::*>;

    char const* name;
    Member member;
    Presence presence;
    char const* meaning;

    FieldType type() const;
    bool is_list() const;
};

std::vector<FieldSpec> const& field_specs();

// Where fields come from: a network's node, or a serialised plan.
enum class Origin { NODE, PLAN };

// What is wrong with one field, in a sentence that names it.
class FieldError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Throws FieldError for a field that is unknown, missing, given twice, of a wrong type or length, or out of range.
AttentionFields read_fields(std::vector<Field> const& given, Origin origin);

// Every field that has a value, `multiprocessors` included; they point into `fields`.
std::vector<Field> write_fields(AttentionFields const& fields);

// "num_heads=32, num_kv_heads=8 …": for layer information.
std::string fields_text(AttentionFields const& fields);

// The table without PLAN_ONLY ones, as a JSON array.
std::string field_specs_json();

}  // namespace trtbuild
