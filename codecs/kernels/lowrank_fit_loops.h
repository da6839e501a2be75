/* Loops of the fit over many numbers, included once for each set of instructions, behind lowrank_loops.h: products. */

/* Rows that are multiplied by all panels before the next ones */
enum { FIT_ROWS = 32 };

/* Terms that `tile` takes at a time: equal parts of at most LOWRANK_TERMS */
FLOAT_INLINE size_t part_of(size_t terms) {
    size_t parts = (terms + LOWRANK_TERMS - 1) / LOWRANK_TERMS;
    return lowrank_up((terms + parts - 1) / parts, 2);
}

/* Vectors as `tile` takes them on its right side; those of the last panel that are not there are zeros. */
static void pack_vectors(const fit_vectors *from, size_t terms, int16_t *panels) {
    for (size_t j = 0; j < from->count; j += LOWRANK_PANEL) {
        size_t count = float_least(LOWRANK_PANEL, from->count - j);
        const int16_t *entries = from->entries + j * from->stride;
        float_u32 *to = (float_u32 *)(panels + j * terms);
        for (size_t t = 0; t < terms; t += 2, to += LOWRANK_PANEL)
            for (size_t l = 0; l < LOWRANK_PANEL; l++)
                to[l] = l < count ? *(const float_u32 *)(entries + l * from->stride + t) : 0;
    }
}

static void dot(const fit_vectors *a, const fit_vectors *b, int same, int16_t *panels, fit_doubles out) {
    size_t terms = lowrank_up(a->length, 2), part = part_of(terms), width = lowrank_up(a->count, LOWRANK_PANEL);
    double sums[FIT_ROWS][FIT_VECTORS];
    int32_t some[LOWRANK_TILE][LOWRANK_PANEL];
    pack_vectors(a, terms, panels);
    for (size_t row = 0; row < b->count; row += FIT_ROWS) {
        size_t rows = float_least(FIT_ROWS, b->count - row);
        size_t end = same ? float_least(width, lowrank_up(row + rows, LOWRANK_PANEL)) : width;
        memset(sums, 0, sizeof sums);
        for (size_t t = 0; t < terms; t += part)
            for (size_t j = 0; j < end; j += LOWRANK_PANEL)
                for (size_t i = same && j > row ? j - row : 0; i < rows; i += LOWRANK_TILE) {
                    tile(b->entries + (row + i) * b->stride + t, b->stride, panels + j * terms + t * LOWRANK_PANEL,
                         float_least(part, terms - t), some);
                    for (size_t k = 0; k < LOWRANK_TILE; k++)
                        for (size_t l = 0; l < LOWRANK_PANEL; l++) sums[i + k][j + l] += some[k][l];
                }
        for (size_t j = 0; j < float_least(end, a->count); j++)
            for (size_t i = 0; i < rows; i++) out.entries[j * out.stride + row + i] = sums[i][j];
    }
}

/* Up to LOWRANK_TERMS rows of 16 columns, as `tile` takes them */
FLOAT_INLINE void pack_rows(const int16_t *from, size_t stride, size_t terms, int16_t *panel) {
    for (size_t t = 0; t < terms; t += 2, from += 2 * stride, panel += 2 * LOWRANK_PANEL) {
#ifdef LOOPS_AVX2
        __m256i first = _mm256_loadu_si256((const __m256i *)from);
        __m256i second = _mm256_loadu_si256((const __m256i *)(from + stride));
        __m256i low = _mm256_unpacklo_epi16(first, second), high = _mm256_unpackhi_epi16(first, second);
        _mm256_storeu_si256((__m256i *)panel, _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)panel + 1, _mm256_permute2x128_si256(low, high, 0x31));
#else
        for (size_t j = 0; j < LOWRANK_PANEL; j++) panel[2 * j] = from[j], panel[2 * j + 1] = from[stride + j];
#endif
    }
}

static void combine(const fit_vectors *left, const fit_vectors *low, const fit_vectors *z, fit_doubles out) {
    int16_t panel[LOWRANK_TERMS * LOWRANK_PANEL];
    int32_t some[LOWRANK_TILE][LOWRANK_PANEL], less[LOWRANK_TILE][LOWRANK_PANEL];
    size_t all = lowrank_up(z->count, LOWRANK_TILE), part = part_of(all);
    for (size_t t = 0; t < all; t += part) {
        size_t terms = float_least(part, all - t);
        for (size_t j = 0; j < z->length; j += LOWRANK_PANEL) {
            pack_rows(z->entries + t * z->stride + j, z->stride, terms, panel);
            for (size_t i = 0; i < left->count; i += LOWRANK_TILE) {
                size_t used = low ? float_least(terms, i + LOWRANK_TILE) : terms;
                tile(left->entries + i * left->stride + t, left->stride, panel, used, some);
                if (low) tile(low->entries + i * low->stride, low->stride, panel, used, less);
                for (size_t k = 0; k < LOWRANK_TILE; k++) {
                    double *to = out.entries + (i + k) * out.stride + j;
                    for (size_t l = 0; l < LOWRANK_PANEL; l++)
                        to[l] = low ? 2048.0 * some[k][l] + less[k][l] : t ? to[l] + some[k][l] : some[k][l];
                }
            }
        }
    }
}

static uint64_t sum_squares(const fit_vectors *z) {
    uint64_t sum = 0;
    for (size_t i = 0; i < z->count; i++)
        for (size_t j = 0; j < z->stride; j += FIT_UNIT) {
            const int16_t *from = z->entries + i * z->stride + j;
            int32_t some = 0;
            for (size_t l = 0; l < FIT_UNIT; l++) some += from[l] * from[l];
            sum += (uint64_t)some;
        }
    return sum;
}

static void invert_root(fit_doubles matrix, fit_doubles inverse, size_t count) {
    double first[FIT_VECTORS], column[FIT_VECTORS];
    uint8_t lost[FIT_VECTORS] = {0};
    for (size_t i = 0; i < count; i++) {
        first[i] = matrix.entries[i * matrix.stride + i];
        memset(inverse.entries + i * inverse.stride, 0, count * sizeof(double));
        inverse.entries[i * inverse.stride + i] = 1;
    }
    for (size_t i = 0; i < count; i++) {
        double *mine = inverse.entries + i * inverse.stride, left = matrix.entries[i * matrix.stride + i];
        lost[i] = left <= first[i] * FIT_LOST;
        if (lost[i]) continue;
        double pivot = __builtin_sqrt(left);
        for (size_t j = 0; j <= i; j++) mine[j] /= pivot;
        for (size_t a = i + 1; a < count; a++) column[a] = matrix.entries[a * matrix.stride + i] / pivot;
        for (size_t a = i + 1; a < count; a++) {
            double *to = matrix.entries + a * matrix.stride, *others = inverse.entries + a * inverse.stride;
            for (size_t b = i + 1; b <= a; b++) to[b] -= column[a] * column[b];
            for (size_t j = 0; j <= i; j++) others[j] -= column[a] * mine[j];
        }
    }
    for (size_t i = 0; i < count; i++)
        if (lost[i]) memset(inverse.entries + i * inverse.stride, 0, count * sizeof(double));
}
