/* Bases of whole numbers; lowrank_basis.py is the oracle. */
#include "lowrank_fit.h"

void lowrank_fit_sort(const double *keys, size_t count, size_t *order) {
    for (size_t i = 0; i < count; i++) {
        size_t j = i;
        for (; j && keys[order[j - 1]] < keys[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
}

void lowrank_fit_multiply_vectors(fit *f, const fit_vectors *vectors, fit_doubles out) {
    f->kernels->dot(vectors, vectors, 1, f->panels, out);
    for (size_t i = 0; i < vectors->count; i++)
        for (size_t j = 0; j < i; j++) row_of(out, i)[j] = row_of(out, j)[i];
}

void lowrank_fit_put_in_order(fit *f, const fit_vectors *vectors, const size_t *order) {
    int16_t *to = f->sorted.entries;
    f->sorted.length = vectors->length, f->sorted.stride = vectors->stride;
    for (size_t i = 0; i < vectors->count; i++, to += vectors->stride)
        memcpy(to, vectors->entries + order[i] * vectors->stride, vectors->stride * sizeof(int16_t));
    memset(to, 0, (lowrank_up(vectors->count, LOWRANK_TILE) - vectors->count) * vectors->stride * sizeof(int16_t));
}

/* Splits the inverse, with the largest entry of each row brought to FIT_FINE, into 11 bits and 11 bits. */
static void split_inverse(fit *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double largest = 0, *entries = row_of(f->inverse, i);
        for (size_t j = 0; j <= i; j++) largest = fit_size(entries[j]) > largest ? fit_size(entries[j]) : largest;
        double factor = largest > 0 ? FIT_FINE / largest : 0;
        for (size_t j = 0; j <= i; j++) {
            int32_t entry = (int32_t)fit_round(entries[j] * factor), high = (entry + 1024) >> 11;
            f->coarse.entries[i * f->coarse.stride + j] = (int16_t)high;
            f->fine.entries[i * f->fine.stride + j] = (int16_t)(entry - 2048 * high);
        }
    }
}

void lowrank_fit_make_orthogonal(fit *f, fit_vectors *out) {
    size_t count = out->count, order[FIT_VECTORS];
    double keys[FIT_VECTORS];
    for (size_t i = 0; i < count; i++)
        keys[i] = f->kernels->round(row_of(f->wide, i), out->length, out->entries + i * out->stride);
    lowrank_fit_multiply_vectors(f, out, f->others);
    for (size_t i = 0; i < count; i++) {
        double scale = keys[i] / LOWRANK_MOST_FACTOR;
        keys[i] = scale * scale * row_of(f->others, i)[i];
    }
    lowrank_fit_sort(keys, count, order);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j <= i; j++) row_of(f->gram, i)[j] = product(f->others, order[i], order[j]);
    lowrank_fit_put_in_order(f, out, order);
    f->kernels->invert_root(f->gram, f->inverse, count);
    split_inverse(f, count);
    f->kernels->combine(&f->coarse, &f->fine, &f->sorted, f->wide);
    for (size_t i = 0; i < count; i++)
        f->kernels->round(row_of(f->wide, i), out->length, out->entries + i * out->stride);
}
