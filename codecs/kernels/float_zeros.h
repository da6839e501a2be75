/* The kernels that take zeros out and put them back (16.4), included by float_loops.h.
 *
 * AVX2 moves 16 bytes at a time by the shuffles that rANS uses, too: a word of 4 bytes counts as two of their 16-bit
 * lanes. Words of 8 bytes are rare and take the plain loops everywhere.
 */

/* No branch depends on the data. */
#define DEFINE_ZEROS(TYPE, VALUE, NAME) \
    static size_t compact_##NAME(const TYPE *words, const uint16_t *prediction, size_t count, TYPE *out, \
                                 uint16_t *prediction_out) { \
        size_t kept = 0; \
        for (size_t i = 0; i < count; i++) { \
            out[kept] = words[i]; \
            prediction_out[kept] = prediction[i]; \
            kept += words[i] != 0; \
        } \
        return kept; \
    } \
    static void expand_##NAME(const TYPE *kept, const uint8_t *bitmap, size_t count, TYPE *out) { \
        for (size_t i = 0; i < count; i++) { \
            VALUE bit = bitmap[i / 8] >> i % 8 & 1; \
            out[i] = *kept & (VALUE)(0 - bit); \
            kept += bit; \
        } \
    } \
    static void bitmap_##NAME(const TYPE *words, size_t count, uint8_t *out) { \
        for (size_t i = 0; i < count; i += 8) { \
            uint32_t bits = 0; \
            for (size_t k = 0; k < float_least(8, count - i); k++) bits |= (uint32_t)(words[i + k] != 0) << k; \
            out[i / 8] = (uint8_t)bits; \
        } \
    }

DEFINE_ZEROS(float_u16, uint16_t, 16)
DEFINE_ZEROS(float_u32, uint32_t, 32)
DEFINE_ZEROS(float_u64, uint64_t, 64)

#ifdef LOOPS_AVX2

/* A bit for each of the 16-bit lanes of a comparison */
FLOAT_INLINE uint32_t lane_bits(__m128i lanes) {
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(lanes, _mm_setzero_si128()));
}

FLOAT_INLINE __m128i shuffled(__m128i value, uint32_t mask, const float_shuffles *shuffles) {
    return _mm_shuffle_epi8(value, _mm_loadu_si128((const __m128i *)shuffles->bytes[mask]));
}

FLOAT_INLINE void put16(void *to, __m128i value) { _mm_storeu_si128((__m128i *)to, value); }

/* Eight words a turn; stores reach 16 bytes past what is kept, within the room of `count` words and 16 more. */
static size_t compact_eights(const uint8_t *words, const uint16_t *prediction, size_t count, int word, uint8_t *out,
                             uint16_t *prediction_out, const float_shuffles *shuffles) {
    const __m128i zero = _mm_setzero_si128();
    size_t kept = 0;
    for (size_t i = 0; i + 8 <= count; i += 8) {
        __m128i a = _mm_loadu_si128((const __m128i *)(words + i * (size_t)word)), lanes = _mm_cmpeq_epi16(a, zero);
        if (word == 4) {
            __m128i b = _mm_loadu_si128((const __m128i *)(words + i * 4 + 16));
            __m128i a_zero = _mm_cmpeq_epi32(a, zero), b_zero = _mm_cmpeq_epi32(b, zero);
            uint32_t a_kept = lane_bits(a_zero) ^ 255, b_kept = lane_bits(b_zero) ^ 255;
            put16(out + kept * 4, shuffled(a, a_kept, shuffles));
            put16(out + kept * 4 + (size_t)__builtin_popcount(a_kept) * 2, shuffled(b, b_kept, shuffles));
            lanes = _mm_packs_epi32(a_zero, b_zero);
        }
        uint32_t mask = lane_bits(lanes) ^ 255;
        if (word == 2) put16(out + kept * 2, shuffled(a, mask, shuffles));
        __m128i predicted = _mm_loadu_si128((const __m128i *)(const void *)(prediction + i));
        put16(prediction_out + kept, shuffled(predicted, mask, shuffles));
        kept += (size_t)__builtin_popcount(mask);
    }
    return kept;
}

/* Eight words a turn; reads reach 16 bytes past the last word kept. */
static size_t expand_eights(const uint8_t *kept, const uint8_t *bitmap, size_t count, int word, uint8_t *out,
                            const float_shuffles *shuffles) {
    static const uint8_t twice[16] = {0x00, 0x03, 0x0C, 0x0F, 0x30, 0x33, 0x3C, 0x3F,
                                      0xC0, 0xC3, 0xCC, 0xCF, 0xF0, 0xF3, 0xFC, 0xFF};
    const uint8_t *from = kept;
    for (size_t i = 0; i + 8 <= count; i += 8) {
        uint32_t mask = bitmap[i / 8], low = word == 2 ? mask : twice[mask & 15];
        put16(out + i * (size_t)word, shuffled(_mm_loadu_si128((const __m128i *)from), low, shuffles));
        from += __builtin_popcount(low) * 2;
        if (word == 2) continue;
        put16(out + i * 4 + 16, shuffled(_mm_loadu_si128((const __m128i *)from), twice[mask >> 4], shuffles));
        from += __builtin_popcount(mask >> 4) * 4;
    }
    return (size_t)(from - kept) / (size_t)word;
}

static void bitmap_eights(const uint8_t *words, size_t count, int word, uint8_t *out) {
    const __m128i zero = _mm_setzero_si128();
    for (size_t i = 0; i + 8 <= count; i += 8) {
        __m128i a = _mm_loadu_si128((const __m128i *)(words + i * (size_t)word)), lanes = _mm_cmpeq_epi16(a, zero);
        if (word == 4) {
            __m128i b = _mm_loadu_si128((const __m128i *)(words + i * 4 + 16));
            lanes = _mm_packs_epi32(_mm_cmpeq_epi32(a, zero), _mm_cmpeq_epi32(b, zero));
        }
        out[i / 8] = (uint8_t)~lane_bits(lanes);
    }
}

#endif

static size_t compact(const void *words, const uint16_t *prediction, size_t count, int word, void *out,
                      uint16_t *prediction_out, const float_shuffles *shuffles) {
    size_t eights = 0, kept = 0;
#ifdef LOOPS_AVX2
    eights = word == 8 ? 0 : count & ~(size_t)7;
    if (word == 2) kept = compact_eights(words, prediction, count, 2, out, prediction_out, shuffles);
    if (word == 4) kept = compact_eights(words, prediction, count, 4, out, prediction_out, shuffles);
#endif
    (void)shuffles;
    const void *rest = (const uint8_t *)words + eights * (size_t)word;
    void *place = (uint8_t *)out + kept * (size_t)word;
    return kept + BY_WORD(compact, rest, prediction + eights, count - eights, place, prediction_out + kept);
}

static void expand(const void *kept, const uint8_t *bits, size_t count, int word, const float_shuffles *shuffles,
                   void *out) {
    size_t eights = 0, used = 0;
#ifdef LOOPS_AVX2
    eights = word == 8 ? 0 : count & ~(size_t)7;
    if (word == 2) used = expand_eights(kept, bits, count, 2, out, shuffles);
    if (word == 4) used = expand_eights(kept, bits, count, 4, out, shuffles);
#endif
    (void)shuffles;
    const void *rest = (const uint8_t *)kept + used * (size_t)word;
    void *place = (uint8_t *)out + eights * (size_t)word;
    BY_WORD(expand, rest, bits + eights / 8, count - eights, place);
}

static void bitmap(const void *words, size_t count, int word, uint8_t *out) {
    size_t eights = 0;
#ifdef LOOPS_AVX2
    eights = word == 8 ? 0 : count & ~(size_t)7;
    if (word == 2) bitmap_eights(words, count, 2, out);
    if (word == 4) bitmap_eights(words, count, 4, out);
#endif
    BY_WORD(bitmap, (const void *)((const uint8_t *)words + eights * (size_t)word), count - eights, out + eights / 8);
}
