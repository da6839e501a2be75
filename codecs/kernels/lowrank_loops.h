/* Loops over many numbers, included once for each set of instructions: with LOOPS_AVX2 defined, or without. */

#ifdef LOOPS_AVX2

/* Four rows by a panel: products of pairs of terms, added up in 32 bits. */
FLOAT_INLINE void tile(const int16_t *left, size_t stride, const int16_t *panel, size_t terms,
                       int32_t out[LOWRANK_TILE][LOWRANK_PANEL]) {
    __m256i sums[LOWRANK_TILE][2];
    for (size_t i = 0; i < LOWRANK_TILE; i++) sums[i][0] = sums[i][1] = _mm256_setzero_si256();
    for (size_t t = 0; t < terms; t += 2, panel += 2 * LOWRANK_PANEL) {
        __m256i low = _mm256_loadu_si256((const __m256i *)panel);
        __m256i high = _mm256_loadu_si256((const __m256i *)panel + 1);
        for (size_t i = 0; i < LOWRANK_TILE; i++) {
            __m256i pair = _mm256_set1_epi32((int)*(const float_u32 *)(left + i * stride + t));
            sums[i][0] = _mm256_add_epi32(sums[i][0], _mm256_madd_epi16(pair, low));
            sums[i][1] = _mm256_add_epi32(sums[i][1], _mm256_madd_epi16(pair, high));
        }
    }
    for (size_t i = 0; i < LOWRANK_TILE; i++) {
        _mm256_storeu_si256((__m256i *)out[i], sums[i][0]);
        _mm256_storeu_si256((__m256i *)out[i] + 1, sums[i][1]);
    }
}

#else

FLOAT_INLINE void tile(const int16_t *left, size_t stride, const int16_t *panel, size_t terms,
                       int32_t out[LOWRANK_TILE][LOWRANK_PANEL]) {
    memset(out, 0, sizeof(int32_t) * LOWRANK_TILE * LOWRANK_PANEL);
    for (size_t t = 0; t < terms; t += 2, panel += 2 * LOWRANK_PANEL)
        for (size_t i = 0; i < LOWRANK_TILE; i++) {
            int32_t first = left[i * stride + t], second = left[i * stride + t + 1];
            for (int j = 0; j < LOWRANK_PANEL; j++) out[i][j] += first * panel[2 * j] + second * panel[2 * j + 1];
        }
}

#endif

/* The last rows, fewer than a tile, are worked on in a copy with rows of zeros. */
static void multiply_panel(const int16_t *left, size_t rows, const int16_t *panel, size_t terms, size_t all_terms,
                           int add, int64_t *out, size_t stride) {
    int32_t sums[LOWRANK_TILE][LOWRANK_PANEL];
    int16_t last[LOWRANK_TILE * LOWRANK_TERMS];
    for (size_t i = 0; i < rows; i += LOWRANK_TILE) {
        size_t count = float_least(LOWRANK_TILE, rows - i);
        if (count == LOWRANK_TILE) {
            tile(left + i * all_terms, all_terms, panel, terms, sums);
        } else {
            memset(last, 0, sizeof last);
            for (size_t k = 0; k < count; k++) memcpy(last + k * terms, left + (i + k) * all_terms, 2 * terms);
            tile(last, terms, panel, terms, sums);
        }
        for (size_t k = 0; k < count; k++) {
            int64_t *to = out + (i + k) * stride;
            for (int j = 0; j < LOWRANK_PANEL; j++) to[j] = add ? to[j] + sums[k][j] : sums[k][j];
        }
    }
}

static void multiply(const int16_t *left, size_t rows, const int16_t *right, size_t cols, size_t terms, int64_t *out,
                     size_t stride) {
    for (size_t j = 0; j < cols; j += LOWRANK_PANEL, right += LOWRANK_PANEL * terms) {
        size_t t = 0;
        do {
            size_t some = float_least(LOWRANK_TERMS, terms - t);
            multiply_panel(left + t, rows, right + t * LOWRANK_PANEL, some, terms, t > 0, out + j, stride);
            t += some;
        } while (t < terms);
    }
}
