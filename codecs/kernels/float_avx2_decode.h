/* rANS decoding for AVX2, included by float_avx2.c.
 *
 * Versions, clock ticks (2.45 GHz, Zen 3) a symbol of BF16 weights, of FP32 the same:
 *   1.93  a chunk at a time; states leave their registers one by one, words are widened after they are moved
 *   1.88  two states leave a register at a time
 *   1.77  words are moved and widened by one shuffle
 *   1.35  two chunks at a time: the look-ups of one are under way while the other waits for its own
 * Tried for two chunks: gathers 1.70, states through memory 1.59, entries joined in pairs before they enter a register
 * 1.60, symbols in the high byte of the entries 1.36.
 */

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

/* The same as elements of 32 bits, whose high halves become 0 */
static void make_spreads(float_spreads *spreads) {
    for (uint32_t mask = 0; mask < 256; mask++) {
        uint8_t *to = spreads->bytes[mask], from = 0;
        memset(to, 0x80, 32);
        for (uint32_t bits = mask; bits; bits &= bits - 1) {
            uint8_t *lane = to + 4 * __builtin_ctz(bits);
            lane[0] = from++;
            lane[1] = from++;
        }
    }
}

/* Indices leave the vector two at a time: that takes less than half as long as one by one. */
FLOAT_INLINE void indices_of_8(__m256i x, uint64_t pairs[4]) {
    __m256i index = _mm256_and_si256(x, _mm256_set1_epi32(FLOAT_PROBABILITY_SUM - 1));
    __m128i first = _mm256_castsi256_si128(index), second = _mm256_extracti128_si256(index, 1);
    pairs[0] = (uint64_t)_mm_cvtsi128_si64(first);
    pairs[1] = (uint64_t)_mm_extract_epi64(first, 1);
    pairs[2] = (uint64_t)_mm_cvtsi128_si64(second);
    pairs[3] = (uint64_t)_mm_extract_epi64(second, 1);
}

FLOAT_INLINE __m256i slots_of_8(const uint32_t *slots, const uint64_t pairs[4]) {
    uint64_t a = pairs[0], b = pairs[1], c = pairs[2], d = pairs[3];
    __m128i low = _mm_cvtsi32_si128((int)slots[(uint32_t)a]), high = _mm_cvtsi32_si128((int)slots[(uint32_t)c]);
    low = _mm_insert_epi32(low, (int)slots[a >> 32], 1);
    high = _mm_insert_epi32(high, (int)slots[c >> 32], 1);
    low = _mm_insert_epi32(low, (int)slots[(uint32_t)b], 2);
    high = _mm_insert_epi32(high, (int)slots[(uint32_t)d], 2);
    low = _mm_insert_epi32(low, (int)slots[b >> 32], 3);
    high = _mm_insert_epi32(high, (int)slots[d >> 32], 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* One step of all lanes. entries[r] are their table entries, whose low byte is the symbol. May move the position
 * below 0, by 32 at most, and then has read the states instead of words. */
FLOAT_INLINE int64_t decode_step(__m256i x[REGISTERS], __m256i entries[REGISTERS], const uint32_t *slots,
                                 const float_spreads *spreads, const uint8_t *words, int64_t position) {
    const __m256i low12 = _mm256_set1_epi32(4095), least = _mm256_set1_epi32(FLOAT_STATE_LOW);
    __m256 takes[REGISTERS]; /* by their signs */
    uint32_t masks[REGISTERS];
    uint64_t indices[REGISTERS][4];
    for (int r = 0; r < REGISTERS; r++) indices_of_8(x[r], indices[r]);
    for (int r = 0; r < REGISTERS; r++) {
        entries[r] = slots_of_8(slots, indices[r]);
        __m256i grown = _mm256_mullo_epi32(_mm256_srli_epi32(entries[r], 20), _mm256_srli_epi32(x[r], 12));
        x[r] = _mm256_add_epi32(grown, _mm256_and_si256(_mm256_srli_epi32(entries[r], 8), low12));
        takes[r] = _mm256_castsi256_ps(_mm256_sub_epi32(x[r], least));
        masks[r] = (uint32_t)_mm256_movemask_ps(takes[r]);
    }
    for (int r = REGISTERS; r-- > 0;) {
        position -= __builtin_popcount(masks[r]);
        __m128i next = _mm_loadu_si128((const __m128i *)(const void *)(words + 2 * position));
        __m256i spread = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(next), load(spreads->bytes[masks[r]]));
        __m256i joined = _mm256_or_si256(_mm256_slli_epi32(x[r], 16), spread);
        x[r] = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(x[r]), _mm256_castsi256_ps(joined), takes[r]));
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

/* Where the decoding of a chunk stands */
typedef struct {
    const uint8_t *words;
    int64_t position;
    uint32_t states[FLOAT_LANES];
    uint8_t *symbols;
} lanes;

/* Full rows of `number` chunks from the first on, two at a time with V = 2. Returns how many rows, or -1 where a chunk
 * has too few words. A step takes 32 words at most and the 128 bytes of states lie before them, so the positions are
 * checked once a step, and no load leaves the record but for the 16 bytes after it. */
FLOAT_INLINE int64_t decode_full_rows(lanes *chunks, const int number, const size_t lane_values, size_t rows,
                                      const uint32_t *slots, const float_spreads *spreads) {
    const size_t units_a_turn = lane_values < 4 ? 1 : lane_values / 4, rows_a_turn = lane_values == 2 ? 2 : 1;
    __m256i x[2][REGISTERS], entries[REGISTERS], units[2][4][REGISTERS];
    int64_t positions[2];
    for (int i = 0; i < number; i++) {
        positions[i] = chunks[i].position;
        for (int r = 0; r < REGISTERS; r++) x[i][r] = load(chunks[i].states + 8 * r);
    }
    size_t row = 0;
    for (; row + rows_a_turn <= rows; row += rows_a_turn) {
        for (size_t unit = 0; unit < units_a_turn; unit++) {
            for (int i = 0; i < number; i++)
                for (int r = 0; r < REGISTERS; r++) units[i][unit][r] = _mm256_setzero_si256();
            for (int step = 0; step < 4; step++) {
                int64_t signs = 0;
                for (int i = 0; i < number; i++) {
                    positions[i] = decode_step(x[i], entries, slots, spreads, chunks[i].words, positions[i]);
                    signs |= positions[i];
                    for (int r = 0; r < REGISTERS; r++)
                        units[i][unit][r] = _mm256_or_si256(_mm256_srli_epi32(units[i][unit][r], 8),
                                                            _mm256_slli_epi32(entries[r], 24));
                }
                if (signs < 0) return -1;
            }
        }
        for (int i = 0; i < number; i++)
            put_symbols(units[i], lane_values, chunks[i].symbols + row * FLOAT_LANES * lane_values);
    }
    for (int i = 0; i < number; i++) {
        chunks[i].position = positions[i];
        for (int r = 0; r < REGISTERS; r++) store(chunks[i].states + 8 * r, x[i][r]);
    }
    return (int64_t)row;
}

/* `number` chunks of `count` symbols each, from records that begin with states; FLOAT_OK or an error of any. */
FLOAT_INLINE int decode_chunks(const uint8_t *const *records, const uint32_t *word_counts, const int number,
                               size_t count, int lane_values, const uint32_t *slots, const float_spreads *spreads,
                               uint8_t *const *symbols) {
    lanes chunks[2];
    for (int i = 0; i < number; i++) {
        memcpy(chunks[i].states, records[i], sizeof chunks[i].states);
        for (int lane = 0; lane < FLOAT_LANES; lane++)
            if (chunks[i].states[lane] < FLOAT_STATE_LOW || chunks[i].states[lane] >> 31) return FLOAT_STATE_RANGE;
        chunks[i].words = records[i] + sizeof chunks[i].states;
        chunks[i].position = word_counts[i];
        chunks[i].symbols = symbols[i];
    }
    size_t rows = count / ((size_t)FLOAT_LANES * (size_t)lane_values);
    int64_t done;
    switch (lane_values) {
    case 2: done = decode_full_rows(chunks, number, 2, rows, slots, spreads); break;
    case 4: done = decode_full_rows(chunks, number, 4, rows, slots, spreads); break;
    case 8: done = decode_full_rows(chunks, number, 8, rows, slots, spreads); break;
    default: done = decode_full_rows(chunks, number, 16, rows, slots, spreads);
    }
    if (done < 0) return FLOAT_TOO_FEW_WORDS;
    for (int i = 0; i < number; i++) {
        lanes *c = &chunks[i];
        c->position = float_decode_rows(c->words, c->position, count, lane_values, (size_t)done, slots, c->states,
                                        c->symbols);
        if (c->position < 0) return FLOAT_TOO_FEW_WORDS;
        for (int lane = 0; lane < FLOAT_LANES; lane++)
            if (c->states[lane] != FLOAT_STATE_LOW) return FLOAT_OTHER_END;
        if (c->position) return FLOAT_OTHER_END;
    }
    return FLOAT_OK;
}

static int decode(const uint8_t *record, uint32_t word_count, size_t count, int lane_values, const uint32_t *slots,
                  const float_spreads *spreads, uint8_t *symbols) {
    return decode_chunks(&record, &word_count, 1, count, lane_values, slots, spreads, &symbols);
}

static int decode_pair(const uint8_t *const records[2], const uint32_t word_counts[2], int lane_values,
                       const uint32_t *slots, const float_spreads *spreads, uint8_t *const symbols[2]) {
    return decode_chunks(records, word_counts, 2, FLOAT_CHUNK, lane_values, slots, spreads, symbols);
}
