/* The two passes over a strip that is decoded; included once for each set of instructions. */

/* The first pass: symbols to steps and widths. */
static int take_symbols(const lowrank_matrix *matrix, const lowrank_strip *strip, size_t row, size_t rows,
                        lowrank_taken *taken, uint64_t *counts) {
    const int16_t *cols = matrix->scales + matrix->rows;
    const int32_t mantissa = matrix->mantissa;
    size_t k = 0;
    for (size_t i = 0; i < rows; i++) {
        const int32_t scale = matrix->scales[row + i];
        const int64_t *products = strip->products + i * strip->stride;
        for (size_t j = 0; j < matrix->cols; j++, k++) {
            lowrank_place place =
                lowrank_predict(scale + cols[j], products[j], matrix->multipliers, matrix->shift, mantissa);
            lowrank_taken *mine = &taken[place.context];
            if (mine->at == mine->end) return LOWRANK_TOO_FEW;
            int32_t symbol = *mine->at++, steps = place.steps + symbol - 128, width = 0;
            if (!symbol) {
                steps = LOWRANK_ODD;
            } else if ((uint32_t)(steps + 1) > 1) {
                width = lowrank_width((uint32_t)(steps ^ steps >> 31), mantissa);
            } else {
                lowrank_taken *below = &taken[LOWRANK_BELOW];
                if (below->at == below->end) return LOWRANK_TOO_FEW;
                int32_t down = *below->at++;
                place.exponent = down ? place.exponent - down : 0;
                width = down ? mantissa : 0;
            }
            strip->low[k] = steps, strip->exponents[k] = place.exponent, strip->widths[k] = (uint8_t)width;
            counts[width]++;
        }
    }
    return LOWRANK_OK;
}

FLOAT_INLINE uint32_t take_raw(lowrank_bin *bin, uint32_t width) {
    uint64_t k = bin->next++;
    uint32_t whole = width & ~7u, rest = width & 7, value = 0;
    if (whole) value = bin->bytes[k];
    if (whole > 8) value |= (uint32_t)bin->bytes[bin->count + k] << 8;
    if (rest) {
        uint64_t bit = k * rest;
        value |= (*(const float_u16 *)(bin->bits + (bit >> 3)) >> (bit & 7) & ((1u << rest) - 1)) << whole;
    }
    return value;
}

/* The second pass: words. */
static int put_words(const lowrank_matrix *matrix, const lowrank_strip *strip, size_t count,
                     lowrank_bin *bins, lowrank_taken *escapes, uint8_t *out) {
    const int32_t mantissa = matrix->mantissa;
    const int word = matrix->word;
    for (size_t k = 0; k < count; k++) {
        int32_t steps = strip->low[k];
        uint32_t made;
        if (steps == LOWRANK_ODD) {
            if (escapes->at == escapes->end) return LOWRANK_TOO_FEW;
            made = word == 2 ? *(const float_u16 *)escapes->at : *(const float_u32 *)escapes->at;
            escapes->at += word;
        } else {
            uint32_t raw = take_raw(&bins[strip->widths[k]], strip->widths[k]), size = (uint32_t)(steps ^ steps >> 31);
            made = size ? lowrank_word(size, strip->exponents[k], raw, mantissa)
                        : ((uint32_t)strip->exponents[k] & 0xFF) << mantissa | raw;
            made |= (uint32_t)(steps < 0) << (mantissa + 8);
        }
        if (word == 2)
            ((float_u16 *)out)[k] = (uint16_t)made;
        else
            ((float_u32 *)out)[k] = made;
    }
    return LOWRANK_OK;
}
