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

#include "float_avx2_decode.h"

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
    .restore = restore,
    .untransform = untransform,
    .encode = encode,
    .decode = decode,
    .decode_pair = decode_pair,
    .encode_shuffles = encode_shuffles,
    .decode_shuffles = decode_shuffles,
    .spreads = make_spreads,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
