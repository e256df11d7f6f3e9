/* Attention over a paged KV cache, with RoPE and ALiBi: the C API of the kernels.
 *
 * Tokens are ragged: those of sequence b are rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1 of qkv, at the positions
 * past_lengths[b], past_lengths[b] + 1 … One batch may hold prompts, parts of prompts, single tokens and sequences with
 * no token at all. Position p of sequence b lies in page block_table[b, p / page_size], row p % page_size.
 *
 * The new keys (rotated) and values are written to their pages first; then each token attends to the positions
 * max(0, own - window + 1) .. own of its sequence. Nothing is read of a page that no such position lies in, so its
 * entry in block_table may be anything.
 */
#ifndef TRTBUILD_ATTENTION_H
#define TRTBUILD_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRTBUILD_MAX_ALIBI_HEADS 256

typedef enum { TRTBUILD_FLOAT32 = 0, TRTBUILD_FLOAT16 = 1, TRTBUILD_BFLOAT16 = 2 } TrtbuildType;

/* Lengths are in elements. Pointers are to device memory, aligned to 16 bytes; those to i32 to 4. */
typedef struct {
    void const* qkv;             /* [tokens, (heads + 2 * kv_heads) * head_dim]: all queries, all keys, all values */
    void* kv_pages;              /* [pages, 2, kv_heads, page_size, head_dim]: keys, values */
    int32_t const* block_table;  /* [batch, max_pages] */
    int32_t const* cu_seqlens;   /* [batch + 1], from 0, not falling; rows of qkv from the last one on are padding */
    int32_t const* past_lengths; /* [batch] */
    float const* rope_cos_sin;   /* [tokens, rotary_dim]: each token's cosines, then sines; null if rotary_dim is 0 */
    void* output;                /* [tokens, heads * head_dim]; zeros for padding */
    void* workspace;             /* of trtbuild_attention_workspace() bytes, aligned to 16 */

    int32_t type;   /* TrtbuildType of qkv, kv_pages and output */
    int32_t tokens; /* 4194304 at most */
    int32_t batch;  /* 32767 at most */
    int32_t max_pages;
    int32_t pages;
    int32_t page_size;   /* 16, 32, 64 or 128 */
    int32_t heads;       /* 16384 at most */
    int32_t kv_heads;    /* divides heads */
    int32_t head_dim;    /* 64, 80, 96, 128 or 256 */
    int32_t rotary_dim;  /* the first of each head that are rotated; even; 0 for none */
    int32_t interleaved; /* pairs are neighbours (0, 1), (2, 3) …; otherwise halves (0, rotary_dim / 2) … */
    int32_t window;      /* positions that a token sees, its own included; 0 for all */
    float scale;         /* of q.k, before anything else */
    float soft_cap;      /* scores become soft_cap * tanh(score / soft_cap); 0 for none */
    int32_t has_alibi;
    float alibi_slopes[TRTBUILD_MAX_ALIBI_HEADS]; /* by head: what is lost per position of distance, after scale */
    int32_t multiprocessors;                      /* of the device: how finely the work is split */
} TrtbuildAttention;

/* What is wrong with the parameters, in a sentence; null if nothing is. Pointers are not looked at. */
char const* trtbuild_attention_check(TrtbuildAttention const* attention);

/* Bytes of workspace; grows with batch, heads and head_dim, not with the sequences. The parameters must be valid. */
size_t trtbuild_attention_workspace(TrtbuildAttention const* attention);

/* Run on a CUDA stream (cudaStream_t), without waiting. Returns 0, or a cudaError_t (1 for invalid parameters). */
int trtbuild_attention_run(TrtbuildAttention const* attention, void* stream);

/* The three steps of it, one by one, for tests and measurements. */
int trtbuild_rope_and_write(TrtbuildAttention const* attention, void* stream);
int trtbuild_decode(TrtbuildAttention const* attention, void* stream);
int trtbuild_prefill(TrtbuildAttention const* attention, void* stream);

char const* trtbuild_kernels_version(void);

#ifdef __cplusplus
}
#endif
#endif
