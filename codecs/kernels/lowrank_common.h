/* The arithmetic that the C and the CUDA `lowrank` share (FORMAT.md 19): one number on its grid, in integers.
 *
 * lowrank_grid.py is the oracle for every function here.
 */
#ifndef NVCKPT_LOWRANK_COMMON_H
#define NVCKPT_LOWRANK_COMMON_H

#include "float_common.h"

enum {
    LOWRANK_CONTEXTS = 5,
    LOWRANK_STRIP = 1 << 17,
    LOWRANK_MOST_FACTOR = 2047,
    LOWRANK_MOST_STEPS = 1 << 30,
    LOWRANK_WIDTHS = 24,
    /* So many products of two factors' entries fit into 32 bits. */
    LOWRANK_TERMS = 512
};

NVCKPT_FN int32_t lowrank_bit_length(uint32_t number) {
#ifdef __CUDACC__
    return 32 - __clz((int)number);
#else
    return number ? 32 - __builtin_clz(number) : 0;
#endif
}

/* What is predicted for a number: the exponent of the step (biased), whole steps, and the context of its symbol. */
typedef struct {
    int32_t exponent, steps, context;
} lowrank_place;

NVCKPT_FN lowrank_place lowrank_predict(int32_t scale, int64_t product, const int32_t *multipliers, int32_t shift,
                                        int32_t mantissa) {
    int64_t wide = (product * multipliers[scale & 7]) >> shift;
    int32_t steps = wide < -(int64_t)LOWRANK_MOST_STEPS ? -LOWRANK_MOST_STEPS
                    : wide >= LOWRANK_MOST_STEPS        ? LOWRANK_MOST_STEPS - 1
                                                        : (int32_t)wide;
    int32_t coarser = lowrank_bit_length((uint32_t)(steps ^ steps >> 31)) - 1 - mantissa;
    lowrank_place place;
    if (coarser <= 0) {
        place.exponent = scale >> 3, place.steps = steps, place.context = (scale & 7) >> 1;
    } else {
        place.exponent = (scale >> 3) + coarser, place.steps = steps >> coarser, place.context = LOWRANK_CONTEXTS - 1;
    }
    return place;
}

/* Raw bits of a number of `size` steps, at least one */
NVCKPT_FN int32_t lowrank_width(uint32_t size, int32_t mantissa) {
    int32_t width = mantissa + 1 - lowrank_bit_length(size);
    return width > 0 ? width : 0;
}

/* The word, without its sign, of a number of `size` steps, at least one, whose step has this exponent */
NVCKPT_FN uint32_t lowrank_word(uint32_t size, int32_t exponent, uint32_t raw, int32_t mantissa) {
    int32_t length = lowrank_bit_length(size) - 1, left = mantissa - length;
    uint32_t top = size - (1u << length);
    uint32_t low = left >= 0 ? top << left | raw : top >> -left;
    return ((uint32_t)(exponent + length) & 0xFF) << mantissa | low;
}

/* A number as coded: `symbol` 0 is an escape; `below` counts for numbers less than a step, where `small` is set. */
typedef struct {
    int32_t symbol, below, small, width;
} lowrank_number;

NVCKPT_FN lowrank_number lowrank_code(uint32_t word, lowrank_place place, int32_t mantissa) {
    int32_t exponent = (int32_t)(word >> mantissa & 0xFF), over = exponent - place.exponent;
    uint32_t low = word & ((1u << mantissa) - 1);
    int32_t zero = exponent == 0 && low == 0;
    lowrank_number number = {0, 0, 0, 0};
    if (over > 30 || exponent == 255 || (exponent == 0 && !zero)) return number;
    int64_t size = over < 0 || zero ? 0 : (int64_t)((uint64_t)(low | 1u << mantissa) << over >> mantissa);
    int64_t difference = (word >> (mantissa + 8) ? -1 - size : size) - place.steps;
    if (difference < -127 || difference > 127) return number;
    if (size == 0) {
        int32_t below = zero ? 0 : place.exponent - exponent;
        if (!zero && (below < 1 || below > 255)) return number;
        number.below = below, number.small = 1, number.width = zero ? 0 : mantissa;
    } else {
        number.width = lowrank_width((uint32_t)size, mantissa);
    }
    number.symbol = (int32_t)difference + 128;
    return number;
}

/* Where the raw bits of a strip's numbers of one width lie: planes of whole bytes, then the rest of each, packed. */
NVCKPT_FN uint64_t lowrank_packed_size(uint64_t count, uint32_t width) {
    return count * (width >> 3) + ((count * (width & 7) + 7) >> 3);
}

#endif
