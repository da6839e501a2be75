/* The arithmetic that the C and the CUDA float codec share, so that they cannot differ (FORMAT.md 16).
 *
 * Compiled by a C11 compiler and by NVRTC: no includes beyond fixed-width types, no library calls, integers only.
 * The NumPy reference (float_reference.py and its neighbours) is the oracle for every function here.
 */
#ifndef NVCKPT_FLOAT_COMMON_H
#define NVCKPT_FLOAT_COMMON_H

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <stdint.h>
#endif

#ifdef __CUDACC__
#define NVCKPT_FN static __device__ __forceinline__
#else
#define NVCKPT_FN static inline
#endif

enum {
    FLOAT_VERSION = 1,
    FLOAT_HEADER_SIZE = 48,
    FLOAT_MATRIX_SIZE = 16,
    FLOAT_END_SIZE = 16,
    FLOAT_CHUNK = 32768,
    FLOAT_CHUNKS_A_BLOCK = 4,
    FLOAT_BLOCK = FLOAT_CHUNK * FLOAT_CHUNKS_A_BLOCK,
    FLOAT_LANES = 32,
    FLOAT_MAX_EXCEPTIONS = 127,
    FLOAT_PROBABILITY_BITS = 12,
    FLOAT_PROBABILITY_SUM = 1 << FLOAT_PROBABILITY_BITS,
    FLOAT_STATE_LOW = 1 << 15,
    FLOAT_CENTRE = 160,
    FLOAT_MAX_MATRICES = 65536,
    FLOAT_RUN_BYTES = 512,
    FLOAT_FLAT_RUNS = 64,
    FLOAT_ROW_RUNS = 1,
    FLOAT_COLUMN_SAMPLE = 128,
    FLOAT_COST_SAMPLE = 32,
    FLOAT_ZERO_STRIDE = 61,
    FLOAT_ZERO_SHARE = 128,
    FLOAT_EXCEPTION_SHARE = 512
};

enum { LAYOUT_BYTES = 0, LAYOUT_ROTATED = 1, LAYOUT_LOG = 2 };

enum {
    FLAG_ZEROS_REMOVED = 1,
    FLAG_SIDE_PLANE = 2,
    FLAG_SIGN_CONSTANT = 4,
    FLAG_SIGN_VALUE = 8,
    FLAG_NO_NIBBLES = 16,
    FLAG_NO_LOW = 32
};

#define FLOAT_CHUNK_RAW 0x80000000u

/* floor(256 log2 x), x at least 1 (16.10) */
NVCKPT_FN uint32_t float_log256(uint64_t x) {
    uint32_t e = 0;
    for (uint64_t rest = x; rest >>= 1;) e++;
    uint64_t m = e <= 31 ? x << (31 - e) : x >> (e - 31);
    for (int i = 0; i < 8; i++) {
        m = m * m >> 31;
        uint32_t bit = (uint32_t)(m >> 32);
        e = e << 1 | bit;
        m >>= bit;
    }
    return e;
}

/* (2 total + count) / (2 count) rounded towards minus infinity; count at least 1 */
NVCKPT_FN int64_t float_mean(int64_t total, int64_t count) {
    int64_t a = 2 * total + count, b = 2 * count, q = a / b;
    return q - (a % b != 0 && a < 0);
}

/* Index of sample t of `most` spread over `count`, or t itself when there are no more than `most` */
NVCKPT_FN uint32_t float_spread(uint32_t t, uint32_t count, uint32_t most) {
    return count <= most ? t : (uint32_t)((uint64_t)t * count / most);
}

/* Which of a stream's runs decisions 8 and 9 sample: at least a thousand or so, and never the same columns of every row
 * as an even stride would. */
NVCKPT_FN uint64_t float_sample_stride(uint64_t runs) {
    uint64_t stride = runs >> 10 | 1;
    return stride < FLOAT_ZERO_STRIDE ? stride : FLOAT_ZERO_STRIDE;
}

/* Words travel as their top 16 bits here: the low bits never take part in prediction. */
NVCKPT_FN uint32_t float_quantum(uint32_t top, int layout) {
    return layout == LAYOUT_ROTATED ? top >> 7 & 255 : top >> 4 & 2047;
}

NVCKPT_FN uint32_t float_with_quantum(uint32_t top, uint32_t quantum, int layout) {
    return layout == LAYOUT_ROTATED ? (top & 0x807Fu) | (quantum & 255) << 7 : (top & 0x800Fu) | (quantum & 2047) << 4;
}

/* `prediction` is p - FLOAT_CENTRE, or 0 where nothing is predicted. A word of layout log is exchanged with zero as
 * 16.3 says; `low_is_zero` tells whether the bits below the top 16 are all zero. The low bits never change. */
NVCKPT_FN uint32_t float_transform(uint32_t top, int low_is_zero, int32_t prediction, int layout) {
    uint32_t moved = float_with_quantum(top, float_quantum(top, layout) - (uint32_t)prediction, layout);
    if (layout == LAYOUT_LOG && low_is_zero) {
        if (top == 0) return 0;
        if (moved == 0) return float_with_quantum(0, 0u - (uint32_t)prediction, layout);
    }
    return moved;
}

NVCKPT_FN uint32_t float_untransform(uint32_t moved, int low_is_zero, int32_t prediction, int layout) {
    if (layout == LAYOUT_LOG && low_is_zero) {
        if (moved == 0) return 0;
        if (moved == float_with_quantum(0, 0u - (uint32_t)prediction, layout))
            return float_with_quantum(0, (uint32_t)prediction, layout);
    }
    return float_with_quantum(moved, float_quantum(moved, layout) + (uint32_t)prediction, layout);
}

/* Exact division of a 31-bit state by a frequency f from 2 to 4095: (x * reciprocal) >> 32 >> shift.
 * For f = 1 the reciprocal 2^32 - 1 gives x - 1, and the bias makes good for it: see float_encode_step. */
typedef struct {
    uint32_t reciprocal, shift, frequency, bias;
} float_encode_entry;

NVCKPT_FN float_encode_entry float_make_entry(uint32_t frequency, uint32_t start) {
    float_encode_entry entry;
    entry.frequency = frequency;
    if (frequency < 2) {
        entry.reciprocal = 0xFFFFFFFFu;
        entry.shift = 0;
        entry.bias = start + FLOAT_PROBABILITY_SUM - 1;
        return entry;
    }
    uint32_t shift = 0;
    while (frequency > 1u << shift) shift++;
    entry.reciprocal = (uint32_t)(((1ull << (shift + 31)) + frequency - 1) / frequency);
    entry.shift = shift - 1;
    entry.bias = start;
    return entry;
}

/* The state after coding a symbol, renormalised before: x + bias + x / f * (4096 - f) */
NVCKPT_FN uint32_t float_encode_step(uint32_t x, float_encode_entry entry) {
    uint32_t quotient = (uint32_t)((uint64_t)x * entry.reciprocal >> 32) >> entry.shift;
    return x + entry.bias + quotient * (FLOAT_PROBABILITY_SUM - entry.frequency);
}

#endif
