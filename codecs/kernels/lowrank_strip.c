/* What coding and decoding a record of `lowrank` share: factors, memory of a strip, places of raw bits. */
#include <stdlib.h>

#include "lowrank_cpu.h"

int nvckpt_float_has_avx2(void);

const lowrank_kernels *lowrank_best_kernels(int simd) {
#if FLOAT_HAVE_AVX2
    if (simd && nvckpt_float_has_avx2()) return &lowrank_kernels_avx2;
#endif
    (void)simd;
    return &lowrank_kernels_plain;
}

FLOAT_INLINE int16_t unfolded(uint16_t folded) { return (int16_t)(folded >> 1 ^ -(folded & 1)); }

int lowrank_unfold(const lowrank_matrix *matrix, lowrank_factors *factors) {
    size_t rows = matrix->rows, cols = matrix->cols, rank = (size_t)matrix->rank, terms = lowrank_up(rank, 2);
    factors->terms = terms;
    factors->left = calloc(rows * terms + 1, 2);
    factors->right = calloc(lowrank_up(cols, LOWRANK_PANEL) * terms + 1, 2);
    if (!factors->left || !factors->right) return LOWRANK_NO_MEMORY;
    const uint16_t *from = matrix->factors;
    uint32_t largest = 0;
    for (size_t t = 0; t < rank; t++, from += rows + cols) {
        for (size_t i = 0; i < rows + cols; i++) largest = from[i] > largest ? from[i] : largest;
        if (largest > 2 * LOWRANK_MOST_FACTOR) return LOWRANK_FACTOR_RANGE;
        for (size_t i = 0; i < rows; i++) factors->left[i * terms + t] = unfolded(from[i]);
        for (size_t j = 0; j < cols; j++) factors->right[lowrank_panel_index(terms, t, j)] = unfolded(from[rows + j]);
    }
    return LOWRANK_OK;
}

int lowrank_strip_memory(const lowrank_matrix *matrix, size_t rows, int decoding, lowrank_strip *strip) {
    size_t numbers = rows * matrix->cols;
    strip->stride = lowrank_up(matrix->cols, LOWRANK_PANEL);
    strip->products = malloc(8 * rows * strip->stride);
    strip->low = malloc(4 * numbers);
    strip->widths = malloc(numbers);
    if (!strip->products || !strip->low || !strip->widths) return LOWRANK_NO_MEMORY;
    if (!decoding) return LOWRANK_OK;
    strip->exponents = malloc(4 * numbers);
    strip->raw = malloc(4 * numbers + 64);
    return strip->exponents && strip->raw ? LOWRANK_OK : LOWRANK_NO_MEMORY;
}

void lowrank_free(lowrank_strip *strip, lowrank_factors *factors) {
    free(strip->products), free(strip->low), free(strip->exponents), free(strip->widths), free(strip->raw);
    free(factors->left), free(factors->right);
}

uint64_t lowrank_place_bins(const uint64_t counts[LOWRANK_WIDTHS], uint8_t *raw, lowrank_bin bins[LOWRANK_WIDTHS]) {
    uint64_t size = 0;
    for (uint32_t width = 0; width < LOWRANK_WIDTHS; width++) {
        lowrank_bin bin = {raw + size, raw + size + counts[width] * (width >> 3), counts[width], 0};
        bins[width] = bin;
        if (width) size += lowrank_packed_size(counts[width], width);
    }
    return size;
}
