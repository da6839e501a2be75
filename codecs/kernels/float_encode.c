/* Words to a stream: header, raw planes and coded planes, a block at a time (16.1 to 16.7, 16.9).
 *
 * A block's symbols must be known before its table, and its table before its first chunk; everything else is moved in
 * pieces that stay in the first-level cache. The whole scratch is one struct of about half a MiB.
 */
#include <stdlib.h>

#include "float_encode.h"

typedef struct {
    const float_input *input;
    const float_plan *plan;
    uint32_t flags;
    uint64_t m, read; /* words that remain; words taken from the input so far */
    float_cursor cursor;
    uint8_t *first, *second, *low; /* raw planes; NULL where they are left out */
} stream;

/* Decision 10, and how many words remain. Stops as soon as nothing can be left out any more. */
static void find_flags(stream *s, const float_kernels *kernels) {
    const float_input *input = s->input;
    int layout = s->plan->layout, word = input->word, bits = 8 * word;
    uint64_t found[3] = {0, 0, 0}, sign = 1ull << (bits - 1), nibble = 15ull << (bits - 16);
    uint64_t low = (1ull << (bits - 16)) - 1;
    for (uint64_t i = 0; i < input->n; i += FLOAT_PIECE) {
        kernels->scan(input->data + i * (uint64_t)word, float_least(FLOAT_PIECE, input->n - i), word,
                      s->plan->zeros_removed, found);
        int open = layout == LAYOUT_LOG && (!(found[0] & found[1] & sign) || !(found[0] & nibble));
        if (!s->plan->zeros_removed && !open && (low == 0 || (found[0] & low))) break;
    }
    s->m = input->n - (s->plan->zeros_removed ? found[2] : 0);
    s->flags = (s->plan->zeros_removed ? FLAG_ZEROS_REMOVED : 0) | (s->plan->side_size ? FLAG_SIDE_PLANE : 0);
    if (s->m == 0) return;
    if (low && !(found[0] & low)) s->flags |= FLAG_NO_LOW;
    if (layout != LAYOUT_LOG) return;
    if (!(found[0] & nibble)) s->flags |= FLAG_NO_NIBBLES;
    if (!(found[0] & found[1] & sign)) s->flags |= FLAG_SIGN_CONSTANT | (found[0] & sign ? FLAG_SIGN_VALUE : 0);
}

static uint8_t *put_header(const stream *s, uint8_t *out) {
    const float_input *input = s->input;
    uint64_t tail = input->size - input->n * (uint64_t)input->word;
    memset(out, 0, FLOAT_HEADER_SIZE);
    out[0] = FLOAT_VERSION;
    out[1] = (uint8_t)s->plan->layout;
    out[2] = (uint8_t)input->word;
    out[3] = (uint8_t)s->flags;
    float_put32(out, 1, s->plan->entry_count);
    memcpy(out + 8, &input->n, 8);
    memcpy(out + 16, &s->m, 8);
    out[24] = (uint8_t)tail;
    if (tail) memcpy(out + 32, input->data + input->size - tail, tail);
    out += FLOAT_HEADER_SIZE;
    for (uint32_t i = 0; i < s->plan->entry_count; i++, out += FLOAT_MATRIX_SIZE) {
        const float_entry *entry = &s->plan->entries[i];
        float_put32(out, 0, entry->rows);
        float_put32(out, 1, entry->cols);
        float_put32(out, 2, entry->base | (uint32_t)(entry->cols > 0) << 16);
        float_put32(out, 3, 0);
    }
    return out;
}

/* Places the raw planes and zeroes their gaps; returns where the main coded plane begins. */
static uint8_t *place_planes(stream *s, uint8_t *out) {
    int word = s->input->word;
    uint64_t first = s->plan->layout == LAYOUT_LOG ? (s->m + 7) / 8 : s->m;
    if (!(s->flags & FLAG_SIGN_CONSTANT)) {
        s->first = out;
        out = float_pad(out, out + first);
    }
    if (s->plan->layout == LAYOUT_LOG && !(s->flags & FLAG_NO_NIBBLES)) {
        s->second = out;
        out = float_pad(out, out + (s->m + 1) / 2);
    }
    if (word > 2 && !(s->flags & FLAG_NO_LOW)) {
        s->low = out;
        out = float_pad(out, out + s->m * ((uint64_t)word - 2));
    }
    return out;
}

/* The next `count` coded words and what is predicted for them; a pointer into the input, or to e->kept_words. */
static const void *next_words(float_encoder *e, stream *s, size_t count, const uint16_t **prediction) {
    const float_input *input = s->input;
    const uint8_t *words = input->data + s->read * (uint64_t)input->word;
    *prediction = e->prediction;
    if (!s->plan->zeros_removed) {
        float_predict(&s->cursor, e->prediction, count);
        s->read += count;
        return words;
    }
    *prediction = e->kept_prediction;
    uint8_t *kept_words = (uint8_t *)e->kept_words;
    for (size_t kept = 0; kept < count;) {
        size_t step = float_least(count - kept, input->n - s->read);
        if (step == 0) { /* only if the caller's buffer changes meanwhile */
            memset(kept_words + kept * (size_t)input->word, 0, (count - kept) * (size_t)input->word);
            memset(e->kept_prediction + kept, 0, (count - kept) * sizeof *e->kept_prediction);
            break;
        }
        float_predict(&s->cursor, e->prediction, step);
        kept += e->kernels->compact(input->data + s->read * (uint64_t)input->word, e->prediction, step, input->word,
                                    kept_words + kept * (size_t)input->word, e->kept_prediction + kept, &e->shuffles);
        s->read += step;
    }
    return kept_words;
}

/* Symbols and raw planes of the block that begins at coded word `start`. */
static void split_block(float_encoder *e, stream *s, uint64_t start, size_t count) {
    int word = s->input->word, layout = s->plan->layout;
    for (size_t i = 0; i < count; i += FLOAT_PIECE) {
        size_t length = float_least(FLOAT_PIECE, count - i);
        uint64_t at = start + i;
        const uint16_t *prediction;
        const void *words = next_words(e, s, length, &prediction);
        uint8_t *low = s->low ? s->low + at * ((uint64_t)word - 2) : e->low;
        uint8_t *first = s->first ? s->first + (layout == LAYOUT_LOG ? at / 8 : at) : e->first;
        uint8_t *second = s->second ? s->second + at / 2 : e->second;
        e->kernels->transform(words, prediction, length, word, layout, e->tops + i, low);
        e->kernels->split(e->tops + i, low, length, word, layout, e->symbols + i, first, second,
                          e->exceptions + i / 32);
    }
}

static uint8_t *put_words(float_encoder *e, stream *s, uint8_t *out) {
    int word = s->input->word, logarithmic = s->plan->layout == LAYOUT_LOG;
    float_plane_writer p = float_begin_plane(out, s->m, 16 / word, s->plan->sampling);
    for (uint64_t number = 0; number < p.blocks; number++) {
        uint64_t start = number * FLOAT_BLOCK;
        size_t count = float_least(FLOAT_BLOCK, s->m - start);
        split_block(e, s, start, count);
        float_block b = {count, NULL, NULL, NULL, 1};
        if (logarithmic) {
            b.exceptions = e->exceptions;
            b.tops = e->tops;
            b.low = s->low ? s->low + start * ((uint64_t)word - 2) : NULL;
            b.value_size = word;
        }
        float_put_block(e, &p, number, &b);
    }
    return p.end;
}

static uint8_t *put_byte_planes(float_encoder *e, const stream *s, uint8_t *out) {
    size_t word = (size_t)s->input->word;
    for (size_t j = word; j-- > 0;) {
        float_plane_writer p = float_begin_plane(out, s->m, FLOAT_PLAIN_V, s->plan->sampling);
        for (uint64_t number = 0; number < p.blocks; number++) {
            uint64_t start = number * FLOAT_BLOCK;
            float_block b = {float_least(FLOAT_BLOCK, s->m - start), NULL, NULL, NULL, 1};
            const uint8_t *bytes = s->input->data + start * word + j;
            for (size_t i = 0; i < b.count; i++) e->symbols[i] = bytes[i * word];
            float_put_block(e, &p, number, &b);
        }
        out = p.end;
    }
    return out;
}

static uint8_t *put_side(float_encoder *e, const stream *s, uint8_t *out) {
    float_plane_writer p = float_begin_plane(out, s->plan->side_size, FLOAT_PLAIN_V, 1);
    for (uint64_t number = 0; number < p.blocks; number++) {
        uint64_t start = number * FLOAT_BLOCK;
        float_block b = {float_least(FLOAT_BLOCK, s->plan->side_size - start), NULL, NULL, NULL, 1};
        memcpy(e->symbols, s->plan->side + start, b.count);
        float_put_block(e, &p, number, &b);
    }
    return p.end;
}

static uint8_t *put_bitmap(float_encoder *e, const stream *s, uint8_t *out) {
    uint64_t size = (s->input->n + 7) / 8, word = (uint64_t)s->input->word;
    float_plane_writer p = float_begin_plane(out, size, FLOAT_PLAIN_V, 1);
    for (uint64_t number = 0; number < p.blocks; number++) {
        uint64_t start = number * FLOAT_BLOCK;
        float_block b = {float_least(FLOAT_BLOCK, size - start), NULL, NULL, NULL, 1};
        e->kernels->bitmap(s->input->data + 8 * start * word, float_least(8 * b.count, s->input->n - 8 * start),
                           s->input->word, e->symbols);
        float_put_block(e, &p, number, &b);
    }
    return p.end;
}

int64_t float_encode_stream(const float_input *input, const float_kernels *kernels, uint8_t *out) {
    float_plan plan;
    int error = float_make_plan(input, kernels, &plan);
    float_encoder *e = malloc(sizeof *e);
    if (error || !e) {
        float_free_plan(&plan);
        free(e);
        return -FLOAT_NO_MEMORY;
    }
    e->kernels = kernels;
    kernels->encode_shuffles(&e->shuffles);
    stream s = {.input = input, .plan = &plan, .m = input->n};
    s.cursor = float_cursor_at_start(plan.entries, plan.entry_count, plan.side);
    if (plan.layout != LAYOUT_BYTES) find_flags(&s, kernels);
    uint8_t *end = put_header(&s, out);
    if (plan.layout == LAYOUT_BYTES) {
        end = put_byte_planes(e, &s, end);
    } else {
        end = place_planes(&s, end);
        end = put_words(e, &s, end);
        end = put_side(e, &s, end);
        if (plan.zeros_removed) end = put_bitmap(e, &s, end);
    }
    memset(end, 0, FLOAT_END_SIZE);
    float_free_plan(&plan);
    free(e);
    return end + FLOAT_END_SIZE - out;
}

static uint64_t plane_bound(uint64_t count, uint64_t value_size) {
    uint64_t table = float_align(FLOAT_TABLE_BITMAP + 256 * FLOAT_PROBABILITY_BITS / 8);
    uint64_t directory = float_align(4 * (float_blocks_of(count) + 1 + float_chunks_of(count)));
    return count ? directory + float_blocks_of(count) * table + float_chunks_of(count) * 16 + count * value_size : 0;
}

/* Of whatever layout and flags the plan may choose: layout log, all planes stored, is the largest. */
uint64_t float_bound(const float_input *input) {
    uint64_t n = input->n, word = (uint64_t)input->word, total = FLOAT_HEADER_SIZE + FLOAT_END_SIZE, side = 0;
    if (input->kind == KIND_BYTES) return total + word * plane_bound(n, 1);
    for (uint32_t i = 0; i < input->matrix_count; i++)
        if (input->matrices[2 * i + 1]) side += (uint64_t)input->matrices[2 * i] + input->matrices[2 * i + 1];
    total += FLOAT_MATRIX_SIZE * (uint64_t)input->matrix_count;
    total += float_align(n) + float_align(n * (word - 2)) + 32;
    return total + plane_bound(n, word) + plane_bound(side, 1) + plane_bound((n + 7) / 8, 1);
}
