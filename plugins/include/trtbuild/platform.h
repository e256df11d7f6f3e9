// What the kernels are written in: the GPU's own primitives, under names that the emulator (emulator/simt.h) has too.
//
// Kernels touch memory through Global<T> and Shared<T> only. On a GPU these are plain pointers; in the emulator every
// access is checked for bounds, alignment and, in shared memory, for races.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef TRTBUILD_EMULATE
#include "simt.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define TRTBUILD_DEVICE __device__ __forceinline__
#define TRTBUILD_ANYWHERE __host__ __device__ __forceinline__
#define TRTBUILD_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define TRTBUILD_PARAMETER const __grid_constant__
#define TRTBUILD_UNROLL _Pragma("unroll")

namespace trtbuild {

using Half = __half;
using BFloat16 = __nv_bfloat16;

template <class T>
using Global = T*;
template <class T>
using Shared = T*;

struct Index {
    int x, y, z;
};

TRTBUILD_DEVICE Index block_index() {
    return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
}
TRTBUILD_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }

template <class T>
TRTBUILD_DEVICE Shared<T> shared_memory() {
    extern __shared__ uint4 trtbuild_shared[];
    return reinterpret_cast<T*>(trtbuild_shared);
}

// Load or store a vector V (4, 8 or 16 bytes) that begins at an element; the address is aligned to the vector.
template <class V, class T>
TRTBUILD_DEVICE V load(T const* from) {
    return *reinterpret_cast<V const*>(from);
}
template <class V, class T>
TRTBUILD_DEVICE void store(T* to, V value) {
    *reinterpret_cast<V*>(to) = value;
}
// The same for the cache, which is read once by a block and not again: past the first level of cache.
template <class V, class T>
TRTBUILD_DEVICE V load_once(T const* from) {
    return __ldcg(reinterpret_cast<V const*>(from));
}

TRTBUILD_DEVICE float to_float(float x) { return x; }
TRTBUILD_DEVICE float to_float(Half x) { return __half2float(x); }
TRTBUILD_DEVICE float to_float(BFloat16 x) { return __bfloat162float(x); }
template <class T>
TRTBUILD_DEVICE T from_float(float x);
template <>
TRTBUILD_DEVICE float from_float<float>(float x) {
    return x;
}
template <>
TRTBUILD_DEVICE Half from_float<Half>(float x) {
    return __float2half_rn(x);
}
template <>
TRTBUILD_DEVICE BFloat16 from_float<BFloat16>(float x) {
    return __float2bfloat16_rn(x);
}

// Two elements in a word, the first one low.
template <class T>
TRTBUILD_DEVICE uint32_t pack(float low, float high);
template <>
TRTBUILD_DEVICE uint32_t pack<Half>(float low, float high) {
    __half2 const both = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t const*>(&both);
}
template <>
TRTBUILD_DEVICE uint32_t pack<BFloat16>(float low, float high) {
    __nv_bfloat162 const both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t const*>(&both);
}

TRTBUILD_DEVICE uint32_t low_halves(uint32_t first, uint32_t second) { return __byte_perm(first, second, 0x5410); }
TRTBUILD_DEVICE uint32_t high_halves(uint32_t first, uint32_t second) { return __byte_perm(first, second, 0x7632); }

TRTBUILD_DEVICE float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Not tanh.approx, whose error of 2^-11 is more than FP16 scores lose.
TRTBUILD_DEVICE float tanh(float x) { return ::tanhf(x); }

TRTBUILD_DEVICE void sync_threads() { __syncthreads(); }
TRTBUILD_DEVICE void sync_warp() { __syncwarp(); }
template <class V>
TRTBUILD_DEVICE V shuffle(V value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}
template <class V>
TRTBUILD_DEVICE V shuffle_xor(V value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}
TRTBUILD_DEVICE uint32_t ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
TRTBUILD_DEVICE int count_bits(uint32_t word) { return __popc(word); }

// d += a b, of a [16, 16] by rows and b [16, 8] by columns (PTX ISA, mma.m16n8k16). Lane l, r = l / 4, c = l % 4:
// a = rows r, r + 8, r, r + 8 at columns 2c, 2c, 2c + 8, 2c + 8 (and the next one of each); b = rows 2c and 2c + 8 (and
// the next) of column r; d = rows r, r, r + 8, r + 8 at columns 2c, 2c + 1, 2c, 2c + 1.
template <class T>
TRTBUILD_DEVICE void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
template <>
TRTBUILD_DEVICE void mma<Half>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                               uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
TRTBUILD_DEVICE void mma<BFloat16>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                   uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory. Lanes 8i .. 8i + 7 give the rows of matrix i (16 bytes
// each); lane l gets row l / 4, elements 2 (l % 4) and the next, of each; transposed: of each one's transpose.
template <class T>
TRTBUILD_DEVICE void load_matrices(uint32_t (&to)[4], T const* row) {
    uint32_t const address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
template <class T>
TRTBUILD_DEVICE void load_matrices_transposed(uint32_t (&to)[4], T const* row) {
    uint32_t const address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// 16 bytes from global to shared memory while the thread goes on; zeros, and no read, where not `valid`.
template <class T>
TRTBUILD_DEVICE void copy_async(T* to, T const* from, bool valid) {
    uint32_t const address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
TRTBUILD_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until no more than `left` of the thread's last groups are under way.
template <int left>
TRTBUILD_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// `value`, or the nearest of first .. last. TensorRT may time a plugin on inputs that nobody filled, and a server may
// send a wrong table: neither may reach memory that is not ours. (The emulator reports it instead, unless a test asks
// for it.)
TRTBUILD_DEVICE int within(int value, int first, int last) {
    return value < first ? first : value > last ? last : value;
}

struct Grid {
    int x, y, z;
};

// Launch; returns a cudaError_t.
template <class Kernel, class... Arguments>
int launch(Kernel kernel, Grid grid, int threads, size_t shared, void* stream, Arguments const&... arguments) {
    if (shared > 48 * 1024) {
        cudaError_t const error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
        if (error != cudaSuccess) return error;
    }
    kernel<<<dim3(grid.x, grid.y, grid.z), threads, shared, static_cast<cudaStream_t>(stream)>>>(arguments...);
    return cudaGetLastError();
}

}  // namespace trtbuild
#endif
