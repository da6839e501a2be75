/* From a basis to factors of whole numbers; `_factors` of lowrank_fit.py is the oracle. */
#include "lowrank_fit.h"

/* The prediction's factors are the model's. By 16 entries of all components: what is written to stays in the cache. */
static void put_prediction(fit *f, size_t rank) {
    size_t terms = lowrank_up(rank, 2), rows = f->matrix.rows, cols = f->matrix.cols;
    const int16_t *from = f->model->factors;
    f->prediction.terms = terms;
    memset(f->prediction.left, 0, lowrank_up(rows, LOWRANK_TILE) * terms * sizeof(int16_t));
    memset(f->prediction.right, 0, lowrank_up(cols, LOWRANK_PANEL) * terms * sizeof(int16_t));
    for (size_t i = 0; i < rows; i += LOWRANK_PANEL)
        for (size_t k = 0; k < rank; k++)
            for (size_t l = i; l < float_least(i + LOWRANK_PANEL, rows); l++)
                f->prediction.left[l * terms + k] = from[k * (rows + cols) + l];
    for (size_t j = 0; j < cols; j += LOWRANK_PANEL)
        for (size_t k = 0; k < rank; k++)
            for (size_t l = j; l < float_least(j + LOWRANK_PANEL, cols); l++)
                f->prediction.right[lowrank_panel_index(terms, k, l)] = from[k * (rows + cols) + rows + l];
}

/* The factors of the components kept: those of `turned` and `basis` in an order, of these sizes squared */
static void put_factors(fit *f, const fit_choice *choice, const size_t *order, const double *squares) {
    size_t rows = f->matrix.rows, cols = f->matrix.cols;
    double by_left[FIT_RANK], by_right[FIT_RANK], loudest = 0;
    double even = __builtin_sqrt(__builtin_sqrt((double)rows / (double)cols));
    for (size_t k = 0; k < choice->rank; k++) {
        size_t i = order[k];
        double root = __builtin_sqrt(__builtin_sqrt(squares[k]));
        by_left[k] = root * even / __builtin_sqrt(row_of(f->gram, i)[i]);
        by_right[k] = root / even / __builtin_sqrt(row_of(f->others, i)[i]);
        /* The largest entry of each vector is LOWRANK_MOST_FACTOR. */
        double most = LOWRANK_MOST_FACTOR * (by_left[k] > by_right[k] ? by_left[k] : by_right[k]);
        loudest = most > loudest ? most : loudest;
    }
    double step = loudest / LOWRANK_MOST_FACTOR;
    step = choice->step > step ? choice->step : step;
    for (size_t k = 0; k < choice->rank; k++) {
        int16_t *to = f->model->factors + k * (rows + cols);
        const int16_t *left = f->turned.entries + order[k] * f->turned.stride;
        const int16_t *right = f->basis.entries + order[k] * f->basis.stride;
        double times_left = by_left[k] / step, times_right = by_right[k] / step;
        for (size_t l = 0; l < rows; l++) to[l] = (int16_t)(int32_t)fit_round(left[l] * times_left);
        for (size_t l = 0; l < cols; l++) to[rows + l] = (int16_t)(int32_t)fit_round(right[l] * times_right);
    }
    put_prediction(f, choice->rank);
    f->unit = step * step;
}

fit_choice lowrank_fit_make_factors(fit *f) {
    size_t count = f->basis.count, order[FIT_VECTORS];
    double largest[FIT_VECTORS], worth[FIT_VECTORS], keys[FIT_VECTORS], squares[FIT_VECTORS], gone[FIT_VECTORS];
    double unit = fit_power(-2 * f->shift), sum = 0;
    f->kernels->dot(&f->basis, &f->z, 0, f->panels, f->wide);
    for (size_t i = 0; i < count; i++)
        largest[i] = f->kernels->round(row_of(f->wide, i), f->matrix.rows, f->turned.entries + i * f->turned.stride);
    lowrank_fit_multiply_vectors(f, &f->turned, f->gram);
    lowrank_fit_multiply_vectors(f, &f->basis, f->others);
    for (size_t i = 0; i < count; i++) {
        double width = row_of(f->others, i)[i];
        worth[i] = width > 0 ? largest[i] / LOWRANK_MOST_FACTOR / width : 0;
        keys[i] = worth[i] * worth[i] * (row_of(f->gram, i)[i] * width);
    }
    lowrank_fit_sort(keys, count, order);
    for (size_t k = 0; k < count; k++) {
        size_t i = order[k];
        double before = 0, factor = largest[i] > 0 ? FIT_FINE / largest[i] : 0;
        for (size_t j = 0; j < k; j++)
            before += worth[i] * worth[order[j]] * (product(f->gram, i, order[j]) * product(f->others, i, order[j]));
        double finely = f->kernels->round_and_multiply(row_of(f->wide, i), f->matrix.rows, factor,
                                                       f->turned.entries + i * f->turned.stride);
        double common = 2 * worth[i] * (largest[i] / FIT_FINE) * finely;
        sum += common - keys[i] - 2 * before;
        gone[k] = sum * unit, squares[k] = keys[i] * unit;
    }
    double energy = (double)f->kernels->sum_squares(&f->z) * unit;
    fit_choice choice = lowrank_fit_choose(squares, gone, float_least(count, f->rank), f->matrix.rows, f->matrix.cols,
                                           energy);
    if (choice.rank) put_factors(f, &choice, order, squares);
    lowrank_fit_put_in_order(f, &f->basis, order);
    memcpy(f->basis.entries, f->sorted.entries, count * f->basis.stride * sizeof(int16_t));
    return choice;
}
