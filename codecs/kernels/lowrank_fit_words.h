/* Loops of the fit over words and vectors, included once for each set of instructions: with LOOPS_AVX2 defined, or
 * without. What AVX2 does here for 16 numbers at a time, the plain loops do for those that are left.
 */

#ifdef LOOPS_AVX2

FLOAT_INLINE __m256d sizes(__m256d numbers) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), numbers); }

/* Eight numbers of at most 2^15 in size, ties to even: the processor's mode, which nobody changes. */
FLOAT_INLINE void put_rounded(__m256d low, __m256d high, int16_t *to) {
    _mm_storeu_si128((__m128i *)to, _mm_packs_epi32(_mm256_cvtpd_epi32(low), _mm256_cvtpd_epi32(high)));
}

/* Eight words as numbers */
FLOAT_INLINE void take_eight(const uint8_t *words, int word, __m256d values[2]) {
    const __m256i most = _mm256_set1_epi32(0x7F800000);
    __m256i bits = word == 2 ? _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)words)), 16)
                             : _mm256_loadu_si256((const __m256i *)words);
    __m256i exponents = _mm256_and_si256(bits, most);
    __m256i odd = _mm256_or_si256(_mm256_cmpeq_epi32(exponents, most),
                                  _mm256_cmpeq_epi32(exponents, _mm256_setzero_si256()));
    __m256 narrow = _mm256_castsi256_ps(_mm256_andnot_si256(odd, bits));
    values[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(narrow));
    values[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(narrow, 1));
}

#endif

static double round_vector(const double *from, size_t count, int16_t *to) {
    double most[4] = {0}, largest = 0;
    size_t i = 0;
#ifdef LOOPS_AVX2
    __m256d all = _mm256_setzero_pd();
    for (; i + 4 <= count; i += 4) all = _mm256_max_pd(all, sizes(_mm256_loadu_pd(from + i)));
    _mm256_storeu_pd(most, all);
#endif
    for (; i < count; i++) most[0] = fit_size(from[i]) > most[0] ? fit_size(from[i]) : most[0];
    for (size_t l = 0; l < 4; l++) largest = most[l] > largest ? most[l] : largest;
    double factor = largest > 0 ? LOWRANK_MOST_FACTOR / largest : 0;
    i = 0;
#ifdef LOOPS_AVX2
    for (; i + 8 <= count; i += 8) {
        __m256d times = _mm256_set1_pd(factor);
        put_rounded(_mm256_mul_pd(_mm256_loadu_pd(from + i), times),
                    _mm256_mul_pd(_mm256_loadu_pd(from + i + 4), times), to + i);
    }
#endif
    for (; i < count; i++) to[i] = (int16_t)(int32_t)fit_round(from[i] * factor);
    return largest;
}

static double round_and_multiply(const double *from, size_t count, double factor, const int16_t *other) {
    double sums[LOWRANK_PANEL] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LOWRANK_PANEL <= count; i += LOWRANK_PANEL)
        for (size_t l = 0; l < LOWRANK_PANEL; l++) sums[l] += fit_round(from[i + l] * factor) * other[i + l];
    for (; i < count; i++) sum += fit_round(from[i] * factor) * other[i];
    for (size_t l = 0; l < LOWRANK_PANEL; l++) sum += sums[l];
    return sum;
}

/* Words as numbers; what is not finite or is subnormal counts as zero. */
FLOAT_INLINE void take_values(const uint8_t *words, int word, size_t count, double *values) {
    uint32_t wide[LOWRANK_PANEL];
    float narrow[LOWRANK_PANEL];
    for (size_t l = 0; l < count; l++) {
        uint32_t bits = word == 2 ? (uint32_t)((const float_u16 *)words)[l] << 16 : ((const float_u32 *)words)[l];
        wide[l] = (bits >> 23 & 0xFF) - 1 < 254 ? bits : 0;
    }
    memcpy(narrow, wide, sizeof wide);
    for (size_t l = 0; l < count; l++) values[l] = narrow[l];
}

FLOAT_INLINE uint64_t measure_some(const uint8_t *words, int word, size_t count, const int32_t *products, double by_row,
                                   const double *by_col, uint64_t *cols) {
    const double least = FIT_FLOOR * (word == 2 ? 0x1p-7 : 0x1p-23);
    double values[LOWRANK_PANEL];
    uint64_t sum = 0;
    take_values(words, word, count, values);
    for (size_t l = 0; l < count; l++) {
        double size = fit_size(values[l]), residual = fit_size(values[l] - products[l] * by_row * by_col[l]);
        double place = (size > FIT_SMALLEST ? size : FIT_SMALLEST) * least;
        uint64_t found = fit_bits(residual > place ? residual : place) >> 44;
        sum += found, cols[l] += found;
    }
    return sum;
}

#ifdef LOOPS_AVX2

/* What measure_some does for a panel */
FLOAT_INLINE uint64_t measure_panel(const uint8_t *words, int word, const int32_t *products, double by_row,
                                    const double *by_col, uint64_t *cols) {
    const __m256d tiny = _mm256_set1_pd(FIT_SMALLEST), least = _mm256_set1_pd(FIT_FLOOR * (word == 2 ? 0x1p-7 : 0x1p-23));
    __m256i sum = _mm256_setzero_si256();
    __m256d values[LOWRANK_PANEL / 4];
    for (size_t l = 0; l < LOWRANK_PANEL; l += 8) take_eight(words + l * (size_t)word, word, values + l / 4);
    for (size_t l = 0; l < LOWRANK_PANEL; l += 4) {
        __m256d held = values[l / 4];
        __m256d product = _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)(products + l)));
        product = _mm256_mul_pd(_mm256_mul_pd(product, _mm256_set1_pd(by_row)), _mm256_loadu_pd(by_col + l));
        __m256d place = _mm256_mul_pd(_mm256_max_pd(sizes(held), tiny), least);
        __m256d most = _mm256_max_pd(sizes(_mm256_sub_pd(held, product)), place);
        __m256i found = _mm256_srli_epi64(_mm256_castpd_si256(most), 44);
        __m256i *to = (__m256i *)(cols + l);
        _mm256_storeu_si256(to, _mm256_add_epi64(_mm256_loadu_si256(to), found));
        sum = _mm256_add_epi64(sum, found);
    }
    uint64_t sums[4];
    _mm256_storeu_si256((__m256i *)sums, sum);
    return sums[0] + sums[1] + sums[2] + sums[3];
}

#else

FLOAT_INLINE uint64_t measure_panel(const uint8_t *words, int word, const int32_t *products, double by_row,
                                    const double *by_col, uint64_t *cols) {
    return measure_some(words, word, LOWRANK_PANEL, products, by_row, by_col, cols);
}

#endif

FLOAT_INLINE void measure_words(const fit_matrix *matrix, const fit_prediction *prediction, int word, uint64_t *rows,
                                uint64_t *cols) {
    int32_t products[LOWRANK_TILE][LOWRANK_PANEL] = {{0}};
    size_t terms = prediction->terms;
    for (size_t row = 0; row < matrix->rows; row += FIT_ROWS)
        for (size_t j = 0; j < matrix->cols; j += LOWRANK_PANEL) {
            size_t count = float_least(LOWRANK_PANEL, matrix->cols - j);
            for (size_t i = row; i < float_least(row + FIT_ROWS, matrix->rows); i++) {
                const uint8_t *words = matrix->words + (i * matrix->cols + j) * (size_t)word;
                const int32_t *mine = products[i % LOWRANK_TILE];
                double by_row = matrix->by_row[i];
                if (terms && i % LOWRANK_TILE == 0)
                    tile(prediction->left + i * terms, terms, prediction->right + j * terms, terms, products);
                rows[i] += count == LOWRANK_PANEL
                               ? measure_panel(words, word, mine, by_row, matrix->by_col + j, cols + j)
                               : measure_some(words, word, count, mine, by_row, matrix->by_col + j, cols + j);
            }
        }
}

static void measure(const fit_matrix *matrix, const fit_prediction *prediction, uint64_t *rows, uint64_t *cols) {
    if (matrix->word == 2)
        measure_words(matrix, prediction, 2, rows, cols);
    else
        measure_words(matrix, prediction, 4, rows, cols);
}

/* Returns whether one is 2^8 or more. */
FLOAT_INLINE int whole_some(const uint8_t *words, int word, size_t count, double by_row, const double *by_col,
                            double factor, double *numbers, int16_t *to) {
    const double most = LOWRANK_MOST_FACTOR;
    double values[LOWRANK_PANEL];
    uint64_t over = 0;
    take_values(words, word, count, values);
    for (size_t l = 0; l < count; l++) {
        double number = values[l] * by_row * by_col[l], scaled = number * factor;
        numbers[l] = number;
        over |= fit_size(number) >= 256;
        scaled = scaled < most ? scaled : most;
        to[l] = (int16_t)(int32_t)fit_round(scaled > -most ? scaled : -most);
    }
    return over != 0;
}

#ifdef LOOPS_AVX2

FLOAT_INLINE int whole_panel(const uint8_t *words, int word, double by_row, const double *by_col, double factor,
                             double *numbers, int16_t *to) {
    const __m256d most = _mm256_set1_pd(LOWRANK_MOST_FACTOR), least = _mm256_set1_pd(-LOWRANK_MOST_FACTOR);
    __m256d over = _mm256_setzero_pd(), values[2], scaled[2];
    for (size_t l = 0; l < LOWRANK_PANEL; l += 8) {
        take_eight(words + l * (size_t)word, word, values);
        for (size_t k = 0; k < 2; k++) {
            __m256d number = _mm256_mul_pd(values[k], _mm256_set1_pd(by_row));
            number = _mm256_mul_pd(number, _mm256_loadu_pd(by_col + l + 4 * k));
            _mm256_storeu_pd(numbers + l + 4 * k, number);
            over = _mm256_or_pd(over, _mm256_cmp_pd(sizes(number), _mm256_set1_pd(256), _CMP_GE_OQ));
            number = _mm256_mul_pd(number, _mm256_set1_pd(factor));
            scaled[k] = _mm256_max_pd(_mm256_min_pd(number, most), least);
        }
        put_rounded(scaled[0], scaled[1], to + l);
    }
    return _mm256_movemask_pd(over);
}

#else

FLOAT_INLINE int whole_panel(const uint8_t *words, int word, double by_row, const double *by_col, double factor,
                             double *numbers, int16_t *to) {
    return whole_some(words, word, LOWRANK_PANEL, by_row, by_col, factor, numbers, to);
}

#endif

FLOAT_INLINE void make_whole_words(const fit_matrix *matrix, int word, double factor, uint64_t *counts, fit_vectors *z) {
    double numbers[LOWRANK_PANEL];
    for (size_t i = 0; i < matrix->rows; i++)
        for (size_t j = 0; j < matrix->cols; j += LOWRANK_PANEL) {
            size_t count = float_least(LOWRANK_PANEL, matrix->cols - j);
            const uint8_t *words = matrix->words + (i * matrix->cols + j) * (size_t)word;
            int16_t *to = z->entries + i * z->stride + j;
            const double by_row = matrix->by_row[i], *by_col = matrix->by_col + j;
            int over = count == LOWRANK_PANEL
                           ? whole_panel(words, word, by_row, by_col, factor, numbers, to)
                           : whole_some(words, word, count, by_row, by_col, factor, numbers, to);
            if (over && counts)
                for (size_t l = 0; l < count; l++) counts[fit_bits(fit_size(numbers[l])) >> 52]++;
        }
}

static void make_whole(const fit_matrix *matrix, double factor, uint64_t *counts, fit_vectors *z) {
    if (matrix->word == 2)
        make_whole_words(matrix, 2, factor, counts, z);
    else
        make_whole_words(matrix, 4, factor, counts, z);
}
