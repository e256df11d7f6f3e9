// A GPU's blocks, warps and memories on the CPU, for tests: it runs the kernels' own sources, compiled by g++.
//
// Each thread of a block is a fibre. A warp's operation (shuffle, mma, ldmatrix, …) is carried out when all 32 lanes
// have come to it, by the layouts of the PTX ISA. Reported as an error, with kernel, block and thread:
//   - an access outside the registered buffers, or not aligned to its size, or a write to a read-only one;
//   - shared memory that is read before it was written, or while an asynchronous copy into it is under way;
//   - two threads' accesses to the same shared memory, one of them a write, with no barrier between;
//   - lanes of a warp, or warps of a block, that wait for different things.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#define TRTBUILD_DEVICE inline
#define TRTBUILD_ANYWHERE inline
#define TRTBUILD_KERNEL(threads, blocks) void
#define TRTBUILD_PARAMETER const
#define TRTBUILD_UNROLL

namespace trtbuild {

struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct Half {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};
struct Index {
    int x, y, z;
};
using Grid = Index;

}  // namespace trtbuild

namespace simt {

constexpr int WARP = 32;

// Stops the running thread, and with it the launch.
[[noreturn]] void fail(std::string const& what);

int thread_index();
trtbuild::Index block_index();

void check_global(void const* address, size_t bytes, bool write);

// Of each mma, once.
void count_product();

// Fails for a value that is not in range, unless the test is about such values.
int put_in_range(int value, int first, int last);

// A barrier of the block, or of the warp.
void sync_threads();
void sync_warp();

// Waits until all lanes of the warp are here with the same `operation`; it is called once, with what each lane gave.
using Operation = void (*)(void* const (&lanes)[WARP]);
void together(Operation operation, void* own);

unsigned char* shared_base();
void note_shared(void const* address, size_t bytes, bool write);
void copy_later(void* to, void const* from, bool valid);
void commit_copies();
void wait_for_copies(int groups_left);

// Returns 0, or 1 when something was wrong. `address` is the kernel's, for its name.
int run(void* address, trtbuild::Grid grid, int threads, size_t shared, std::function<void()> const& kernel);

// An element in global or in shared memory.
template <class T, bool shared>
class Reference {
  public:
    explicit Reference(T* at) : at_(at) {}
    operator std::remove_const_t<T>() const {
        note(false);
        return *at_;
    }
    void operator=(T const& value) const {
        note(true);
        *at_ = value;
    }
    void operator=(Reference const&) const = delete;

  private:
    void note(bool write) const {
        if constexpr (shared) {
            note_shared(at_, sizeof(T), write);
        } else {
            check_global(at_, sizeof(T), write);
        }
    }
    T* at_;
};

template <class T, bool shared>
class Pointer {
  public:
    Pointer() = default;
    explicit Pointer(T* at) : at_(at) {}
    template <class U, class = std::enable_if_t<std::is_same_v<std::remove_const_t<T>, U> && std::is_const_v<T>>>
    Pointer(Pointer<U, shared> other) : at_(other.raw()) {}
    Reference<T, shared> operator[](std::ptrdiff_t i) const { return Reference<T, shared>(at_ + i); }
    Pointer operator+(std::ptrdiff_t i) const { return Pointer(at_ + i); }
    T* raw() const { return at_; }

  private:
    T* at_ = nullptr;
};

}  // namespace simt

namespace trtbuild {

template <class T>
using Global = simt::Pointer<T, false>;
template <class T>
using Shared = simt::Pointer<T, true>;

inline Index block_index() { return simt::block_index(); }
inline int thread_index() { return simt::thread_index(); }

template <class T>
Shared<T> shared_memory() {
    return Shared<T>(reinterpret_cast<T*>(simt::shared_base()));
}

template <class V, class T, bool shared>
V load(simt::Pointer<T, shared> from) {
    if constexpr (shared) {
        simt::note_shared(from.raw(), sizeof(V), false);
    } else {
        simt::check_global(from.raw(), sizeof(V), false);
    }
    V value;
    std::memcpy(&value, from.raw(), sizeof(V));
    return value;
}
template <class V, class T>
V load_once(simt::Pointer<T, false> from) {
    return load<V>(from);
}
template <class V, class T, bool shared>
void store(simt::Pointer<T, shared> to, V value) {
    if constexpr (shared) {
        simt::note_shared(to.raw(), sizeof(V), true);
    } else {
        simt::check_global(to.raw(), sizeof(V), true);
    }
    std::memcpy(to.raw(), &value, sizeof(V));
}

inline uint32_t bits_of(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    return word;
}
inline float float_of(uint32_t word) {
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(Half x) {
    uint32_t const sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31u;
    uint32_t const fraction = x.bits & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return std::ldexp(static_cast<float>(fraction), -24) * (sign ? -1.0f : 1.0f);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
    return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
    uint32_t const word = bits_of(x);
    if (std::isnan(x)) return {0x7fff};
    return {static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16)};
}
template <>
inline Half from_float<Half>(float x) {
    uint16_t const sign = static_cast<uint16_t>(bits_of(x) >> 16 & 0x8000u);
    float const size = std::fabs(x);
    if (std::isnan(x)) return {0x7fff};
    if (size == 0.0f) return {sign};
    if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
    // To nearest, ties to even, of a step that is 2^-24 at least: the steps of the subnormal numbers.
    int exponent;
    std::frexp(size, &exponent);
    int const step = std::max(exponent - 11, -24);
    auto const count = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, -step)));
    // Steps of 2^-24 make the bits of a subnormal number; each binade above begins 1024 of its own steps higher.
    return {static_cast<uint16_t>(sign | (count + (static_cast<uint32_t>(step + 24) << 10)))};
}

template <class T>
uint32_t pack(float low, float high) {
    return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}
inline uint32_t low_halves(uint32_t first, uint32_t second) { return (first & 0xffffu) | second << 16; }
inline uint32_t high_halves(uint32_t first, uint32_t second) { return first >> 16 | (second & 0xffff0000u); }

inline int within(int value, int first, int last) { return simt::put_in_range(value, first, last); }

inline float exp2(float x) { return std::exp2(x); }
inline float tanh(float x) { return std::tanh(x); }

inline void sync_threads() { simt::sync_threads(); }
inline void sync_warp() { simt::sync_warp(); }

namespace emulated {

template <class V>
struct Shuffle {
    V in, out;
    int from;
};
template <class V>
void shuffle(void* const (&lanes)[simt::WARP]) {
    for (void* lane : lanes) {
        auto* own = static_cast<Shuffle<V>*>(lane);
        own->out = static_cast<Shuffle<V>*>(lanes[own->from & (simt::WARP - 1)])->in;
    }
}

struct Vote {
    bool in;
    uint32_t out;
};
inline void vote(void* const (&lanes)[simt::WARP]) {
    uint32_t word = 0;
    for (int lane = 0; lane < simt::WARP; ++lane)
        word |= static_cast<uint32_t>(static_cast<Vote*>(lanes[lane])->in) << lane;
    for (void* lane : lanes) static_cast<Vote*>(lane)->out = word;
}

template <class T>
float element(uint32_t word, int index) {
    return to_float(T{static_cast<uint16_t>(word >> 16 * index)});
}

struct Mma {
    float* d;
    uint32_t a[4], b[2];
};
template <class T>
void mma(void* const (&lanes)[simt::WARP]) {
    simt::count_product();
    float a[16][16], b[16][8];
    for (int lane = 0; lane < simt::WARP; ++lane) {
        auto const* own = static_cast<Mma*>(lanes[lane]);
        int const r = lane / 4, c = lane % 4;
        for (int i = 0; i < 2; ++i) {
            a[r][2 * c + i] = element<T>(own->a[0], i);
            a[r + 8][2 * c + i] = element<T>(own->a[1], i);
            a[r][2 * c + 8 + i] = element<T>(own->a[2], i);
            a[r + 8][2 * c + 8 + i] = element<T>(own->a[3], i);
            b[2 * c + i][r] = element<T>(own->b[0], i);
            b[2 * c + 8 + i][r] = element<T>(own->b[1], i);
        }
    }
    float d[16][8] = {};
    for (int row = 0; row < 16; ++row) {
        for (int k = 0; k < 16; ++k) {
            for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
        }
    }
    for (int lane = 0; lane < simt::WARP; ++lane) {
        float* own = static_cast<Mma*>(lanes[lane])->d;
        int const r = lane / 4, c = lane % 4;
        own[0] += d[r][2 * c];
        own[1] += d[r][2 * c + 1];
        own[2] += d[r + 8][2 * c];
        own[3] += d[r + 8][2 * c + 1];
    }
}

struct Matrices {
    uint32_t* to;
    uint16_t row[8];
};
template <bool transposed>
void matrices(void* const (&lanes)[simt::WARP]) {
    for (int lane = 0; lane < simt::WARP; ++lane) {
        for (int i = 0; i < 4; ++i) {
            uint16_t two[2];
            for (int j = 0; j < 2; ++j) {
                int const row = lane / 4, column = lane % 4 * 2 + j;
                two[j] = transposed ? static_cast<Matrices*>(lanes[8 * i + column])->row[row]
                                    : static_cast<Matrices*>(lanes[8 * i + row])->row[column];
            }
            static_cast<Matrices*>(lanes[lane])->to[i] = two[0] | static_cast<uint32_t>(two[1]) << 16;
        }
    }
}
template <bool transposed, class T>
void load_matrices(uint32_t (&to)[4], Shared<T> row) {
    simt::note_shared(row.raw(), 16, false);
    Matrices own{to, {}};
    std::memcpy(own.row, row.raw(), 16);
    simt::together(matrices<transposed>, &own);
}

}  // namespace emulated

template <class V>
V shuffle(V value, int lane) {
    emulated::Shuffle<V> own{value, {}, lane};
    simt::together(emulated::shuffle<V>, &own);
    return own.out;
}
template <class V>
V shuffle_xor(V value, int mask) {
    return shuffle(value, (simt::thread_index() % simt::WARP) ^ mask);
}
inline uint32_t ballot(bool predicate) {
    emulated::Vote own{predicate, 0};
    simt::together(emulated::vote, &own);
    return own.out;
}
inline int count_bits(uint32_t word) { return __builtin_popcount(word); }

template <class T>
void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated::Mma own{d, {a0, a1, a2, a3}, {b0, b1}};
    simt::together(emulated::mma<T>, &own);
}
template <class T>
void load_matrices(uint32_t (&to)[4], Shared<T> row) {
    emulated::load_matrices<false>(to, row);
}
template <class T>
void load_matrices_transposed(uint32_t (&to)[4], Shared<T> row) {
    emulated::load_matrices<true>(to, row);
}

template <class T>
void copy_async(Shared<T> to, Global<T const> from, bool valid) {
    if (valid) simt::check_global(from.raw(), 16, false);
    simt::copy_later(to.raw(), from.raw(), valid);
}
template <class T>
void copy_async(Shared<T> to, Global<T> from, bool valid) {
    copy_async(to, Global<T const>(from), valid);
}
inline void copy_async_commit() { simt::commit_copies(); }
template <int left>
void copy_async_wait() {
    simt::wait_for_copies(left);
}

template <class Kernel, class... Arguments>
int launch(Kernel kernel, Grid grid, int threads, size_t shared, void*, Arguments const&... arguments) {
    return simt::run(reinterpret_cast<void*>(kernel), grid, threads, shared, [&] { kernel(arguments...); });
}

}  // namespace trtbuild
