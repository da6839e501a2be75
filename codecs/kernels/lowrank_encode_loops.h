/* The two passes over a strip that is coded; included once for each set of instructions. */

FLOAT_INLINE uint32_t word_at(const uint8_t *words, size_t k, int word) {
    return word == 2 ? ((const float_u16 *)words)[k] : ((const float_u32 *)words)[k];
}

FLOAT_INLINE void put_word(uint8_t **to, uint32_t value, int word) {
    if (word == 2)
        *(float_u16 *)*to = (uint16_t)value;
    else
        *(float_u32 *)*to = value;
    *to += word;
}

/* The first pass: symbols, escapes and widths. ends[i] is where the next value of kind i goes. */
static void put_symbols(const lowrank_matrix *matrix, const lowrank_strip *strip, size_t row, size_t rows,
                        const uint8_t *words, uint8_t **ends, uint64_t *counts) {
    const int16_t *cols = matrix->scales + matrix->rows;
    size_t k = 0;
    for (size_t i = 0; i < rows; i++) {
        const int64_t *products = strip->products + i * strip->stride;
        const int32_t scale = matrix->scales[row + i];
        for (size_t j = 0; j < matrix->cols; j++, k++) {
            uint32_t word = word_at(words, k, matrix->word);
            lowrank_place place =
                lowrank_predict(scale + cols[j], products[j], matrix->multipliers, matrix->shift, matrix->mantissa);
            lowrank_number number = lowrank_code(word, place, matrix->mantissa);
            *ends[place.context]++ = (uint8_t)number.symbol;
            if (number.small) *ends[LOWRANK_BELOW]++ = (uint8_t)number.below;
            if (!number.symbol) put_word(&ends[LOWRANK_ESCAPES], word, matrix->word);
            strip->low[k] = (int32_t)word, strip->widths[k] = (uint8_t)number.width;
            counts[number.width]++;
        }
    }
}

FLOAT_INLINE void put_bits(lowrank_bin *bin, uint32_t width, uint32_t value) {
    uint64_t k = bin->next++;
    uint32_t whole = width & ~7u, rest = width & 7;
    if (whole) bin->bytes[k] = (uint8_t)value;
    if (whole > 8) bin->bytes[bin->count + k] = (uint8_t)(value >> 8);
    if (rest) {
        uint64_t bit = k * rest;
        *(float_u16 *)(bin->bits + (bit >> 3)) |= (uint16_t)((value >> whole & ((1u << rest) - 1)) << (bit & 7));
    }
}

static void put_raw(const lowrank_strip *strip, size_t count, lowrank_bin *bins) {
    for (size_t k = 0; k < count; k++)
        if (strip->widths[k]) put_bits(&bins[strip->widths[k]], strip->widths[k], (uint32_t)strip->low[k]);
}
