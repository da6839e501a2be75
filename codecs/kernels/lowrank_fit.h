/* What the files of `lowrank`'s fit share (FORMAT.md 19.4). lowrank_fit.py, lowrank_basis.py and lowrank_choice.py are
 * the oracle: whole numbers, whose sums of products are exact in any order, and single IEEE operations in its order.
 */
#ifndef NVCKPT_LOWRANK_FIT_H
#define NVCKPT_LOWRANK_FIT_H

#include <stdlib.h>

#include "lowrank_cpu.h"
#include "lowrank_fit_common.h"

#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "The fit needs doubles that are rounded to 53 bits at each operation; nvckpt falls back to NumPy."
#endif

enum {
    /* Entries that vectors are lengthened to a multiple of */
    FIT_UNIT = 32,
    FIT_EXPONENTS = 2048
};

/* Whole numbers, at most LOWRANK_MOST_FACTOR in size: vectors one after the other, zeros up to `stride`, and vectors of
 * zeros up to a multiple of LOWRANK_TILE. */
typedef struct {
    size_t count, length, stride;
    int16_t *entries;
} fit_vectors;

/* Doubles, as many vectors as fit_vectors has; `stride` is a multiple of LOWRANK_PANEL. */
typedef struct {
    size_t stride;
    double *entries;
} fit_doubles;

/* A matrix of words, and its scale: eighths of an octave, and the factors that these mean in what is worked on. */
typedef struct {
    const uint8_t *words;
    size_t rows, cols;
    int word;
    int32_t *row_scale, *col_scale;
    double *by_row, *by_col;
} fit_matrix;

/* Factors: of each row its components' entries, and panels of the columns' entries. No terms: no prediction. */
typedef struct {
    size_t terms;
    int16_t *left, *right;
} fit_prediction;

typedef struct {
    /* out[i][j] = the product of vectors i of `a` and j of `b`; if they are the same, only for j >= i. `panels` has room
     * for the vectors of `a`. */
    void (*dot)(const fit_vectors *a, const fit_vectors *b, int same, int16_t *panels, fit_doubles out);
    /* out[i][j] = sum over k of left[i][k] z[k][j]. With `low`, for at most LOWRANK_TERMS vectors, the left entries are
     * 2^11 left[i][k] + low[i][k], and those for k > i are 0. */
    void (*combine)(const fit_vectors *left, const fit_vectors *low, const fit_vectors *z, fit_doubles out);
    /* Brings the largest entry to LOWRANK_MOST_FACTOR and rounds; returns what it was. */
    double (*round)(const double *from, size_t count, int16_t *to);
    /* The sum of from[i] factor, rounded, times other[i] */
    double (*round_and_multiply)(const double *from, size_t count, double factor, const int16_t *other);
    /* Adds 256 times the logarithms of the residual, biased by 1023, to the sums of rows and columns. */
    void (*measure)(const fit_matrix *matrix, const fit_prediction *prediction, uint64_t *rows, uint64_t *cols);
    /* z = the values over their scale, times `factor`; exponents of those of 2^8 and more are counted if asked for. */
    void (*make_whole)(const fit_matrix *matrix, double factor, uint64_t *counts, fit_vectors *z);
    uint64_t (*sum_squares)(const fit_vectors *z);
    /* The lower half of the inverse of a matrix's Cholesky root, of which the lower half is given and lost;
     * rows of zeros where a vector depends on others */
    void (*invert_root)(fit_doubles matrix, fit_doubles inverse, size_t count);
} fit_kernels;

extern const fit_kernels lowrank_fit_plain;
#if FLOAT_HAVE_AVX2
extern const fit_kernels lowrank_fit_avx2;
#endif

/* How many components are kept: `gain` in 2^-17 bit, 0 where there is nothing to be gained */
typedef struct {
    size_t rank;
    double step;
    int64_t gain;
} fit_choice;

fit_choice lowrank_fit_choose(const double *squares, const double *gone, size_t count, size_t rows, size_t cols,
                              double energy);

/* Where the model goes: scales of rows, then of columns; of each component the rows' entries, then the columns'.
 * lowrank_native.py has the same fields. */
typedef struct {
    int32_t *scales;
    int16_t *factors;
    int64_t multipliers[8], gain;
    int32_t rank;
} lowrank_model;

/* Everything that a fit works on; what is measured of the vectors of a basis is in their order. */
typedef struct {
    const fit_kernels *kernels;
    fit_matrix matrix;
    fit_prediction prediction;
    fit_vectors z, basis, turned, sorted, fine, coarse;
    fit_doubles wide, gram, others, inverse;
    int16_t *panels;
    uint64_t *row_sums, *col_sums;
    lowrank_model *model;
    size_t rank;
    int shift;
    double unit;
} fit;

/* An order of keys, the largest first; equals stay as they are. */
void lowrank_fit_sort(const double *keys, size_t count, size_t *order);
/* `out` gets the lower half of the products of vectors with each other. */
void lowrank_fit_multiply_vectors(fit *f, const fit_vectors *vectors, fit_doubles out);
/* `sorted` gets vectors in an order. */
void lowrank_fit_put_in_order(fit *f, const fit_vectors *vectors, const size_t *order);
/* The vectors in `wide` become a basis: the longest first, each freed of those before it. */
void lowrank_fit_make_orthogonal(fit *f, fit_vectors *out);
/* Chooses components and puts their factors; the basis is put in order for the next pass. */
fit_choice lowrank_fit_make_factors(fit *f);

FLOAT_INLINE double fit_of_bits(uint64_t bits) {
    double number;
    memcpy(&number, &bits, 8);
    return number;
}
FLOAT_INLINE uint64_t fit_bits(double number) {
    uint64_t bits;
    memcpy(&bits, &number, 8);
    return bits;
}
/* 2^exponent, of normal numbers */
FLOAT_INLINE double fit_power(int exponent) { return fit_of_bits((uint64_t)(exponent + 1023) << 52); }
/* Numbers below 2^51 in size, ties to even */
FLOAT_INLINE double fit_round(double number) { return (number + 0x1.8p52) - 0x1.8p52; }
/* The absolute value */
FLOAT_INLINE double fit_size(double number) { return fit_of_bits(fit_bits(number) & ~(1ull << 63)); }

FLOAT_INLINE double *row_of(fit_doubles doubles, size_t i) { return doubles.entries + i * doubles.stride; }
FLOAT_INLINE double product(fit_doubles lower, size_t i, size_t j) {
    return i > j ? row_of(lower, i)[j] : row_of(lower, j)[i];
}

#endif
