/* Words to a stream: header, raw planes and coded planes, a block at a time (16.1 to 16.7, 16.9).
 *
 * A block's symbols must be known before its table, and its table before its first chunk; everything else is moved in
 * pieces that stay in the first-level cache. The whole scratch is one struct of about half a MiB.
 */
#include <stdlib.h>

#include "float_cpu.h"

typedef struct {
    const float_kernels *kernels;
    float_shuffles shuffles;
    float_coding coding[256];
    float_table table;
    uint8_t symbols[FLOAT_BLOCK];
    uint16_t tops[FLOAT_BLOCK];
    uint32_t exceptions[FLOAT_BLOCK / 32];
    uint16_t words[FLOAT_CHUNK + 16];
    uint16_t prediction[FLOAT_PIECE], kept_prediction[FLOAT_PIECE + 16];
    uint64_t kept_words[FLOAT_PIECE + 16];
    uint8_t first[FLOAT_PIECE], second[FLOAT_PIECE], low[6 * FLOAT_PIECE]; /* of planes that are left out */
} encoder;

/* ---- Coded planes (16.6) ---- */

/* A plane being written: `start` and `info` stand before the records. */
typedef struct {
    uint8_t *out, *records, *end;
    uint64_t blocks, chunks;
    int lane_values, sampling;
} plane;

/* What the symbols of a block are, and what exceptions and raw chunks keep of them. */
typedef struct {
    size_t count;
    const uint32_t *exceptions; /* NULL: every word has a symbol */
    const uint16_t *tops;       /* NULL: values are symbols */
    const uint8_t *low;         /* the words' low bytes; NULL if they are all zero */
    int value_size;
} block;

static uint64_t blocks_of(uint64_t count) { return (count + FLOAT_BLOCK - 1) / FLOAT_BLOCK; }
static uint64_t chunks_of(uint64_t count) { return (count + FLOAT_CHUNK - 1) / FLOAT_CHUNK; }

static plane begin_plane(uint8_t *out, uint64_t count, int lane_values, int sampling) {
    plane p = {.out = out, .lane_values = lane_values, .sampling = sampling};
    uint64_t directory = count ? float_align(4 * (blocks_of(count) + 1 + chunks_of(count))) : 0;
    memset(out, 0, directory);
    p.blocks = blocks_of(count);
    p.records = p.end = out + directory;
    return p;
}

static void put32(uint8_t *out, uint64_t index, uint32_t value) { memcpy(out + 4 * index, &value, 4); }

static uint8_t *pad(uint8_t *from, uint8_t *end) {
    uint8_t *aligned = from + float_align((uint64_t)(end - from));
    memset(end, 0, (size_t)(aligned - end));
    return aligned;
}

/* Decision 11: the sampled rows, less the words that are exceptions by their quantum. */
static void count_symbols(const encoder *e, const plane *p, const block *b, uint32_t counts[256]) {
    uint32_t parts[4][256];
    memset(parts, 0, sizeof parts);
    size_t row_size = (size_t)FLOAT_LANES * (size_t)p->lane_values, total = 0;
    size_t stride = row_size * (size_t)(b->count > FLOAT_CHUNK ? p->sampling : 1);
    for (size_t first = 0; first < b->count; first += stride) {
        size_t end = float_least(first + row_size, b->count), i = first;
        for (; i + 4 <= end; i += 4)
            for (size_t k = 0; k < 4; k++) parts[k][e->symbols[i + k]]++;
        for (; i < end; i++) parts[0][e->symbols[i]]++;
        for (i = first; b->exceptions && i < end; i += 32) {
            for (uint32_t bits = b->exceptions[i / 32]; bits; bits &= bits - 1)
                parts[0][e->symbols[i + (size_t)__builtin_ctz(bits)]]--;
        }
    }
    for (size_t s = 0; s < 256; s++) {
        counts[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
        total += counts[s];
    }
    if (total == 0) counts[FLOAT_CENTRE] = 1;
}

static void put_value(const encoder *e, const block *b, size_t index, uint8_t *out) {
    if (!b->tops) {
        *out = e->symbols[index];
        return;
    }
    size_t low_size = (size_t)b->value_size - 2;
    if (b->low) memcpy(out, b->low + index * low_size, low_size);
    else memset(out, 0, low_size);
    memcpy(out + low_size, &b->tops[index], 2);
}

static void put_raw(const encoder *e, const block *b, size_t first, size_t count, uint8_t *out) {
    if (!b->tops) memcpy(out, e->symbols + first, count);
    else if (b->value_size == 2) memcpy(out, b->tops + first, 2 * count);
    else
        for (size_t i = 0; i < count; i++) put_value(e, b, first + i, out + i * (size_t)b->value_size);
}

/* Positions of a chunk's exceptions, ascending; stops at one more than a chunk may have. */
static uint32_t list_exceptions(const encoder *e, const plane *p, const block *b, size_t first, size_t count,
                                const uint8_t *flagged, uint16_t *positions) {
    size_t row_size = (size_t)FLOAT_LANES * (size_t)p->lane_values;
    uint32_t found = 0;
    for (size_t group = 0; group < count; group += 32) {
        uint32_t bits = b->exceptions ? b->exceptions[(first + group) / 32] : 0;
        if (flagged[group / row_size]) {
            size_t end = float_least(32, count - group);
            for (size_t k = 0; k < end; k++)
                bits |= (uint32_t)(e->table.frequency[e->symbols[first + group + k]] == 0) << k;
        }
        for (; bits; bits &= bits - 1) {
            if (found > FLOAT_MAX_EXCEPTIONS) return found;
            positions[found++] = (uint16_t)(group + (size_t)__builtin_ctz(bits));
        }
    }
    return found;
}

/* Decision 12. Symbols that the table lacks are coded as the most frequent one by the coding table. */
static uint32_t put_chunk(encoder *e, const plane *p, const block *b, size_t first, size_t count, uint8_t **end) {
    uint8_t flagged[FLOAT_MAX_ROWS];
    uint16_t positions[FLOAT_MAX_EXCEPTIONS + 1];
    uint32_t states[FLOAT_LANES], words = 0;
    int by_quantum = 0;
    for (size_t i = first / 32; b->exceptions && i < (first + count + 31) / 32; i++) by_quantum |= b->exceptions[i] != 0;
    memset(flagged, e->table.one_symbol, sizeof flagged);
    uint64_t coded = 0, raw = float_align(count * (uint64_t)b->value_size);
    if (!e->table.one_symbol) {
        words = e->kernels->encode(e->symbols + first, count, p->lane_values, e->coding, &e->shuffles, states,
                                   e->words, flagged);
        coded = float_align(sizeof states + 2ull * words);
    }
    uint32_t found = 0;
    if (by_quantum || memchr(flagged, 1, (count - 1) / ((size_t)FLOAT_LANES * (size_t)p->lane_values) + 1))
        found = list_exceptions(e, p, b, first, count, flagged, positions);
    if (found) coded += float_align(2 * found) + float_align(found * (uint64_t)b->value_size);
    if (found > FLOAT_MAX_EXCEPTIONS || coded >= raw) {
        put_raw(e, b, first, count, *end);
        *end = pad(*end, *end + count * (size_t)b->value_size);
        return FLOAT_CHUNK_RAW;
    }
    if (!e->table.one_symbol) {
        memcpy(*end, states, sizeof states);
        memcpy(*end + sizeof states, e->words, 2ull * words);
        *end = pad(*end, *end + sizeof states + 2ull * words);
    }
    if (found) {
        memcpy(*end, positions, 2ull * found);
        *end = pad(*end, *end + 2ull * found);
        for (uint32_t i = 0; i < found; i++)
            put_value(e, b, first + positions[i], *end + i * (size_t)b->value_size);
        *end = pad(*end, *end + found * (size_t)b->value_size);
    }
    return words | found << 16;
}

/* Codes e->symbols[0 .. count). Symbols of exceptions by quantum are overwritten: their values are in tops. */
static void put_block(encoder *e, plane *p, uint64_t number, const block *b) {
    uint32_t counts[256];
    count_symbols(e, p, b, counts);
    float_normalise(counts, &e->table);
    if (!e->table.one_symbol) float_coding_table(&e->table, e->coding);
    for (size_t i = 0; b->exceptions && i < (b->count + 31) / 32; i++)
        for (uint32_t bits = b->exceptions[i]; bits; bits &= bits - 1)
            e->symbols[32 * i + (size_t)__builtin_ctz(bits)] = (uint8_t)e->table.most_frequent;
    p->end += float_pack_table(&e->table, p->end);
    for (size_t first = 0; first < b->count; first += FLOAT_CHUNK) {
        size_t count = float_least(FLOAT_CHUNK, b->count - first);
        uint64_t index = number * FLOAT_CHUNKS_A_BLOCK + first / FLOAT_CHUNK;
        put32(p->out, p->blocks + 1 + index, put_chunk(e, p, b, first, count, &p->end));
    }
    put32(p->out, number + 1, (uint32_t)((uint64_t)(p->end - p->records) / 16));
}

/* ---- Streams ---- */

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
    put32(out, 1, s->plan->entry_count);
    memcpy(out + 8, &input->n, 8);
    memcpy(out + 16, &s->m, 8);
    out[24] = (uint8_t)tail;
    if (tail) memcpy(out + 32, input->data + input->size - tail, tail);
    out += FLOAT_HEADER_SIZE;
    for (uint32_t i = 0; i < s->plan->entry_count; i++, out += FLOAT_MATRIX_SIZE) {
        const float_entry *entry = &s->plan->entries[i];
        put32(out, 0, entry->rows);
        put32(out, 1, entry->cols);
        put32(out, 2, entry->base | (uint32_t)(entry->cols > 0) << 16);
        put32(out, 3, 0);
    }
    return out;
}

/* Places the raw planes and zeroes their gaps; returns where the main coded plane begins. */
static uint8_t *place_planes(stream *s, uint8_t *out) {
    int word = s->input->word;
    uint64_t first = s->plan->layout == LAYOUT_LOG ? (s->m + 7) / 8 : s->m;
    if (!(s->flags & FLAG_SIGN_CONSTANT)) {
        s->first = out;
        out = pad(out, out + first);
    }
    if (s->plan->layout == LAYOUT_LOG && !(s->flags & FLAG_NO_NIBBLES)) {
        s->second = out;
        out = pad(out, out + (s->m + 1) / 2);
    }
    if (word > 2 && !(s->flags & FLAG_NO_LOW)) {
        s->low = out;
        out = pad(out, out + s->m * ((uint64_t)word - 2));
    }
    return out;
}

/* The next `count` coded words and what is predicted for them; a pointer into the input, or to e->kept_words. */
static const void *next_words(encoder *e, stream *s, size_t count, const uint16_t **prediction) {
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
static void split_block(encoder *e, stream *s, uint64_t start, size_t count) {
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

static uint8_t *put_words(encoder *e, stream *s, uint8_t *out) {
    int word = s->input->word, logarithmic = s->plan->layout == LAYOUT_LOG;
    plane p = begin_plane(out, s->m, 16 / word, s->plan->sampling);
    for (uint64_t number = 0; number < p.blocks; number++) {
        uint64_t start = number * FLOAT_BLOCK;
        size_t count = float_least(FLOAT_BLOCK, s->m - start);
        split_block(e, s, start, count);
        block b = {count, NULL, NULL, NULL, 1};
        if (logarithmic) {
            b.exceptions = e->exceptions;
            b.tops = e->tops;
            b.low = s->low ? s->low + start * ((uint64_t)word - 2) : NULL;
            b.value_size = word;
        }
        put_block(e, &p, number, &b);
    }
    return p.end;
}

static uint8_t *put_byte_planes(encoder *e, const stream *s, uint8_t *out) {
    size_t word = (size_t)s->input->word;
    for (size_t j = word; j-- > 0;) {
        plane p = begin_plane(out, s->m, FLOAT_PLAIN_V, s->plan->sampling);
        for (uint64_t number = 0; number < p.blocks; number++) {
            uint64_t start = number * FLOAT_BLOCK;
            block b = {float_least(FLOAT_BLOCK, s->m - start), NULL, NULL, NULL, 1};
            const uint8_t *bytes = s->input->data + start * word + j;
            for (size_t i = 0; i < b.count; i++) e->symbols[i] = bytes[i * word];
            put_block(e, &p, number, &b);
        }
        out = p.end;
    }
    return out;
}

static uint8_t *put_side(encoder *e, const stream *s, uint8_t *out) {
    plane p = begin_plane(out, s->plan->side_size, FLOAT_PLAIN_V, 1);
    for (uint64_t number = 0; number < p.blocks; number++) {
        uint64_t start = number * FLOAT_BLOCK;
        block b = {float_least(FLOAT_BLOCK, s->plan->side_size - start), NULL, NULL, NULL, 1};
        memcpy(e->symbols, s->plan->side + start, b.count);
        put_block(e, &p, number, &b);
    }
    return p.end;
}

static uint8_t *put_bitmap(encoder *e, const stream *s, uint8_t *out) {
    uint64_t size = (s->input->n + 7) / 8, word = (uint64_t)s->input->word;
    plane p = begin_plane(out, size, FLOAT_PLAIN_V, 1);
    for (uint64_t number = 0; number < p.blocks; number++) {
        uint64_t start = number * FLOAT_BLOCK;
        block b = {float_least(FLOAT_BLOCK, size - start), NULL, NULL, NULL, 1};
        e->kernels->bitmap(s->input->data + 8 * start * word, float_least(8 * b.count, s->input->n - 8 * start),
                           s->input->word, e->symbols);
        put_block(e, &p, number, &b);
    }
    return p.end;
}

int64_t float_encode_stream(const float_input *input, const float_kernels *kernels, uint8_t *out) {
    float_plan plan;
    int error = float_make_plan(input, kernels, &plan);
    encoder *e = malloc(sizeof *e);
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
    uint64_t directory = float_align(4 * (blocks_of(count) + 1 + chunks_of(count)));
    return count ? directory + blocks_of(count) * table + chunks_of(count) * 16 + count * value_size : 0;
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
