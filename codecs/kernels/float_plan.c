/* What the encoder decides (16.9, decisions 1 to 9), and the prediction that both directions walk through.
 *
 * float_decisions.py is the definition; names follow it. Samples are small, except that narrow matrices are read
 * whole, so the sums run in the kernels.
 */
#include <stdlib.h>

#include "float_cpu.h"

float_cursor float_cursor_at_start(const float_entry *entries, uint32_t count, const uint8_t *side) {
    float_cursor cursor = {entries, side, 0, count};
    return cursor;
}

static uint64_t words_of(const float_entry *entry) { return (uint64_t)entry->rows * (entry->cols ? entry->cols : 1); }

static void next_entry(float_cursor *cursor) {
    if (cursor->entries->cols) cursor->side += (uint64_t)cursor->entries->rows + cursor->entries->cols;
    cursor->entries++;
    cursor->left--;
    cursor->done = 0;
}

void float_skip(float_cursor *cursor, uint64_t count) {
    while (count && cursor->left) {
        uint64_t step = float_least(count, words_of(cursor->entries) - cursor->done);
        cursor->done += step;
        count -= step;
        if (cursor->done == words_of(cursor->entries)) next_entry(cursor);
    }
}

void float_predict(float_cursor *cursor, uint16_t *prediction, size_t count) {
    while (count && cursor->left) {
        const float_entry *entry = cursor->entries;
        size_t step;
        if (entry->cols == 0) {
            step = float_least(count, entry->rows - cursor->done);
            uint16_t value = (uint16_t)(entry->base - FLOAT_CENTRE);
            for (size_t i = 0; i < step; i++) prediction[i] = value;
        } else {
            uint64_t row = cursor->done / entry->cols, column = cursor->done % entry->cols;
            step = float_least(count, entry->cols - column);
            const uint8_t *offsets = cursor->side + entry->rows + column;
            uint16_t level = (uint16_t)(entry->base - FLOAT_CENTRE - 128 + cursor->side[row]);
            for (size_t i = 0; i < step; i++) prediction[i] = (uint16_t)(level + offsets[i]);
        }
        prediction += step;
        count -= step;
        cursor->done += step;
        if (cursor->done == words_of(entry)) next_entry(cursor);
    }
    memset(prediction, 0, count * sizeof *prediction);
}

int32_t float_constant(const float_cursor *cursor, size_t count) {
    if (!cursor->left) return 0;
    const float_entry *entry = cursor->entries;
    return entry->cols || entry->rows - cursor->done < count ? -1 : (uint16_t)(entry->base - FLOAT_CENTRE);
}

typedef struct {
    const float_kernels *kernels;
    int word, layout;
    uint16_t *means; /* of the rows of the matrix at hand */
} fitter;

enum { NO_MEAN = 0xFFFF };

/* Sum over the sampled runs of 512 bytes: all of them, or `most` spread evenly. */
static void sum_runs(const fitter *fit, const uint8_t *words, uint64_t length, uint32_t most, int64_t sums[2]) {
    uint64_t run = FLOAT_RUN_BYTES / fit->word, runs = (length + run - 1) / run;
    sums[0] = sums[1] = 0;
    for (uint32_t t = 0; t < float_least(runs, most); t++) {
        uint64_t first = float_spread(t, (uint32_t)runs, most) * run;
        fit->kernels->sum(words + first * fit->word, float_least(run, length - first), fit->word, fit->layout, sums);
    }
}

static void fit_flat(const fitter *fit, const uint8_t *words, float_entry *entry) {
    int64_t sums[2];
    sum_runs(fit, words, entry->rows, FLOAT_FLAT_RUNS, sums);
    entry->base = sums[1] ? (uint32_t)float_mean(sums[0], sums[1]) : 0;
}

/* Decisions 4 and 6: row offsets and the entry's base; returns the flat base. */
static uint32_t fit_rows(const fitter *fit, const uint8_t *words, float_entry *entry, uint8_t *offsets) {
    uint64_t row_size = (uint64_t)entry->cols * fit->word;
    uint32_t least = NO_MEAN;
    int64_t sums[2], total = 0, known = 0;
    for (uint32_t i = 0; i < entry->rows; i++) {
        sum_runs(fit, words + i * row_size, entry->cols, FLOAT_ROW_RUNS, sums);
        fit->means[i] = NO_MEAN;
        if (sums[1] == 0) continue;
        fit->means[i] = (uint16_t)float_mean(sums[0], sums[1]);
        total += fit->means[i];
        known++;
        if (fit->means[i] < least) least = fit->means[i];
    }
    entry->base = known ? least : 0;
    for (uint32_t i = 0; i < entry->rows; i++)
        offsets[i] = fit->means[i] == NO_MEAN ? 0 : (uint8_t)float_least(255, fit->means[i] - entry->base);
    return known ? (uint32_t)float_mean(total, known) : 0;
}

/* Decision 5, a strip of columns at a time: the sums stay in the cache however wide the matrix is. */
static void fit_columns(const fitter *fit, const uint8_t *words, const float_entry *entry, const uint8_t *row_offsets,
                        uint8_t *offsets) {
    int32_t totals[FLOAT_PIECE], counts[FLOAT_PIECE];
    uint32_t sampled = (uint32_t)float_least(entry->rows, FLOAT_COLUMN_SAMPLE);
    for (uint64_t first = 0; first < entry->cols; first += FLOAT_PIECE) {
        size_t width = float_least(FLOAT_PIECE, entry->cols - first);
        memset(totals, 0, width * sizeof *totals);
        memset(counts, 0, width * sizeof *counts);
        for (uint32_t t = 0; t < sampled; t++) {
            uint32_t row = float_spread(t, entry->rows, FLOAT_COLUMN_SAMPLE);
            const uint8_t *place = words + ((uint64_t)row * entry->cols + first) * fit->word;
            fit->kernels->columns(place, width, fit->word, fit->layout, (int32_t)(entry->base + row_offsets[row]),
                                  totals, counts);
        }
        for (size_t j = 0; j < width; j++) {
            int64_t mean = counts[j] ? float_mean(totals[j], counts[j]) : 0;
            offsets[first + j] = (uint8_t)(128 + (mean < -128 ? -128 : mean > 127 ? 127 : mean));
        }
    }
}

/* Decision 7 */
static int rowcol_pays(const fitter *fit, const uint8_t *words, const float_entry *entry, uint32_t flat,
                       const uint8_t *row_offsets, const uint8_t *column_offsets) {
    int64_t sums[2] = {1, 1};
    for (uint32_t t = 0; t < float_least(entry->rows, FLOAT_COST_SAMPLE); t++) {
        uint32_t row = float_spread(t, entry->rows, FLOAT_COST_SAMPLE);
        for (uint64_t first = 0; first < entry->cols; first += FLOAT_PIECE) {
            const uint8_t *place = words + ((uint64_t)row * entry->cols + first) * fit->word;
            fit->kernels->cost(place, float_least(FLOAT_PIECE, entry->cols - first), fit->word, fit->layout,
                               (int32_t)flat, (int32_t)(entry->base + row_offsets[row]), column_offsets + first, sums);
        }
    }
    int64_t size = (int64_t)entry->rows * entry->cols;
    int64_t gain = size * ((int64_t)float_log256((uint64_t)sums[0]) - (int64_t)float_log256((uint64_t)sums[1]));
    return gain > 256 * 8 * ((int64_t)entry->rows + entry->cols) + 5 * size;
}

/* Decisions 4 to 7 for one matrix; returns the bytes that it added to the side plane. */
static uint64_t fit_matrix(const fitter *fit, const uint8_t *words, float_entry *entry, uint8_t *side) {
    uint8_t *column_offsets = side + entry->rows;
    uint32_t flat = fit_rows(fit, words, entry, side);
    fit_columns(fit, words, entry, side, column_offsets);
    if (rowcol_pays(fit, words, entry, flat, side, column_offsets)) return (uint64_t)entry->rows + entry->cols;
    entry->rows *= entry->cols;
    entry->cols = 0;
    entry->base = flat;
    return 0;
}

static int fit_all(const float_input *input, const float_kernels *kernels, float_plan *plan) {
    uint32_t whole[2] = {(uint32_t)input->n, 0};
    int merged = input->matrix_count > FLOAT_MAX_MATRICES;
    const uint32_t *matrices = merged ? whole : input->matrices;
    uint32_t count = merged ? 1 : input->matrix_count, most_rows = 0;
    uint64_t side_room = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (matrices[2 * i + 1] == 0) continue;
        side_room += (uint64_t)matrices[2 * i] + matrices[2 * i + 1];
        if (matrices[2 * i] > most_rows) most_rows = matrices[2 * i];
    }
    plan->entries = malloc((count + 1) * sizeof *plan->entries);
    plan->side = malloc(side_room + 1);
    uint16_t *means = malloc(((size_t)most_rows + 1) * sizeof *means);
    int failed = !plan->entries || !plan->side || !means;
    fitter fit = {kernels, input->word, plan->layout, means};
    const uint8_t *words = input->data;
    for (uint32_t i = 0; i < count && !failed; i++) {
        float_entry *entry = &plan->entries[i];
        entry->rows = matrices[2 * i];
        entry->cols = matrices[2 * i + 1];
        uint64_t size = words_of(entry) * input->word;
        if (entry->cols) plan->side_size += fit_matrix(&fit, words, entry, plan->side + plan->side_size);
        else fit_flat(&fit, words, entry);
        words += size;
    }
    plan->entry_count = count;
    free(means);
    return failed ? FLOAT_NO_MEMORY : FLOAT_OK;
}

/* Decisions 8 and 9, over a sample of the runs of 512 bytes. */
static void survey(const float_input *input, const float_kernels *kernels, float_plan *plan) {
    uint64_t run = FLOAT_RUN_BYTES / input->word, seen = 0;
    uint64_t stride = run * float_sample_stride((input->n + run - 1) / run);
    uint16_t prediction[FLOAT_RUN_BYTES / 2];
    int64_t sums[2] = {0, 0};
    float_cursor cursor = float_cursor_at_start(plan->entries, plan->entry_count, plan->side);
    for (uint64_t first = 0; first < input->n; first += stride) {
        size_t length = float_least(run, input->n - first);
        float_predict(&cursor, prediction, length);
        kernels->survey(input->data + first * input->word, prediction, length, input->word, sums);
        float_skip(&cursor, stride - length);
        seen += length;
    }
    plan->zeros_removed = seen > 0 && (uint64_t)sums[0] * FLOAT_ZERO_SHARE >= seen;
    if (plan->layout == LAYOUT_LOG && input->kind != KIND_FP64 &&
        (uint64_t)sums[1] * FLOAT_EXCEPTION_SHARE > seen - (uint64_t)sums[0]) {
        plan->layout = LAYOUT_ROTATED;
        plan->entry_count = 0;
        plan->side_size = 0;
    }
    if (plan->layout == LAYOUT_ROTATED && plan->side_size == 0) plan->entry_count = 0;
}

int float_make_plan(const float_input *input, const float_kernels *kernels, float_plan *plan) {
    memset(plan, 0, sizeof *plan);
    int fast = input->level == LEVEL_FAST && input->kind != KIND_FP64;
    plan->layout = input->kind == KIND_BYTES ? LAYOUT_BYTES
                   : fast || input->kind == KIND_FP16 ? LAYOUT_ROTATED
                                                      : LAYOUT_LOG;
    plan->sampling = 16;
    if (plan->layout == LAYOUT_BYTES || fast) return FLOAT_OK;
    plan->sampling = 4;
    int error = fit_all(input, kernels, plan);
    if (error == FLOAT_OK) survey(input, kernels, plan);
    return error;
}

void float_free_plan(float_plan *plan) {
    free(plan->entries);
    free(plan->side);
}
