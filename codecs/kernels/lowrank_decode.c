/* Decoding a record of `lowrank` (FORMAT.md 19.2 and 19.3), strip by strip. */
#include "lowrank_cpu.h"

static int decode_strip(const lowrank_matrix *matrix, const lowrank_factors *factors, const lowrank_kernels *kernels,
                        const lowrank_strip *strip, size_t row, size_t rows, lowrank_taken taken[LOWRANK_PARTS],
                        const uint8_t *raw, uint64_t raw_size, uint8_t *out) {
    uint64_t counts[LOWRANK_WIDTHS] = {0};
    lowrank_bin bins[LOWRANK_WIDTHS];
    kernels->multiply(factors->left + row * factors->terms, rows, factors->right, matrix->cols, factors->terms,
                      strip->products, strip->stride);
    int error = kernels->take_symbols(matrix, strip, row, rows, taken, counts);
    if (error) return error;
    if (lowrank_place_bins(counts, strip->raw, bins) != raw_size) return LOWRANK_OTHER_RAW;
    /* A copy, since the last bits are read two bytes at a time. */
    memcpy(strip->raw, raw, raw_size);
    return kernels->put_words(matrix, strip, rows * matrix->cols, bins, &taken[LOWRANK_ESCAPES], out);
}

/* Kept rows were decoded to the front of `out`: each to its place, from the last one on, and zeros between them. */
static void spread_rows(const lowrank_matrix *matrix, uint8_t *out) {
    size_t size = (size_t)matrix->word * matrix->cols, from = matrix->rows;
    for (size_t to = matrix->all_rows; to-- > 0;) {
        int kept = matrix->bitmap[to >> 3] >> (to & 7) & 1;
        if (kept && --from != to) memcpy(out + to * size, out + from * size, size);
        if (!kept) memset(out + to * size, 0, size);
    }
}

static int decode_strips(const lowrank_matrix *matrix, const lowrank_kernels *kernels, lowrank_factors *factors,
                         lowrank_strip *strip, lowrank_taken taken[LOWRANK_PARTS], const uint8_t *raw,
                         uint64_t raw_size, uint8_t *out) {
    size_t step = lowrank_strip_rows(matrix), strips = (matrix->rows + step - 1) / step;
    int error = lowrank_unfold(matrix, factors);
    if (!error) error = lowrank_strip_memory(matrix, float_least(step, matrix->rows), 1, strip);
    if (!error && raw_size < 4 * strips) error = LOWRANK_OTHER_RAW;
    uint64_t position = 4 * strips;
    for (size_t s = 0; s < strips && !error; s++) {
        size_t row = s * step, rows = float_least(step, matrix->rows - row);
        uint64_t size = ((const float_u32 *)raw)[s];
        if (size > raw_size - position) return LOWRANK_OTHER_RAW;
        error = decode_strip(matrix, factors, kernels, strip, row, rows, taken, raw + position, size,
                             out + row * matrix->cols * (size_t)matrix->word);
        position += size;
    }
    return error;
}

/* `values` are the symbols of the contexts, those of `below`, and the escapes, `sizes` their bytes; `raw` is the
 * section. At least one row is kept. LOWRANK_OK, or an error; `out` may then hold anything. */
EXPORT int nvckpt_lowrank_decode(const lowrank_matrix *matrix, const uint8_t *const *values, const uint64_t *sizes,
                                 const uint8_t *raw, uint64_t raw_size, uint8_t *out, int simd) {
    lowrank_taken taken[LOWRANK_PARTS];
    lowrank_factors factors = {0, NULL, NULL};
    lowrank_strip strip = {NULL, NULL, NULL, NULL, NULL, 0};
    for (int i = 0; i < LOWRANK_PARTS; i++) {
        lowrank_taken all = {values[i], values[i] + sizes[i]};
        taken[i] = all;
    }
    int error = decode_strips(matrix, lowrank_best_kernels(simd), &factors, &strip, taken, raw, raw_size, out);
    for (int i = 0; i < LOWRANK_PARTS && !error; i++)
        if (taken[i].at != taken[i].end) error = LOWRANK_LEFT_OVER;
    if (!error) spread_rows(matrix, out);
    lowrank_free(&strip, &factors);
    return error;
}
