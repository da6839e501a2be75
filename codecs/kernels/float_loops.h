/* The kernels other than rANS, compiled once by float_plain.c and once, for AVX2, by float_avx2.c: the same source,
 * so that they cannot differ, except for two loops that compilers do not vectorise (LOOPS_AVX2). */

#define WORD float_u16
#define VALUE uint16_t
#define BITS 16
#define NAME(x) x##_16
#include "float_word_loops.h"

#define WORD float_u32
#define VALUE uint32_t
#define BITS 32
#define NAME(x) x##_32
#include "float_word_loops.h"

#define WORD float_u64
#define VALUE uint64_t
#define BITS 64
#define NAME(x) x##_64
#include "float_word_loops.h"

/* Calls f_16, f_32 or f_64. */
#define BY_WORD(f, ...) \
    (word == 2 ? f##_16(__VA_ARGS__) : word == 4 ? f##_32(__VA_ARGS__) : f##_64(__VA_ARGS__))
#include "float_zeros.h"

/* Layouts are passed as constants, so that there is a loop for each. */

static void sum(const void *words, size_t count, int word, int layout, int64_t sums[2]) {
    if (layout == LAYOUT_LOG) BY_WORD(sum_of, words, count, LAYOUT_LOG, sums);
    else BY_WORD(sum_of, words, count, LAYOUT_ROTATED, sums);
}

static void columns(const void *words, size_t count, int word, int layout, int32_t level, int32_t *totals,
                    int32_t *counts) {
    if (layout == LAYOUT_LOG) BY_WORD(columns_of, words, count, LAYOUT_LOG, level, totals, counts);
    else BY_WORD(columns_of, words, count, LAYOUT_ROTATED, level, totals, counts);
}

static void cost(const void *words, size_t count, int word, int layout, int32_t flat, int32_t level,
                 const uint8_t *column_offsets, int64_t sums[2]) {
    if (layout == LAYOUT_LOG) BY_WORD(cost_of, words, count, LAYOUT_LOG, flat, level, column_offsets, sums);
    else BY_WORD(cost_of, words, count, LAYOUT_ROTATED, flat, level, column_offsets, sums);
}

static void survey(const void *words, const uint16_t *prediction, size_t count, int word, int64_t sums[2]) {
    BY_WORD(survey, words, prediction, count, sums);
}

static void scan(const void *words, size_t count, int word, int zeros_removed, uint64_t found[3]) {
    BY_WORD(scan, words, count, zeros_removed, found);
}

static void transform(const void *words, const uint16_t *prediction, size_t count, int word, int layout,
                      uint16_t *tops, uint8_t *low) {
    if (layout == LAYOUT_LOG) BY_WORD(transform_as, words, prediction, count, LAYOUT_LOG, tops, low);
    else BY_WORD(transform_as, words, prediction, count, LAYOUT_ROTATED, tops, low);
}

static void untransform(const void *coded, const uint16_t *prediction, size_t count, int word, int layout,
                        void *words) {
    if (layout == LAYOUT_LOG) BY_WORD(untransform_as, coded, prediction, count, LAYOUT_LOG, words);
    else BY_WORD(untransform_as, coded, prediction, count, LAYOUT_ROTATED, words);
}

/* ---- Tops to planes and back (16.5) ---- */

static void split_rotated(const uint16_t *restrict tops, size_t count, uint8_t *restrict symbols,
                          uint8_t *restrict mid) {
    for (size_t i = 0; i < count; i++) {
        symbols[i] = (uint8_t)(tops[i] >> 7);
        mid[i] = (uint8_t)(tops[i] << 1 | tops[i] >> 15);
    }
}

static void split_nibbles(const uint16_t *tops, size_t count, uint8_t *restrict nibbles) {
    const float_u32 *pairs = (const float_u32 *)tops;
    for (size_t i = 0; i < count / 2; i++) nibbles[i] = (uint8_t)((pairs[i] & 15) | (pairs[i] >> 12 & 0xF0));
    if (count % 2) nibbles[count / 2] = tops[count - 1] & 15;
}

static void split_signs(const uint16_t *tops, size_t count, uint8_t *signs) {
    size_t i = 0;
#ifdef LOOPS_AVX2
    for (; i + 32 <= count; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(tops + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(tops + i + 16));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xD8);
        *(float_u32 *)(signs + i / 8) = (uint32_t)_mm256_movemask_epi8(both);
    }
#endif
    for (; i + 8 <= count; i += 8) {
        uint32_t byte = 0;
        for (int half = 0; half < 2; half++) {
            /* Four sign bits, 16 apart, meet in bits 48 to 51. */
            uint64_t four = *(const float_u64 *)(tops + i + 4 * half) >> 15 & 0x0001000100010001ull;
            byte |= (uint32_t)(four * 0x0001000200040008ull >> 48 & 15) << 4 * half;
        }
        signs[i / 8] = (uint8_t)byte;
    }
    if (i == count) return;
    signs[i / 8] = 0;
    for (; i < count; i++) signs[i / 8] |= (uint8_t)(tops[i] >> 15 << i % 8);
}

/* 0xFFFF where a word may lack a symbol: a quantum above 255, or 0 although the word is not. For longer words every
 * top of 0 is reported: whether the low bytes are 0 too is looked up. */
FLOAT_INLINE uint16_t is_suspect(uint16_t top, uint16_t wide) {
    uint16_t above = (top & 0x7000) != 0 ? 0xFFFF : 0;
    uint16_t none = (top & 0x7FF0) == 0 ? 0xFFFF : 0;
    uint16_t present = top != 0 ? 0xFFFF : 0;
    return (uint16_t)(above | (none & (present | wide)));
}

static uint32_t suspects_of_32(const uint16_t *tops, uint16_t wide) {
#ifdef LOOPS_AVX2
    __m256i suspect[2];
    const __m256i zero = _mm256_setzero_si256(), every = _mm256_set1_epi16((short)wide);
    for (int half = 0; half < 2; half++) {
        __m256i top = _mm256_loadu_si256((const __m256i *)(tops + 16 * half));
        __m256i below = _mm256_cmpeq_epi16(_mm256_and_si256(top, _mm256_set1_epi16(0x7000)), zero);
        __m256i none = _mm256_cmpeq_epi16(_mm256_and_si256(top, _mm256_set1_epi16(0x7FF0)), zero);
        __m256i absent = _mm256_andnot_si256(every, _mm256_cmpeq_epi16(top, zero));
        __m256i fine = _mm256_andnot_si256(_mm256_andnot_si256(absent, none), below);
        suspect[half] = _mm256_andnot_si256(fine, _mm256_cmpeq_epi16(zero, zero));
    }
    __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(suspect[0], suspect[1]), 0xD8);
    return (uint32_t)_mm256_movemask_epi8(both);
#else
    uint16_t any = 0; /* bits 12 to 14 of a quantum above 255, bit 15 of one of 0 */
    for (int i = 0; i < 32; i++)
        any |= (uint16_t)((tops[i] & 0x7000) | ((uint16_t)((tops[i] & 0x7FF0) - 0x10) & 0x8000));
    if (!any) return 0;
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(is_suspect(tops[i], wide) & 1) << i;
    return bits;
#endif
}

/* Takes the words that are 0 out of the suspects. */
static uint32_t without_zeros(uint32_t suspects, const uint16_t *tops, const uint8_t *low, size_t low_size) {
    for (uint32_t rest = suspects; rest; rest &= rest - 1) {
        int i = __builtin_ctz(rest);
        uint8_t any = tops[i] != 0;
        for (size_t k = 0; k < low_size; k++) any |= low[i * low_size + k];
        if (!any) suspects &= ~(1u << i);
    }
    return suspects;
}

static void find_exceptions(const uint16_t *tops, const uint8_t *low, size_t count, int word, uint32_t *exceptions) {
    uint16_t wide = word > 2 ? 0xFFFF : 0, last[32];
    for (size_t i = 0; i < count; i += 32) {
        const uint16_t *group = tops + i;
        if (count - i < 32) {
            for (size_t k = 0; k < 32; k++) last[k] = i + k < count ? tops[i + k] : FLOAT_CENTRE << 4;
            group = last;
        }
        uint32_t suspects = suspects_of_32(group, wide);
        if (suspects && wide)
            suspects = without_zeros(suspects, group, low + i * ((size_t)word - 2), (size_t)word - 2);
        exceptions[i / 32] = suspects;
    }
}

static void split(const uint16_t *tops, const uint8_t *low, size_t count, int word, int layout, uint8_t *symbols,
                  uint8_t *first, uint8_t *second, uint32_t *exceptions) {
    if (layout == LAYOUT_ROTATED) {
        split_rotated(tops, count, symbols, first);
        return;
    }
    for (size_t i = 0; i < count; i++) symbols[i] = (uint8_t)(tops[i] >> 4);
    split_signs(tops, count, first);
    split_nibbles(tops, count, second);
    find_exceptions(tops, low, count, word, exceptions);
}

static void join_rotated(const uint8_t *restrict symbols, const uint8_t *restrict mid, size_t count,
                         uint16_t *restrict tops) {
    for (size_t i = 0; i < count; i++)
        tops[i] = (uint16_t)(symbols[i] << 7 | mid[i] >> 1 | (uint16_t)(mid[i] << 15));
}

/* Nibbles and signs of whole groups of eight words, a byte each: signs in bit 7. Both loops fill vectors. */
static void spread_planes(const uint8_t *restrict signs, const uint8_t *restrict nibbles, size_t groups,
                          uint8_t *restrict low, uint8_t *restrict high) {
    float_u16 *pairs = (float_u16 *)low;
    for (size_t i = 0; i < 4 * groups; i++) pairs[i] = (uint16_t)((nibbles[i] | nibbles[i] << 4) & 0x0F0F);
    for (size_t i = 0; i < groups; i++) {
        uint64_t bits = signs[i] * 0x0101010101010101ull & 0x8040201008040201ull;
        ((float_u64 *)high)[i] = (bits + 0x7F7F7F7F7F7F7F7Full) & 0x8080808080808080ull;
    }
}

static void join_bytes(const uint8_t *restrict symbols, const uint8_t *restrict low, const uint8_t *restrict high,
                       size_t count, uint16_t *restrict tops) {
    for (size_t i = 0; i < count; i++) tops[i] = (uint16_t)(symbols[i] << 4 | low[i] | high[i] << 8);
}

#ifdef LOOPS_AVX2

/* Of 16 words, in their places */
FLOAT_INLINE __m256i signs_and_nibbles(const uint8_t *signs, const uint8_t *nibbles) {
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
                                          (short)0x8000);
    __m128i packed = _mm_loadl_epi64((const __m128i *)nibbles);
    __m128i each = _mm_unpacklo_epi8(packed, _mm_srli_epi16(packed, 4));
    __m256i nibble = _mm256_cvtepu8_epi16(_mm_and_si128(each, _mm_set1_epi8(15)));
    __m256i chosen = _mm256_and_si256(_mm256_set1_epi16((short)*(const float_u16 *)signs), bit);
    return _mm256_or_si256(nibble, _mm256_slli_epi16(_mm256_cmpeq_epi16(chosen, bit), 15));
}

#endif

static void join_log(const uint8_t *symbols, const uint8_t *signs, const uint8_t *nibbles, size_t count,
                     uint16_t *tops) {
    size_t i = 0;
#ifdef LOOPS_AVX2
    for (; i + 16 <= count; i += 16) {
        __m256i symbol = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(symbols + i)));
        __m256i others = signs_and_nibbles(signs + i / 8, nibbles + i / 2);
        _mm256_storeu_si256((__m256i *)(tops + i), _mm256_or_si256(_mm256_slli_epi16(symbol, 4), others));
    }
#endif
    size_t groups = (count - i) / 8;
    uint8_t low[FLOAT_PIECE], high[FLOAT_PIECE];
    spread_planes(signs + i / 8, nibbles + i / 2, groups, low, high);
    join_bytes(symbols + i, low, high, 8 * groups, tops + i);
    i += 8 * groups;
    for (; i < count; i++)
        tops[i] = (uint16_t)(symbols[i] << 4 | (nibbles[i / 2] >> i % 2 * 4 & 15) | (signs[i / 8] >> i % 8 & 1) << 15);
}

static void join_tops(const uint8_t *symbols, const uint8_t *first, const uint8_t *second, size_t count, int layout,
                      uint16_t *tops) {
    if (layout == LAYOUT_ROTATED) join_rotated(symbols, first, count, tops);
    else join_log(symbols, first, second, count, tops);
}

static void join(const uint8_t *symbols, const uint8_t *first, const uint8_t *second, const uint8_t *low, size_t count,
                 int word, int layout, void *coded) {
    uint16_t tops[FLOAT_PIECE];
    join_tops(symbols, first, second, count, layout, tops);
    BY_WORD(widen, tops, low, count, coded);
}

#ifdef LOOPS_AVX2

/* join_log and restore_as in one, 16 words a turn; `count` is a multiple of 16, `word` 2 or 4. */
FLOAT_INLINE void restore_sixteens(const uint8_t *symbols, const uint8_t *signs, const uint8_t *nibbles,
                                   const uint8_t *low, const uint16_t *prediction, size_t count, const int word,
                                   uint8_t *words) {
    const __m256i mask = _mm256_set1_epi16(0x7FF0), zero = _mm256_setzero_si256();
    for (size_t i = 0; i < count; i += 16) {
        __m256i shifted = _mm256_slli_epi16(_mm256_loadu_si256((const __m256i *)(prediction + i)), 4);
        __m256i of_zero = _mm256_and_si256(shifted, mask);
        __m256i symbol = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(symbols + i)));
        __m256i quantum = _mm256_and_si256(_mm256_add_epi16(_mm256_slli_epi16(symbol, 4), shifted), mask);
        __m256i top = _mm256_or_si256(quantum, signs_and_nibbles(signs + i / 8, nibbles + i / 2));
        __m256i exchanged = _mm256_or_si256(_mm256_cmpeq_epi16(top, zero), _mm256_cmpeq_epi16(top, of_zero));
        exchanged = _mm256_and_si256(exchanged, of_zero);
        if (word == 2) {
            _mm256_storeu_si256((__m256i *)(words + 2 * i), _mm256_xor_si256(top, exchanged));
            continue;
        }
        __m256i rest = _mm256_loadu_si256((const __m256i *)(low + 2 * i));
        top = _mm256_xor_si256(top, _mm256_and_si256(exchanged, _mm256_cmpeq_epi16(rest, zero)));
        __m256i even = _mm256_unpacklo_epi16(rest, top), odd = _mm256_unpackhi_epi16(rest, top);
        _mm256_storeu_si256((__m256i *)(words + 4 * i), _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(words + 4 * i + 32), _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

#endif

static void restore(const uint8_t *symbols, const uint8_t *first, const uint8_t *second, const uint8_t *low,
                    const uint16_t *prediction, size_t count, int word, int layout, void *words) {
    uint16_t tops[FLOAT_PIECE];
#ifdef LOOPS_AVX2
    if (layout == LAYOUT_LOG && word < 8 && count % 16 == 0) {
        if (word == 2) restore_sixteens(symbols, first, second, low, prediction, count, 2, words);
        else restore_sixteens(symbols, first, second, low, prediction, count, 4, words);
        return;
    }
#endif
    join_tops(symbols, first, second, count, layout, tops);
    if (layout == LAYOUT_LOG) BY_WORD(restore_as, tops, low, prediction, count, LAYOUT_LOG, words);
    else BY_WORD(restore_as, tops, low, prediction, count, LAYOUT_ROTATED, words);
}
