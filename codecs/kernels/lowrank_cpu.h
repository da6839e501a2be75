/* What the files of the C `lowrank` share: the record, errors, and the loops that are compiled twice.
 *
 * lowrank_grid.py, lowrank_stream.py and lowrank_fit.py are the oracle. No global state.
 */
#ifndef NVCKPT_LOWRANK_CPU_H
#define NVCKPT_LOWRANK_CPU_H

#include "float_cpu.h"
#include "lowrank_common.h"

#define EXPORT __attribute__((visibility("default")))

/* Numbers are those of lowrank_native.py's table of sentences. */
enum {
    LOWRANK_OK,
    LOWRANK_TOO_FEW,
    LOWRANK_LEFT_OVER,
    LOWRANK_OTHER_RAW,
    LOWRANK_FACTOR_RANGE,
    LOWRANK_NO_MEMORY
};

/* Columns of a panel, and rows of a tile, of `multiply` */
enum { LOWRANK_PANEL = 16, LOWRANK_TILE = 4 };

/* A matrix of its kept rows, and its model. lowrank_native.py has the same fields. */
typedef struct {
    uint64_t rows, cols, all_rows;
    int32_t rank, word, mantissa, shift;
    int32_t multipliers[8];
    const int16_t *scales;   /* of rows, then of columns */
    const uint16_t *factors; /* of each component the rows' entries, then the columns', with folded signs */
    const uint8_t *bitmap;   /* bit i: row i is kept */
} lowrank_matrix;

/* Values that strips take from, or put to, one after the other: symbols of each context, of `below`, escapes. */
enum { LOWRANK_PARTS = LOWRANK_CONTEXTS + 2, LOWRANK_BELOW = LOWRANK_CONTEXTS, LOWRANK_ESCAPES };
typedef struct {
    const uint8_t *at, *end;
} lowrank_taken;

/* A strip between its two passes. `low` holds the words that are coded; when decoding, steps with their sign:
 * LOWRANK_ODD for an escape, and for 0 and -1 the exponent is that of the word. `raw` is for decoding alone. */
typedef struct {
    int64_t *products;
    int32_t *low, *exponents;
    uint8_t *widths, *raw;
    size_t stride;
} lowrank_strip;

#define LOWRANK_ODD INT32_MIN

/* Places of the raw bits of one width: planes of whole bytes, then the rest of each number, packed */
typedef struct {
    uint8_t *bytes, *bits;
    uint64_t count, next;
} lowrank_bin;

typedef struct {
    /* out[i * stride + j] = sum over t < terms of left[i * terms + t] * right(t, j), entries at most
     * LOWRANK_MOST_FACTOR in size. `right` is in panels; terms is even; columns up to the panel's end are written. */
    void (*multiply)(const int16_t *left, size_t rows, const int16_t *right, size_t cols, size_t terms, int64_t *out,
                     size_t stride);
    /* Decoding: symbols to steps and widths, whose numbers are added to `counts`; then words. LOWRANK_OK or an error. */
    int (*take_symbols)(const lowrank_matrix *matrix, const lowrank_strip *strip, size_t row, size_t rows,
                        lowrank_taken *taken, uint64_t *counts);
    int (*put_words)(const lowrank_matrix *matrix, const lowrank_strip *strip, size_t count, lowrank_bin *bins,
                     lowrank_taken *escapes, uint8_t *out);
    /* Encoding: symbols, escapes and widths, where ends[i] is the place for the next value; then raw bits, whose memory
     * is cleared. */
    void (*put_symbols)(const lowrank_matrix *matrix, const lowrank_strip *strip, size_t row, size_t rows,
                        const uint8_t *words, uint8_t **ends, uint64_t *counts);
    void (*put_raw)(const lowrank_strip *strip, size_t count, lowrank_bin *bins);
} lowrank_kernels;

extern const lowrank_kernels lowrank_kernels_plain;
#if FLOAT_HAVE_AVX2
extern const lowrank_kernels lowrank_kernels_avx2;
#endif
const lowrank_kernels *lowrank_best_kernels(int simd);

FLOAT_INLINE size_t lowrank_up(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }
/* Where panels have the entry of column j and term t */
FLOAT_INLINE size_t lowrank_panel_index(size_t terms, size_t t, size_t j) {
    return j / LOWRANK_PANEL * LOWRANK_PANEL * terms + t / 2 * 2 * LOWRANK_PANEL + j % LOWRANK_PANEL * 2 + t % 2;
}

/* The factors as `multiply` takes them; free() each. */
typedef struct {
    size_t terms;
    int16_t *left, *right;
} lowrank_factors;

int lowrank_unfold(const lowrank_matrix *matrix, lowrank_factors *factors);

/* Rows of a strip, but for the last one */
FLOAT_INLINE size_t lowrank_strip_rows(const lowrank_matrix *matrix) {
    return matrix->cols < LOWRANK_STRIP ? LOWRANK_STRIP / matrix->cols : 1;
}
/* Memory for strips of `rows` rows; free it whatever comes back. */
int lowrank_strip_memory(const lowrank_matrix *matrix, size_t rows, int decoding, lowrank_strip *strip);
void lowrank_free(lowrank_strip *strip, lowrank_factors *factors);
/* Where the raw bits of each width lie from `raw` on; returns the bytes of all. */
uint64_t lowrank_place_bins(const uint64_t counts[LOWRANK_WIDTHS], uint8_t *raw, lowrank_bin bins[LOWRANK_WIDTHS]);

#endif
