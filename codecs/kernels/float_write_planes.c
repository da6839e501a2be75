/* Symbols to coded planes (16.6): the table of a block, its chunks and their exceptions (decisions 11 and 12). */
#include "float_encode.h"

float_plane_writer float_begin_plane(uint8_t *out, uint64_t count, int lane_values, int sampling) {
    float_plane_writer p = {.out = out, .lane_values = lane_values, .sampling = sampling};
    uint64_t directory = count ? float_align(4 * (float_blocks_of(count) + 1 + float_chunks_of(count))) : 0;
    memset(out, 0, directory);
    p.blocks = float_blocks_of(count);
    p.records = p.end = out + directory;
    return p;
}

/* Decision 11: the sampled rows, less the words that are exceptions by their quantum. */
static void count_symbols(const float_encoder *e, const float_plane_writer *p, const float_block *b,
                          uint32_t counts[256]) {
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

static void put_value(const float_encoder *e, const float_block *b, size_t index, uint8_t *out) {
    if (!b->tops) {
        *out = e->symbols[index];
        return;
    }
    size_t low_size = (size_t)b->value_size - 2;
    if (b->low) memcpy(out, b->low + index * low_size, low_size);
    else memset(out, 0, low_size);
    memcpy(out + low_size, &b->tops[index], 2);
}

static void put_raw(const float_encoder *e, const float_block *b, size_t first, size_t count, uint8_t *out) {
    if (!b->tops) memcpy(out, e->symbols + first, count);
    else if (b->value_size == 2) memcpy(out, b->tops + first, 2 * count);
    else
        for (size_t i = 0; i < count; i++) put_value(e, b, first + i, out + i * (size_t)b->value_size);
}

/* Positions of a chunk's exceptions, ascending; stops at one more than a chunk may have. */
static uint32_t list_exceptions(const float_encoder *e, const float_plane_writer *p, const float_block *b,
                                size_t first, size_t count, const uint8_t *flagged, uint16_t *positions) {
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
static uint32_t put_chunk(float_encoder *e, const float_plane_writer *p, const float_block *b, size_t first,
                          size_t count, uint8_t **end) {
    uint8_t flagged[FLOAT_MAX_ROWS];
    uint16_t positions[FLOAT_MAX_EXCEPTIONS + 1];
    uint32_t states[FLOAT_LANES], words = 0;
    int by_quantum = 0;
    for (size_t i = first / 32; b->exceptions && i < (first + count + 31) / 32; i++)
        by_quantum |= b->exceptions[i] != 0;
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
        *end = float_pad(*end, *end + count * (size_t)b->value_size);
        return FLOAT_CHUNK_RAW;
    }
    if (!e->table.one_symbol) {
        memcpy(*end, states, sizeof states);
        memcpy(*end + sizeof states, e->words, 2ull * words);
        *end = float_pad(*end, *end + sizeof states + 2ull * words);
    }
    if (found) {
        memcpy(*end, positions, 2ull * found);
        *end = float_pad(*end, *end + 2ull * found);
        for (uint32_t i = 0; i < found; i++)
            put_value(e, b, first + positions[i], *end + i * (size_t)b->value_size);
        *end = float_pad(*end, *end + found * (size_t)b->value_size);
    }
    return words | found << 16;
}

void float_put_block(float_encoder *e, float_plane_writer *p, uint64_t number, const float_block *b) {
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
        float_put32(p->out, p->blocks + 1 + index, put_chunk(e, p, b, first, count, &p->end));
    }
    float_put32(p->out, number + 1, (uint32_t)((uint64_t)(p->end - p->records) / 16));
}
