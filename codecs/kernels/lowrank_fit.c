/* Fitting what `lowrank` predicts with (FORMAT.md 19.4): passes of scale, whole numbers, basis and factors. */
#include "lowrank_fit.h"

int nvckpt_float_has_avx2(void);

static const double octave[8] = FIT_OCTAVE, inverse_octave[8] = FIT_INVERSE;

static int make_vectors(fit_vectors *vectors, size_t count, size_t length) {
    vectors->count = count, vectors->length = length;
    /* An odd number of cache lines apart, so that entries one below the other are not in the same sets. */
    vectors->stride = (lowrank_up(length, FIT_UNIT) / FIT_UNIT | 1) * FIT_UNIT;
    vectors->entries = calloc(lowrank_up(count, LOWRANK_TILE) * vectors->stride, sizeof(int16_t));
    return vectors->entries ? LOWRANK_OK : LOWRANK_NO_MEMORY;
}

static int make_doubles(fit_doubles *doubles, size_t count, size_t length) {
    doubles->stride = lowrank_up(length, LOWRANK_PANEL);
    doubles->entries = malloc(lowrank_up(count, LOWRANK_TILE) * doubles->stride * sizeof(double));
    return doubles->entries ? LOWRANK_OK : LOWRANK_NO_MEMORY;
}

static int make_memory(fit *f, size_t count) {
    size_t rows = f->matrix.rows, cols = f->matrix.cols, longest = rows > cols ? rows : cols;
    size_t panels = lowrank_up(count, LOWRANK_PANEL) * (longest + 2 * FIT_UNIT);
    f->matrix.row_scale = malloc(rows * 4), f->matrix.col_scale = malloc(cols * 4);
    f->matrix.by_row = malloc(rows * 8), f->matrix.by_col = malloc(cols * 8);
    f->row_sums = malloc(rows * 8), f->col_sums = malloc(cols * 8);
    if (!f->matrix.row_scale || !f->matrix.col_scale || !f->matrix.by_row || !f->matrix.by_col || !f->row_sums ||
        !f->col_sums)
        return LOWRANK_NO_MEMORY;
    if (!f->rank) return LOWRANK_OK;
    f->panels = malloc(panels * sizeof(int16_t));
    f->prediction.left = calloc(lowrank_up(rows, LOWRANK_TILE) * FIT_RANK, sizeof(int16_t));
    f->prediction.right = calloc(lowrank_up(cols, LOWRANK_PANEL) * FIT_RANK, sizeof(int16_t));
    if (!f->panels || !f->prediction.left || !f->prediction.right) return LOWRANK_NO_MEMORY;
    return make_vectors(&f->z, rows, cols) || make_vectors(&f->basis, count, cols) ||
           make_vectors(&f->turned, count, rows) || make_vectors(&f->sorted, count, longest) ||
           make_vectors(&f->fine, count, count) || make_vectors(&f->coarse, count, count) ||
           make_doubles(&f->wide, count, longest) || make_doubles(&f->gram, count, count) ||
           make_doubles(&f->others, count, count) || make_doubles(&f->inverse, count, count);
}

static void free_memory(fit *f) {
    void *all[] = {f->matrix.row_scale, f->matrix.col_scale, f->matrix.by_row,   f->matrix.by_col,
                   f->row_sums,         f->col_sums,         f->panels,          f->prediction.left,
                   f->prediction.right, f->z.entries,        f->basis.entries,   f->turned.entries,
                   f->sorted.entries,   f->fine.entries,     f->coarse.entries,  f->wide.entries,
                   f->gram.entries,     f->others.entries,   f->inverse.entries};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Vectors of arbitrary entries, the same ones always */
static void fill_basis(fit_vectors *basis) {
    for (uint32_t i = 0; i < basis->count; i++)
        for (uint32_t j = 0; j < basis->length; j++)
            basis->entries[i * basis->stride + j] = (int16_t)fit_arbitrary(i, j);
}

static int64_t floor_divide(int64_t number, int64_t by) { return (number - (number % by + by) % by) / by; }

static int32_t mean(int64_t sum, int64_t count, int32_t most) {
    int64_t found = floor_divide(sum + 16 * count, 32 * count);
    return (int32_t)(found < -most ? -most : found > most ? most : found);
}

/* by = numbers[scale & 7] unit 2^(scale >> 3), or of the negative power */
static void set_factors(const int32_t *scale, size_t count, const double *numbers, double unit, int sign, double *by) {
    for (size_t i = 0; i < count; i++) by[i] = unit * numbers[scale[i] & 7] * fit_power(sign * (scale[i] >> 3));
}

/* Fits the scale to the residual of the prediction, and `matrix.by_...` to dividing by it. */
static void fit_scale(fit *f) {
    fit_matrix *m = &f->matrix;
    const int64_t bias = ((int64_t)1023 << FIT_LOG_BITS) - FIT_LOG_MEAN;
    if (f->prediction.terms) {
        set_factors(m->row_scale, m->rows, octave, f->unit, 1, m->by_row);
        set_factors(m->col_scale, m->cols, octave, 1, 1, m->by_col);
    } else {
        for (size_t i = 0; i < m->rows; i++) m->by_row[i] = 1;
        for (size_t j = 0; j < m->cols; j++) m->by_col[j] = 1;
    }
    memset(f->row_sums, 0, m->rows * 8), memset(f->col_sums, 0, m->cols * 8);
    f->kernels->measure(m, &f->prediction, f->row_sums, f->col_sums);
    int64_t sum = 0, rows = (int64_t)m->rows, cols = (int64_t)m->cols;
    for (size_t i = 0; i < m->rows; i++) {
        m->row_scale[i] = mean((int64_t)f->row_sums[i] - cols * bias, cols, FIT_MOST_ROW);
        sum += m->row_scale[i];
    }
    for (size_t j = 0; j < m->cols; j++)
        m->col_scale[j] = mean((int64_t)f->col_sums[j] - rows * bias - 32 * sum, rows, FIT_MOST_COL);
    set_factors(m->row_scale, m->rows, inverse_octave, 1, -1, m->by_row);
    set_factors(m->col_scale, m->cols, inverse_octave, 1, -1, m->by_col);
}

static void make_whole(fit *f) {
    uint64_t counts[FIT_EXPONENTS] = {0}, over = 0, n = f->matrix.rows * f->matrix.cols;
    int least = 1023 + 11 - FIT_FINEST;
    f->shift = FIT_FINEST;
    f->kernels->make_whole(&f->matrix, fit_power(f->shift), counts, &f->z);
    for (int e = least; e < FIT_EXPONENTS; e++) over += counts[e];
    for (; over * FIT_CUT_ONE_IN > n; f->shift--) over -= counts[least++];
    if (f->shift != FIT_FINEST) f->kernels->make_whole(&f->matrix, fit_power(f->shift), NULL, &f->z);
}

static fit_choice run_passes(fit *f, int passes) {
    fit_choice choice = {0, 0, 0};
    if (!f->rank) return choice;
    fill_basis(&f->basis);
    for (int pass = 0; pass < passes; pass++) {
        fit_scale(f);
        make_whole(f);
        for (int turns = pass == passes - 1 ? 2 : 1; turns; turns--) {
            f->kernels->dot(&f->basis, &f->z, 0, f->panels, f->wide);
            lowrank_fit_make_orthogonal(f, &f->turned);
            f->kernels->combine(&f->turned, NULL, &f->z, f->wide);
            lowrank_fit_make_orthogonal(f, &f->basis);
        }
        choice = lowrank_fit_make_factors(f);
        if (!choice.rank) break;
    }
    return choice;
}

static void put_model(fit *f, fit_choice choice) {
    lowrank_model *model = f->model;
    size_t rows = f->matrix.rows;
    if (!choice.rank || f->unit >= FIT_MOST_UNIT) {
        choice.rank = 0, choice.gain = 0;
        f->prediction.terms = 0, f->unit = 0;
        fit_scale(f);
    }
    model->rank = (int32_t)choice.rank, model->gain = choice.gain;
    for (size_t i = 0; i < rows; i++) model->scales[i] = f->matrix.row_scale[i] + 8 * 127;
    memcpy(model->scales + rows, f->matrix.col_scale, f->matrix.cols * sizeof(int32_t));
    for (int p = 0; p < 8; p++)
        model->multipliers[p] = (int64_t)fit_round(f->unit * octave[p] * (1 << FIT_SHIFT));
}

/* `words` are rows x cols, at least one. `model` has room for a scale of each row and column, and for as many components
 * as the matrix may have, at most 128. */
EXPORT int nvckpt_lowrank_fit(const uint8_t *words, uint64_t rows, uint64_t cols, int word, int passes,
                              lowrank_model *model, int simd) {
    fit f;
    memset(&f, 0, sizeof f);
    f.kernels = &lowrank_fit_plain;
#if FLOAT_HAVE_AVX2
    if (simd && nvckpt_float_has_avx2()) f.kernels = &lowrank_fit_avx2;
#endif
    (void)simd;
    f.matrix.words = words, f.matrix.rows = rows, f.matrix.cols = cols, f.matrix.word = word;
    f.model = model;
    if (rows <= FIT_MOST_SIDE && cols <= FIT_MOST_SIDE && rows * cols <= FIT_MOST_NUMBERS)
        f.rank = float_least(FIT_RANK, rows * cols / (2 * (rows + cols)));
    int error = make_memory(&f, float_least(f.rank + FIT_SPARE, float_least(rows, cols)));
    if (!error) put_model(&f, run_passes(&f, passes));
    free_memory(&f);
    return error;
}
