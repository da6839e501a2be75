/* Loops over words of one size, included by float_loops.h with WORD (the unaligned type), VALUE (its value), BITS and
 * NAME(x). Written so that gcc -O3 and clang vectorise them: no branches inside, arithmetic in the word's own width. */

#define QUANTUM_SHIFT(layout) ((layout) == LAYOUT_ROTATED ? BITS - 9 : BITS - 12)
#define QUANTUM_MASK(layout) ((VALUE)((layout) == LAYOUT_ROTATED ? (VALUE)255 << (BITS - 9) : (VALUE)2047 << (BITS - 12)))

FLOAT_INLINE int32_t NAME(quantum)(VALUE word, int layout) {
    return (int32_t)((word & QUANTUM_MASK(layout)) >> QUANTUM_SHIFT(layout));
}

FLOAT_INLINE void NAME(sum_of)(const WORD *words, size_t count, int layout, int64_t sums[2]) {
    int32_t total = 0, present = 0;
    for (size_t i = 0; i < count; i++) {
        VALUE word = words[i];
        total += NAME(quantum)(word, layout); /* of the word 0 it is 0 */
        present += word != 0;
    }
    sums[0] += total;
    sums[1] += present;
}

FLOAT_INLINE void NAME(columns_of)(const WORD *words, size_t count, int layout, int32_t level,
                                   int32_t *restrict totals, int32_t *restrict counts) {
    for (size_t i = 0; i < count; i++) {
        VALUE word = words[i];
        int32_t present = -(int32_t)(word != 0);
        totals[i] += (NAME(quantum)(word, layout) - level) & present;
        counts[i] -= present;
    }
}

FLOAT_INLINE void NAME(cost_of)(const WORD *words, size_t count, int layout, int32_t flat, int32_t level,
                                const uint8_t *restrict columns, int64_t sums[2]) {
    int32_t flat_sum = 0, fitted_sum = 0;
    for (size_t i = 0; i < count; i++) {
        VALUE word = words[i];
        int32_t present = -(int32_t)(word != 0), q = NAME(quantum)(word, layout);
        int32_t from_flat = q - flat, from_fit = q - level + 128 - columns[i];
        flat_sum += (from_flat < 0 ? -from_flat : from_flat) & present;
        fitted_sum += (from_fit < 0 ? -from_fit : from_fit) & present;
    }
    sums[0] += flat_sum;
    sums[1] += fitted_sum;
}

static void NAME(survey)(const WORD *words, const uint16_t *restrict prediction, size_t count, int64_t sums[2]) {
    int32_t zeros = 0, exceptions = 0;
    for (size_t i = 0; i < count; i++) {
        VALUE word = words[i];
        uint32_t moved = ((uint32_t)NAME(quantum)(word, LAYOUT_LOG) - prediction[i]) & 2047;
        zeros += word == 0;
        exceptions += (word != 0) & ((moved == 0) | (moved > 255));
    }
    sums[0] += zeros;
    sums[1] += exceptions;
}

static void NAME(scan)(const WORD *words, size_t count, int zeros_removed, uint64_t found[3]) {
    VALUE any = 0, complement = 0, kept = zeros_removed ? 0 : (VALUE)~(VALUE)0;
    uint32_t zeros = 0;
    for (size_t i = 0; i < count; i++) {
        VALUE word = words[i];
        any |= word;
        complement |= (VALUE)(word == 0 ? kept : (VALUE)~word);
        zeros += word == 0;
    }
    found[0] |= any;
    found[1] |= complement;
    found[2] += zeros;
}

/* float_transform of float_common.h in the word's own width; 16.3 */
FLOAT_INLINE VALUE NAME(transformed)(VALUE word, uint16_t prediction, int layout) {
    VALUE mask = QUANTUM_MASK(layout), shifted = (VALUE)((VALUE)prediction << QUANTUM_SHIFT(layout));
    VALUE moved = (VALUE)((word & (VALUE)~mask) | ((VALUE)(word - shifted) & mask));
    if (layout == LAYOUT_ROTATED) return moved;
    VALUE of_zero = (VALUE)((VALUE)(0 - shifted) & mask);
    moved = moved == 0 ? of_zero : moved;
    return word == 0 ? 0 : moved;
}

FLOAT_INLINE VALUE NAME(untransformed)(VALUE moved, uint16_t prediction, int layout) {
    VALUE mask = QUANTUM_MASK(layout), shifted = (VALUE)((VALUE)prediction << QUANTUM_SHIFT(layout));
    VALUE word = (VALUE)((moved & (VALUE)~mask) | ((VALUE)(moved + shifted) & mask));
    if (layout == LAYOUT_ROTATED) return word;
    VALUE of_zero = (VALUE)((VALUE)(0 - shifted) & mask), from_zero = (VALUE)(shifted & mask);
    word = moved == of_zero ? from_zero : word;
    return moved == 0 ? 0 : word;
}

FLOAT_INLINE void NAME(transform_as)(const WORD *words, const uint16_t *restrict prediction, size_t count, int layout,
                                     uint16_t *restrict tops, uint8_t *restrict low) {
    for (size_t i = 0; i < count; i++) {
        VALUE moved = NAME(transformed)(words[i], prediction[i], layout);
        tops[i] = (uint16_t)(moved >> (BITS - 16));
#if BITS == 32
        ((float_u16 *)low)[i] = (uint16_t)moved;
#elif BITS == 64
        memcpy(low + 6 * i, &moved, 6);
#endif
    }
    (void)low;
}

FLOAT_INLINE void NAME(untransform_as)(const WORD *coded, const uint16_t *restrict prediction, size_t count,
                                       int layout, WORD *restrict words) {
    for (size_t i = 0; i < count; i++) words[i] = NAME(untransformed)(coded[i], prediction[i], layout);
}

/* Tops and low bytes of transformed words to words: untransformed in 16 bits, as all quanta lie in the tops. What 16.3
 * exchanges are the two words that the plain inverse makes 0 and `of_zero`, where the low bytes are 0. */
FLOAT_INLINE void NAME(restore_as)(const uint16_t *restrict tops, const uint8_t *restrict low,
                                   const uint16_t *restrict prediction, size_t count, int layout,
                                   WORD *restrict words) {
    const uint16_t mask = layout == LAYOUT_ROTATED ? 0x7F80 : 0x7FF0;
    for (size_t i = 0; i < count; i++) {
        uint16_t shifted = (uint16_t)(prediction[i] << (layout == LAYOUT_ROTATED ? 7 : 4)), top = tops[i];
        top = (uint16_t)((top & (uint16_t)~mask) | ((uint16_t)(top + shifted) & mask));
#if BITS == 16
        const uint16_t rest_is_zero = 0xFFFF;
#elif BITS == 32
        uint16_t rest = ((const float_u16 *)low)[i], rest_is_zero = rest == 0 ? 0xFFFF : 0;
#else
        VALUE rest = 0;
        memcpy(&rest, low + 6 * i, 6);
        uint16_t rest_is_zero = rest == 0 ? 0xFFFF : 0;
#endif
        if (layout == LAYOUT_LOG) {
            uint16_t of_zero = shifted & mask, is_zero = top == 0 ? 0xFFFF : 0, is_other = top == of_zero ? 0xFFFF : 0;
            top ^= (uint16_t)((is_zero | is_other) & rest_is_zero & of_zero);
        }
#if BITS == 16
        words[i] = top;
#else
        words[i] = (VALUE)top << (BITS - 16) | rest;
#endif
    }
    (void)low;
}

static void NAME(widen)(const uint16_t *restrict tops, const uint8_t *restrict low, size_t count,
                        WORD *restrict coded) {
    for (size_t i = 0; i < count; i++) {
#if BITS == 16
        coded[i] = tops[i];
#elif BITS == 32
        coded[i] = (VALUE)tops[i] << 16 | ((const float_u16 *)low)[i];
#else
        VALUE rest = 0;
        memcpy(&rest, low + 6 * i, 6);
        coded[i] = (VALUE)tops[i] << 48 | rest;
#endif
    }
    (void)low;
}

#undef QUANTUM_SHIFT
#undef QUANTUM_MASK
#undef WORD
#undef VALUE
#undef BITS
#undef NAME
