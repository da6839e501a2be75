/* Coding the kept rows of a matrix by its model (FORMAT.md 19.2 and 19.3), strip by strip. */
#include "lowrank_cpu.h"

/* Returns the bytes of the strip's raw bits; one byte more is cleared. */
static uint64_t encode_strip(const lowrank_matrix *matrix, const lowrank_factors *factors,
                             const lowrank_kernels *kernels, const lowrank_strip *strip, size_t row, size_t rows,
                             const uint8_t *words, uint8_t **ends, uint8_t *raw) {
    uint64_t counts[LOWRANK_WIDTHS] = {0};
    lowrank_bin bins[LOWRANK_WIDTHS];
    kernels->multiply(factors->left + row * factors->terms, rows, factors->right, matrix->cols, factors->terms,
                      strip->products, strip->stride);
    kernels->put_symbols(matrix, strip, row, rows, words, ends, counts);
    uint64_t size = lowrank_place_bins(counts, raw, bins);
    memset(raw, 0, size + 1);
    kernels->put_raw(strip, rows * matrix->cols, bins);
    return size;
}

/* `words` are the kept rows, at least one. outs[i] has room for what each number may need: a byte for the contexts and
 * `below`, a word for the escapes; sizes[i] becomes the bytes used. `raw` gets the section and has room for 36 bytes a
 * strip and 3 a number; raw_size becomes its bytes. */
EXPORT int nvckpt_lowrank_encode(const lowrank_matrix *matrix, const uint8_t *words, uint8_t *const *outs,
                                 uint64_t *sizes, uint8_t *raw, uint64_t *raw_size, int simd) {
    const lowrank_kernels *kernels = lowrank_best_kernels(simd);
    size_t step = lowrank_strip_rows(matrix), strips = (matrix->rows + step - 1) / step;
    lowrank_factors factors = {0, NULL, NULL};
    lowrank_strip strip = {NULL, NULL, NULL, NULL, NULL, 0};
    uint8_t *ends[LOWRANK_PARTS];
    memcpy(ends, outs, sizeof ends);
    int error = lowrank_strip_memory(matrix, float_least(step, matrix->rows), 0, &strip);
    if (!error) error = lowrank_unfold(matrix, &factors);
    uint64_t position = 4 * strips;
    for (size_t s = 0; s < strips && !error; s++) {
        size_t row = s * step, rows = float_least(step, matrix->rows - row);
        uint64_t size = encode_strip(matrix, &factors, kernels, &strip, row, rows,
                                     words + row * matrix->cols * (size_t)matrix->word, ends, raw + position);
        ((float_u32 *)raw)[s] = (uint32_t)size;
        position += size;
    }
    for (int i = 0; i < LOWRANK_PARTS; i++) sizes[i] = (uint64_t)(ends[i] - outs[i]);
    *raw_size = position;
    lowrank_free(&strip, &factors);
    return error;
}
