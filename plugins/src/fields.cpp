#include "fields.h"

#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "trtbuild/attention.h"

namespace trtbuild {
namespace {

using Ints = int32_t AttentionFields::*;
using Floats = float AttentionFields::*;
using Lists = std::vector<float> AttentionFields::*;

constexpr float LARGEST = 1e30f;

char const* type_name(FieldType type) { return type == FieldType::INT32 ? "int32" : "float32"; }

[[noreturn]] void fail(std::string const& name, std::string const& text) {
    throw FieldError("field '" + name + "' " + text);
}

std::string number(float value) {
    std::ostringstream text;
    text << value;
    return text.str();
}

FieldSpec const& find(std::string const& name, Origin origin) {
    std::string known;
    for (FieldSpec const& spec : field_specs()) {
        if (spec.presence == Presence::PLAN_ONLY && origin == Origin::NODE) continue;
        if (name == spec.name) return spec;
        known += (known.empty() ? "" : ", ") + std::string(spec.name);
    }
    fail(name, "is unknown; there are " + known);
}

void assign(AttentionFields& fields, FieldSpec const& spec, Field const& field) {
    if (field.type != spec.type()) {
        fail(spec.name, "must be " + std::string(type_name(spec.type())) + ", and is " + field.type_name);
    }
    if (!spec.is_list() && field.length != 1) {
        fail(spec.name, "must be one value, and has " + std::to_string(field.length));
    }
    if (field.length < 0 || (field.length > 0 && field.data == nullptr)) fail(spec.name, "has no data");
    // By memcpy: nobody promises that the data are aligned.
    if (auto const* ints = std::get_if<Ints>(&spec.member)) {
        std::memcpy(&(fields.*(*ints)), field.data, sizeof(int32_t));
    } else if (auto const* floats = std::get_if<Floats>(&spec.member)) {
        std::memcpy(&(fields.*(*floats)), field.data, sizeof(float));
    } else {
        std::vector<float>& list = fields.*std::get<Lists>(spec.member);
        list.resize(static_cast<size_t>(field.length));
        if (!list.empty()) std::memcpy(list.data(), field.data, sizeof(float) * list.size());
    }
}

void refuse(bool wrong, char const* name, std::string const& is, char const* must_be) {
    if (wrong) fail(name, "is " + is + "; it must be " + must_be);
}

void check_slopes(AttentionFields const& f) {
    size_t const slopes = f.alibi_slopes.size();
    if (slopes != static_cast<size_t>(f.num_heads)) {
        fail("alibi_slopes", "has " + std::to_string(slopes) + " values; it must have one for each of the " +
                                 std::to_string(f.num_heads) + " heads");
    }
    if (slopes > TRTBUILD_MAX_ALIBI_HEADS) {
        fail("alibi_slopes", "has " + std::to_string(slopes) + " values; there may be " +
                                 std::to_string(TRTBUILD_MAX_ALIBI_HEADS) + " at most");
    }
    for (size_t head = 0; head < slopes; ++head) {
        float const slope = f.alibi_slopes[head];
        if (!(slope >= 0.0f && slope <= LARGEST)) {
            fail("alibi_slopes",
                 "is " + number(slope) + " at head " + std::to_string(head) + "; it must be finite and not below 0");
        }
    }
}

// The rules of trtbuild_attention_check, in the words of the fields.
void check_values(AttentionFields const& f, Origin origin) {
    refuse(f.num_heads < 1, "num_heads", std::to_string(f.num_heads), "1 or more");
    refuse(f.num_kv_heads < 1 || f.num_heads % f.num_kv_heads != 0, "num_kv_heads", std::to_string(f.num_kv_heads),
           ("a divisor of num_heads, " + std::to_string(f.num_heads)).c_str());
    bool const known =
        f.head_dim == 64 || f.head_dim == 80 || f.head_dim == 96 || f.head_dim == 128 || f.head_dim == 256;
    refuse(!known, "head_dim", std::to_string(f.head_dim), "64, 80, 96, 128 or 256");
    refuse(f.rotary_dim < 0 || f.rotary_dim > f.head_dim || f.rotary_dim % 2 != 0, "rotary_dim",
           std::to_string(f.rotary_dim), ("even, from 0 to head_dim, " + std::to_string(f.head_dim)).c_str());
    refuse(f.interleaved != 0 && f.interleaved != 1, "interleaved", std::to_string(f.interleaved), "0 or 1");
    refuse(f.window < 0, "window", std::to_string(f.window), "0 (all positions) or more");
    refuse(!(f.scale > 0.0f && f.scale <= LARGEST), "scale", number(f.scale), "finite and above 0");
    refuse(!(f.soft_cap >= 0.0f && f.soft_cap <= LARGEST), "soft_cap", number(f.soft_cap),
           "0 (none) or a finite bound");
    if (!f.alibi_slopes.empty()) check_slopes(f);
    if (origin == Origin::PLAN) {
        refuse(f.multiprocessors < 1, "multiprocessors", std::to_string(f.multiprocessors), "1 or more");
    }
}

}  // namespace

FieldType FieldSpec::type() const {
    return std::holds_alternative<Ints>(member) ? FieldType::INT32 : FieldType::FLOAT32;
}

bool FieldSpec::is_list() const { return std::holds_alternative<Lists>(member); }

std::vector<FieldSpec> const& field_specs() {
    using F = AttentionFields;
    // A local one: static registration may ask before the library's other initialisers have run.
    static std::vector<FieldSpec> const specs{
        {"num_heads", &F::num_heads, Presence::REQUIRED, "query heads"},
        {"num_kv_heads", &F::num_kv_heads, Presence::REQUIRED, "key and value heads; divides num_heads"},
        {"head_dim", &F::head_dim, Presence::REQUIRED, "64, 80, 96, 128 or 256"},
        {"rotary_dim", &F::rotary_dim, Presence::OPTIONAL, "the first elements of each head that are rotated; 0: none"},
        {"interleaved", &F::interleaved, Presence::OPTIONAL, "1: rotated pairs are neighbours; 0: they are halves"},
        {"window", &F::window, Presence::OPTIONAL, "positions that a token sees, its own included; 0: all"},
        {"scale", &F::scale, Presence::REQUIRED, "of q.k, before anything else"},
        {"soft_cap", &F::soft_cap, Presence::OPTIONAL, "scores become soft_cap * tanh(score / soft_cap); 0: none"},
        {"alibi_slopes", &F::alibi_slopes, Presence::OPTIONAL, "by head, per position of distance; absent: none"},
        {"multiprocessors", &F::multiprocessors, Presence::PLAN_ONLY, "of the GPU that built the plan"},
    };
    return specs;
}

AttentionFields read_fields(std::vector<Field> const& given, Origin origin) {
    AttentionFields fields;
    std::set<std::string> seen;
    for (Field const& field : given) {
        if (field.name == nullptr) throw FieldError("a field has no name");
        FieldSpec const& spec = find(field.name, origin);
        if (!seen.insert(spec.name).second) fail(spec.name, "is given twice");
        assign(fields, spec, field);
    }
    for (FieldSpec const& spec : field_specs()) {
        bool const needed =
            spec.presence == Presence::REQUIRED || (spec.presence == Presence::PLAN_ONLY && origin == Origin::PLAN);
        if (needed && seen.count(spec.name) == 0) fail(spec.name, "is missing");
    }
    if (seen.count("alibi_slopes") != 0 && fields.alibi_slopes.empty()) fail("alibi_slopes", "has no values");
    check_values(fields, origin);
    return fields;
}

std::vector<Field> write_fields(AttentionFields const& fields) {
    std::vector<Field> written;
    for (FieldSpec const& spec : field_specs()) {
        Field field{spec.name, spec.type(), type_name(spec.type()), nullptr, 1};
        if (auto const* ints = std::get_if<Ints>(&spec.member)) {
            field.data = &(fields.*(*ints));
        } else if (auto const* floats = std::get_if<Floats>(&spec.member)) {
            field.data = &(fields.*(*floats));
        } else {
            std::vector<float> const& list = fields.*std::get<Lists>(spec.member);
            if (list.empty()) continue;
            field.data = list.data();
            field.length = static_cast<int32_t>(list.size());
        }
        written.push_back(field);
    }
    return written;
}

std::string fields_text(AttentionFields const& fields) {
    std::ostringstream text;
    for (FieldSpec const& spec : field_specs()) {
        if (spec.presence == Presence::PLAN_ONLY) continue;
        text << (text.tellp() > 0 ? ", " : "") << spec.name << '=';
        if (auto const* ints = std::get_if<Ints>(&spec.member)) {
            text << fields.*(*ints);
        } else if (auto const* floats = std::get_if<Floats>(&spec.member)) {
            text << fields.*(*floats);
        } else {
            std::vector<float> const& list = fields.*std::get<Lists>(spec.member);
            if (list.empty()) text << "none";
            for (size_t i = 0; i < list.size(); ++i) text << (i > 0 ? " " : "") << list[i];
        }
    }
    return text.str();
}

std::string field_specs_json() {
    std::ostringstream text;
    AttentionFields const defaults;
    text << '[';
    for (FieldSpec const& spec : field_specs()) {
        if (spec.presence == Presence::PLAN_ONLY) continue;
        text << (text.tellp() > 1 ? ", " : "") << R"({"name": ")" << spec.name << R"(", "type": ")"
             << type_name(spec.type()) << (spec.is_list() ? "[num_heads]" : "") << R"(", "required": )"
             << (spec.presence == Presence::REQUIRED ? "true" : "false") << R"(, "default": )";
        if (spec.presence == Presence::REQUIRED || spec.is_list()) {
            text << "null";
        } else if (auto const* ints = std::get_if<Ints>(&spec.member)) {
            text << defaults.*(*ints);
        } else {
            text << defaults.*std::get<Floats>(spec.member);
        }
        text << R"(, "meaning": ")" << spec.meaning << R"("})";
    }
    text << ']';
    return text.str();
}

}  // namespace trtbuild
