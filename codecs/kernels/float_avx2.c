/* The kernels for AVX2: the loops of float_loops.h compiled for it, and rANS with 32 lanes in four registers.
 *
 * One source for all machines: the functions are compiled for AVX2 by a pragma, and called only where the processor
 * has it. Tables are read by plain loads: on AMD a gather is slower than eight of them.
 */
#include "float_cpu.h"

#if FLOAT_HAVE_AVX2

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,lzcnt")
#endif

#define LOOPS_AVX2
#include "float_loops.h"

enum { REGISTERS = FLOAT_LANES / 8 };

FLOAT_INLINE __m256i load(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }
FLOAT_INLINE void store(void *to, __m256i value) { _mm256_storeu_si256((__m256i *)to, value); }
FLOAT_INLINE uint32_t sign_bits(__m256i x) { return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x)); }

/* ---- Encoding ---- */

/* Words of the lanes in the mask, to the front */
static void encode_shuffles(float_shuffles *shuffles) {
    for (uint32_t mask = 0; mask < 256; mask++) {
        uint8_t *to = shuffles->bytes[mask];
        memset(to, 0x80, 16);
        for (uint32_t bits = mask; bits; bits &= bits - 1, to += 2) {
            to[0] = (uint8_t)(2 * __builtin_ctz(bits));
            to[1] = (uint8_t)(to[0] + 1);
        }
    }
}

FLOAT_INLINE __m128i two_codings(const float_coding *coding, size_t a, size_t b) {
    __m128d first = _mm_load_sd((const double *)(const void *)(coding + a));
    return _mm_castpd_si128(_mm_loadh_pd(first, (const double *)(const void *)(coding + b)));
}

/* Reciprocals and packed fields of eight lanes' symbols, which lie `stride` apart. */
FLOAT_INLINE __m256i codings_of_8(const float_coding *coding, const uint8_t *symbols, size_t stride,
                                  __m256i *packed) {
    __m256i even = _mm256_inserti128_si256(
        _mm256_castsi128_si256(two_codings(coding, symbols[0], symbols[stride])),
        two_codings(coding, symbols[4 * stride], symbols[5 * stride]), 1);
    __m256i odd = _mm256_inserti128_si256(
        _mm256_castsi128_si256(two_codings(coding, symbols[2 * stride], symbols[3 * stride])),
        two_codings(coding, symbols[6 * stride], symbols[7 * stride]), 1);
    __m256 a = _mm256_castsi256_ps(even), b = _mm256_castsi256_ps(odd);
    *packed = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    return _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
}

/* High halves of the eight 64-bit products */
FLOAT_INLINE __m256i multiply_high(__m256i a, __m256i b) {
    __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return _mm256_blend_epi32(even, odd, 0xAA);
}

/* Renormalises eight lanes: the low halves of those that leave are written, ascending; returns how many. */
FLOAT_INLINE uint32_t put_words_of_8(__m256i *x, __m256i frequency, const float_shuffles *shuffles, uint16_t *words) {
    const __m256i low_halves = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8,
                                                9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i stays = _mm256_cmpgt_epi32(_mm256_slli_epi32(frequency, 19), *x);
    uint32_t leaving = ~sign_bits(stays) & 255;
    __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(*x, low_halves), 0x08);
    __m128i shuffle = _mm_loadu_si128((const __m128i *)shuffles->bytes[leaving]);
    _mm_storeu_si128((__m128i *)words, _mm_shuffle_epi8(_mm256_castsi256_si128(halves), shuffle));
    *x = _mm256_blendv_epi8(_mm256_srli_epi32(*x, 16), *x, stays);
    return (uint32_t)__builtin_popcount(leaving);
}

FLOAT_INLINE uint32_t encode_full_rows(const uint8_t *symbols, size_t rows, const size_t lane_values,
                                       const float_coding *coding, const float_shuffles *shuffles, uint32_t *states,
                                       uint16_t *words, uint32_t position, uint8_t *flagged) {
    const __m256i low12 = _mm256_set1_epi32(4095), low13 = _mm256_set1_epi32(0x1FFF), low4 = _mm256_set1_epi32(15);
    const __m256i sum = _mm256_set1_epi32(FLOAT_PROBABILITY_SUM);
    __m256i x[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) x[r] = load(states + 8 * r);
    for (size_t row = rows; row-- > 0;) {
        __m256i seen = _mm256_setzero_si256();
        for (size_t column = lane_values; column-- > 0;) {
            const uint8_t *place = symbols + row * FLOAT_LANES * lane_values + column;
            for (int r = 0; r < REGISTERS; r++) {
                __m256i packed;
                __m256i reciprocal =
                    codings_of_8(coding, place + 8 * (size_t)r * lane_values, lane_values, &packed);
                __m256i frequency = _mm256_and_si256(packed, low12);
                position += put_words_of_8(&x[r], frequency, shuffles, words + position);
                __m256i shift = _mm256_and_si256(_mm256_srli_epi32(packed, 25), low4);
                __m256i quotient = _mm256_srlv_epi32(multiply_high(x[r], reciprocal), shift);
                __m256i bias = _mm256_and_si256(_mm256_srli_epi32(packed, 12), low13);
                __m256i grown = _mm256_mullo_epi32(quotient, _mm256_sub_epi32(sum, frequency));
                x[r] = _mm256_add_epi32(_mm256_add_epi32(x[r], bias), grown);
                seen = _mm256_or_si256(seen, packed);
            }
        }
        flagged[row] = sign_bits(seen) != 0;
    }
    for (int r = 0; r < REGISTERS; r++) store(states + 8 * r, x[r]);
    return position;
}

static uint32_t encode(const uint8_t *symbols, size_t count, int lane_values, const float_coding *coding,
                       const float_shuffles *shuffles, uint32_t states[FLOAT_LANES], uint16_t *words,
                       uint8_t flagged[FLOAT_MAX_ROWS]) {
    size_t row_size = (size_t)FLOAT_LANES * (size_t)lane_values, full = count / row_size;
    for (int lane = 0; lane < FLOAT_LANES; lane++) states[lane] = FLOAT_STATE_LOW;
    uint32_t position = 0;
    if (count % row_size)
        position = float_encode_rows(symbols, count, lane_values, full, full + 1, coding, states, words, 0, flagged);
    switch (lane_values) {
    case 2: return encode_full_rows(symbols, full, 2, coding, shuffles, states, words, position, flagged);
    case 4: return encode_full_rows(symbols, full, 4, coding, shuffles, states, words, position, flagged);
    case 8: return encode_full_rows(symbols, full, 8, coding, shuffles, states, words, position, flagged);
    default: return encode_full_rows(symbols, full, 16, coding, shuffles, states, words, position, flagged);
    }
}

/* ---- Decoding ---- */

/* Words from the front, to the lanes in the mask */
static void decode_shuffles(float_shuffles *shuffles) {
    for (uint32_t mask = 0; mask < 256; mask++) {
        uint8_t *to = shuffles->bytes[mask], from = 0;
        for (int lane = 0; lane < 8; lane++, to += 2) {
            int takes = mask >> lane & 1;
            to[0] = takes ? from++ : 0x80;
            to[1] = takes ? from++ : 0x80;
        }
    }
}

FLOAT_INLINE __m256i slots_of_8(const uint32_t *slots, const uint32_t *index) {
    __m128i low = _mm_cvtsi32_si128((int)slots[index[0]]), high = _mm_cvtsi32_si128((int)slots[index[4]]);
    low = _mm_insert_epi32(low, (int)slots[index[1]], 1);
    high = _mm_insert_epi32(high, (int)slots[index[5]], 1);
    low = _mm_insert_epi32(low, (int)slots[index[2]], 2);
    high = _mm_insert_epi32(high, (int)slots[index[6]], 2);
    low = _mm_insert_epi32(low, (int)slots[index[3]], 3);
    high = _mm_insert_epi32(high, (int)slots[index[7]], 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* One step of all lanes. entries[r] are their table entries, whose low byte is the symbol. May move the position
 * below 0, by 32 at most, and then has read the states instead of words. */
FLOAT_INLINE int64_t decode_step(__m256i x[REGISTERS], __m256i entries[REGISTERS], const uint32_t *slots,
                                 const float_shuffles *shuffles, const uint8_t *words, int64_t position) {
    const __m256i low12 = _mm256_set1_epi32(4095), least = _mm256_set1_epi32(FLOAT_STATE_LOW);
    uint32_t index[FLOAT_LANES] __attribute__((aligned(32)));
    __m256i takes[REGISTERS];
    uint32_t masks[REGISTERS];
    for (int r = 0; r < REGISTERS; r++)
        _mm256_store_si256((__m256i *)(index + 8 * r), _mm256_and_si256(x[r], low12));
    for (int r = 0; r < REGISTERS; r++) {
        entries[r] = slots_of_8(slots, index + 8 * r);
        __m256i grown = _mm256_mullo_epi32(_mm256_srli_epi32(entries[r], 20), _mm256_srli_epi32(x[r], 12));
        x[r] = _mm256_add_epi32(grown, _mm256_and_si256(_mm256_srli_epi32(entries[r], 8), low12));
        takes[r] = _mm256_cmpgt_epi32(least, x[r]);
        masks[r] = sign_bits(takes[r]);
    }
    for (int r = REGISTERS; r-- > 0;) {
        position -= __builtin_popcount(masks[r]);
        __m128i next = _mm_loadu_si128((const __m128i *)(const void *)(words + 2 * position));
        next = _mm_shuffle_epi8(next, _mm_loadu_si128((const __m128i *)shuffles->bytes[masks[r]]));
        __m256i joined = _mm256_or_si256(_mm256_slli_epi32(x[r], 16), _mm256_cvtepu16_epi32(next));
        x[r] = _mm256_blendv_epi8(x[r], joined, takes[r]);
    }
    return position;
}

/* Symbols of V / 4 units of four steps, one lane's four in each 32-bit element, to lane-major order. With V = 2 a unit
 * is two rows. */
FLOAT_INLINE void put_symbols(__m256i units[][REGISTERS], const size_t lane_values, uint8_t *symbols) {
    for (int r = 0; r < REGISTERS; r++) {
        __m256i a = units[0][r];
        if (lane_values == 4) {
            store(symbols + 32 * r, a);
        } else if (lane_values == 8) {
            __m256i low = _mm256_unpacklo_epi32(a, units[1][r]), high = _mm256_unpackhi_epi32(a, units[1][r]);
            store(symbols + 64 * r, _mm256_permute2x128_si256(low, high, 0x20));
            store(symbols + 64 * r + 32, _mm256_permute2x128_si256(low, high, 0x31));
        } else if (lane_values == 16) {
            __m256i ab_low = _mm256_unpacklo_epi32(a, units[1][r]), ab_high = _mm256_unpackhi_epi32(a, units[1][r]);
            __m256i cd_low = _mm256_unpacklo_epi32(units[2][r], units[3][r]);
            __m256i cd_high = _mm256_unpackhi_epi32(units[2][r], units[3][r]);
            __m256i lanes04 = _mm256_unpacklo_epi64(ab_low, cd_low), lanes15 = _mm256_unpackhi_epi64(ab_low, cd_low);
            __m256i lanes26 = _mm256_unpacklo_epi64(ab_high, cd_high), lanes37 = _mm256_unpackhi_epi64(ab_high, cd_high);
            store(symbols + 128 * r, _mm256_permute2x128_si256(lanes04, lanes15, 0x20));
            store(symbols + 128 * r + 32, _mm256_permute2x128_si256(lanes26, lanes37, 0x20));
            store(symbols + 128 * r + 64, _mm256_permute2x128_si256(lanes04, lanes15, 0x31));
            store(symbols + 128 * r + 96, _mm256_permute2x128_si256(lanes26, lanes37, 0x31));
        } else {
            const __m256i halves = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8,
                                                    9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
            __m256i rows = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(a, halves), 0xD8);
            _mm_storeu_si128((__m128i *)(symbols + 16 * r), _mm256_castsi256_si128(rows));
            _mm_storeu_si128((__m128i *)(symbols + 64 + 16 * r), _mm256_extracti128_si256(rows, 1));
        }
    }
}

/* Full rows from the first on, two at a time with V = 2; *rows becomes the number of rows decoded. A step takes 32
 * words at most and the 128 bytes of states lie before them, so the position is checked once a step, and no load leaves
 * the record but for the 16 bytes after it. */
FLOAT_INLINE int64_t decode_full_rows(const uint8_t *words, int64_t position, const size_t lane_values, size_t *rows,
                                      const uint32_t *slots, const float_shuffles *shuffles, uint32_t *states,
                                      uint8_t *symbols) {
    const size_t units_a_turn = lane_values < 4 ? 1 : lane_values / 4, rows_a_turn = lane_values == 2 ? 2 : 1;
    __m256i x[REGISTERS], entries[REGISTERS], units[4][REGISTERS];
    for (int r = 0; r < REGISTERS; r++) x[r] = load(states + 8 * r);
    size_t row = 0;
    for (; row + rows_a_turn <= *rows; row += rows_a_turn) {
        for (size_t unit = 0; unit < units_a_turn; unit++) {
            for (int r = 0; r < REGISTERS; r++) units[unit][r] = _mm256_setzero_si256();
            for (int step = 0; step < 4; step++) {
                position = decode_step(x, entries, slots, shuffles, words, position);
                if (position < 0) return position;
                for (int r = 0; r < REGISTERS; r++)
                    units[unit][r] = _mm256_or_si256(_mm256_srli_epi32(units[unit][r], 8),
                                                     _mm256_slli_epi32(entries[r], 24));
            }
        }
        put_symbols(units, lane_values, symbols + row * FLOAT_LANES * lane_values);
    }
    for (int r = 0; r < REGISTERS; r++) store(states + 8 * r, x[r]);
    *rows = row;
    return position;
}

static int decode(const uint8_t *record, uint32_t word_count, size_t count, int lane_values, const uint32_t *slots,
                  const float_shuffles *shuffles, uint8_t *symbols) {
    uint32_t states[FLOAT_LANES];
    memcpy(states, record, sizeof states);
    for (int lane = 0; lane < FLOAT_LANES; lane++)
        if (states[lane] < FLOAT_STATE_LOW || states[lane] >> 31) return FLOAT_STATE_RANGE;
    const uint8_t *words = record + sizeof states;
    size_t rows = count / ((size_t)FLOAT_LANES * (size_t)lane_values);
    int64_t position = word_count;
    switch (lane_values) {
    case 2: position = decode_full_rows(words, position, 2, &rows, slots, shuffles, states, symbols); break;
    case 4: position = decode_full_rows(words, position, 4, &rows, slots, shuffles, states, symbols); break;
    case 8: position = decode_full_rows(words, position, 8, &rows, slots, shuffles, states, symbols); break;
    default: position = decode_full_rows(words, position, 16, &rows, slots, shuffles, states, symbols);
    }
    if (position >= 0)
        position = float_decode_rows(words, position, count, lane_values, rows, slots, states, symbols);
    if (position < 0) return FLOAT_TOO_FEW_WORDS;
    for (int lane = 0; lane < FLOAT_LANES; lane++)
        if (states[lane] != FLOAT_STATE_LOW) return FLOAT_OTHER_END;
    return position ? FLOAT_OTHER_END : FLOAT_OK;
}

const float_kernels float_kernels_avx2 = {
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
    .untransform = untransform,
    .encode = encode,
    .decode = decode,
    .encode_shuffles = encode_shuffles,
    .decode_shuffles = decode_shuffles,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
