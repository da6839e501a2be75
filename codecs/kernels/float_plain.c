/* The kernels in plain C: for every machine, and for AVX2's incomplete rows. */
#include "float_cpu.h"
#include "float_loops.h"

/* All bits set if x is negative as a signed number. Compilers make two set instructions or a branch of a comparison. */
FLOAT_INLINE uint32_t sign_mask(uint32_t x) { return (uint32_t)((int32_t)x >> 31); }

/* Both directions avoid branches that depend on data: a mispredicted one costs more than the step. Full rows are
 * encoded unrolled by all lanes, so that states and symbols have fixed places; eight at a time are as good in decoding.
 *
 * Decoding, clock ticks (2.45 GHz, Zen 3) a symbol of BF16 weights: 4.06 in C, unrolled by 32; 3.77 with a comparison
 * that is also the carry of a subtraction, unrolled by 8. Tried: words taken in a loop over a mask of lanes 4.03,
 * 32-bit positions 4.03, masks by comparison 4.36, conditional expressions 11.2 (branches).
 */
FLOAT_INLINE uint32_t encode_symbol(float_coding code, uint32_t *state, uint16_t *words, uint32_t position) {
    uint32_t x = *state, frequency = code.packed & 4095;
    uint32_t leaves = sign_mask((frequency << 19) - 1 - x);
    words[position] = (uint16_t)x;
    x >>= leaves & 16;
    uint32_t quotient = (uint32_t)((uint64_t)x * code.reciprocal >> 32) >> (code.packed >> 25 & 15);
    *state = x + (code.packed >> 12 & 0x1FFF) + quotient * (FLOAT_PROBABILITY_SUM - frequency);
    return position - leaves;
}

FLOAT_INLINE uint32_t encode_full_row(const uint8_t *symbols, const size_t lane_values, const float_coding *coding,
                                      uint32_t states[FLOAT_LANES], uint16_t *words, uint32_t position,
                                      uint8_t *flag) {
    uint32_t seen = 0;
    for (size_t column = lane_values; column-- > 0;) {
#pragma GCC unroll 32
        for (size_t lane = 0; lane < FLOAT_LANES; lane++) {
            float_coding code = coding[symbols[lane * lane_values + column]];
            position = encode_symbol(code, &states[lane], words, position);
            seen |= code.packed;
        }
    }
    *flag = (uint8_t)(seen >> 31);
    return position;
}

/* The last row, of `inside` symbols */
FLOAT_INLINE uint32_t encode_part_row(const uint8_t *symbols, const size_t lane_values, size_t inside,
                                      const float_coding *coding, uint32_t states[FLOAT_LANES], uint16_t *words,
                                      uint32_t position, uint8_t *flag) {
    uint32_t seen = 0;
    for (size_t column = lane_values; column-- > 0;) {
        for (size_t lane = 0; lane * lane_values + column < inside; lane++) {
            float_coding code = coding[symbols[lane * lane_values + column]];
            position = encode_symbol(code, &states[lane], words, position);
            seen |= code.packed;
        }
    }
    *flag = (uint8_t)(seen >> 31);
    return position;
}

/* Takes a word if the state is below its range, in 64 bits so that the sign is the answer; returns the position. */
FLOAT_INLINE int64_t decode_symbol(const uint8_t *words, int64_t position, const uint32_t *slots, uint32_t *state,
                                   uint8_t *symbol) {
    uint32_t x = *state, entry = slots[x & (FLOAT_PROBABILITY_SUM - 1)];
    x = (entry >> 20) * (x >> FLOAT_PROBABILITY_BITS) + (entry >> 8 & 4095);
    uint32_t next = ((const float_u16 *)words)[position - 1];
    *symbol = (uint8_t)entry;
#if defined(__x86_64__)
    /* One comparison for both, which compilers make a branch of: 3.8 instead of 4.1 ticks a symbol. */
    uint32_t grown = x << 16 | next;
    __asm__("cmpl %3, %0\n\tcmovb %2, %0\n\tsbbq $0, %1"
            : "+r"(x), "+r"(position)
            : "r"(grown), "i"(FLOAT_STATE_LOW)
            : "cc");
    *state = x;
    return position;
#else
    int64_t takes = ((int64_t)x - FLOAT_STATE_LOW) >> 63;
    *state = x << (takes & 16) | (next & (uint32_t)takes);
    return position + takes;
#endif
}

/* Lanes are taken in descending order, so that the words are read one by one from the end. A step takes 32 words at
 * most, and the 128 bytes of states lie before them: a position is checked once a step, before the next one. */
FLOAT_INLINE int64_t decode_full_row(const uint8_t *words, int64_t position, const size_t lane_values,
                                     const uint32_t *slots, uint32_t states[FLOAT_LANES], uint8_t *symbols) {
    for (size_t column = 0; column < lane_values; column++) {
        if (position < 0) return position;
#pragma GCC unroll 8
        for (size_t lane = FLOAT_LANES; lane-- > 0;)
            position = decode_symbol(words, position, slots, &states[lane], &symbols[lane * lane_values + column]);
    }
    return position;
}

FLOAT_INLINE int64_t decode_part_row(const uint8_t *words, int64_t position, const size_t lane_values, size_t inside,
                                     const uint32_t *slots, uint32_t states[FLOAT_LANES], uint8_t *symbols) {
    for (size_t column = 0; column < lane_values && column < inside; column++) {
        if (position < 0) return position;
        for (size_t lane = (inside - column - 1) / lane_values + 1; lane-- > 0;)
            position = decode_symbol(words, position, slots, &states[lane], &symbols[lane * lane_values + column]);
    }
    return position;
}

FLOAT_INLINE uint32_t encode_rows(const uint8_t *symbols, size_t count, const size_t lane_values, size_t first,
                                  size_t last, const float_coding *coding, uint32_t *states, uint16_t *words,
                                  uint32_t position, uint8_t *flagged) {
    const size_t row_size = FLOAT_LANES * lane_values;
    uint32_t x[FLOAT_LANES]; /* a copy that nothing can point to, so that it need not be read again */
    memcpy(x, states, sizeof x);
    for (size_t row = last; row-- > first;) {
        const uint8_t *place = symbols + row * row_size;
        size_t inside = count - row * row_size;
        if (inside >= row_size)
            position = encode_full_row(place, lane_values, coding, x, words, position, &flagged[row]);
        else
            position = encode_part_row(place, lane_values, inside, coding, x, words, position, &flagged[row]);
    }
    memcpy(states, x, sizeof x);
    return position;
}

FLOAT_INLINE int64_t decode_rows(const uint8_t *words, int64_t position, size_t count, const size_t lane_values,
                                 size_t first, const uint32_t *slots, uint32_t *states, uint8_t *symbols) {
    const size_t row_size = FLOAT_LANES * lane_values;
    uint32_t x[FLOAT_LANES];
    memcpy(x, states, sizeof x);
    for (size_t row = first; row * row_size < count && position >= 0; row++) {
        uint8_t *place = symbols + row * row_size;
        size_t inside = count - row * row_size;
        if (inside >= row_size) position = decode_full_row(words, position, lane_values, slots, x, place);
        else position = decode_part_row(words, position, lane_values, inside, slots, x, place);
    }
    memcpy(states, x, sizeof x);
    return position;
}

uint32_t float_encode_rows(const uint8_t *symbols, size_t count, int lane_values, size_t first, size_t last,
                           const float_coding *coding, uint32_t *states, uint16_t *words, uint32_t position,
                           uint8_t *flagged) {
    switch (lane_values) {
    case 2: return encode_rows(symbols, count, 2, first, last, coding, states, words, position, flagged);
    case 4: return encode_rows(symbols, count, 4, first, last, coding, states, words, position, flagged);
    case 8: return encode_rows(symbols, count, 8, first, last, coding, states, words, position, flagged);
    default: return encode_rows(symbols, count, 16, first, last, coding, states, words, position, flagged);
    }
}

int64_t float_decode_rows(const uint8_t *words, int64_t position, size_t count, int lane_values, size_t first,
                          const uint32_t *slots, uint32_t *states, uint8_t *symbols) {
    switch (lane_values) {
    case 2: return decode_rows(words, position, count, 2, first, slots, states, symbols);
    case 4: return decode_rows(words, position, count, 4, first, slots, states, symbols);
    case 8: return decode_rows(words, position, count, 8, first, slots, states, symbols);
    default: return decode_rows(words, position, count, 16, first, slots, states, symbols);
    }
}

static uint32_t encode(const uint8_t *symbols, size_t count, int lane_values, const float_coding *coding,
                       const float_shuffles *shuffles, uint32_t states[FLOAT_LANES], uint16_t *words,
                       uint8_t flagged[FLOAT_MAX_ROWS]) {
    (void)shuffles;
    size_t row_size = (size_t)FLOAT_LANES * (size_t)lane_values;
    for (int lane = 0; lane < FLOAT_LANES; lane++) states[lane] = FLOAT_STATE_LOW;
    return float_encode_rows(symbols, count, lane_values, 0, (count + row_size - 1) / row_size, coding, states, words,
                             0, flagged);
}

static int decode(const uint8_t *record, uint32_t word_count, size_t count, int lane_values, const uint32_t *slots,
                  const float_spreads *spreads, uint8_t *symbols) {
    (void)spreads;
    uint32_t states[FLOAT_LANES];
    memcpy(states, record, sizeof states);
    for (int lane = 0; lane < FLOAT_LANES; lane++)
        if (states[lane] < FLOAT_STATE_LOW || states[lane] >> 31) return FLOAT_STATE_RANGE;
    int64_t position =
        float_decode_rows(record + sizeof states, word_count, count, lane_values, 0, slots, states, symbols);
    if (position < 0) return FLOAT_TOO_FEW_WORDS;
    for (int lane = 0; lane < FLOAT_LANES; lane++)
        if (states[lane] != FLOAT_STATE_LOW) return FLOAT_OTHER_END;
    return position ? FLOAT_OTHER_END : FLOAT_OK;
}

static void no_shuffles(float_shuffles *shuffles) { (void)shuffles; }
static void no_spreads(float_spreads *spreads) { (void)spreads; }

const float_kernels float_kernels_plain = {
    .sum = sum,
    .columns = columns,
    .cost = cost,
    .survey = survey,
    .scan = scan,
    .compact = compact,
    .expand = expand,
    .bitmap = bitmap,
    .transform = transform,
    .split = split,
    .join = join,
    .restore = restore,
    .untransform = untransform,
    .encode = encode,
    .decode = decode,
    .decode_pair = NULL,
    .encode_shuffles = no_shuffles,
    .decode_shuffles = no_shuffles,
    .spreads = no_spreads,
};
