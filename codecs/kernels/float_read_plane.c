/* A coded plane to the chunks' symbols (16.6, 16.7); float_parse.c has checked its directories and tables. */
#include "float_decode.h"

static int check_positions(const float_chunk *c) {
    int32_t before = -1;
    for (uint32_t i = 0; i < c->exceptions; i++) {
        int32_t position = ((const float_u16 *)c->positions)[i];
        if (position <= before || (size_t)position >= c->count) return FLOAT_EXCEPTION_ORDER;
        before = position;
    }
    return FLOAT_OK;
}

/* Finds the parts of the chunk whose record is at *record, and moves *record behind it. */
static int find_chunk(float_decoder *d, const float_coded_plane *p, uint64_t number, const uint8_t **record,
                      float_chunk *c) {
    uint32_t info = float_get32(p->info, number);
    uint64_t size = 0;
    memset(c, 0, sizeof *c);
    c->count = float_chunk_length(p, number);
    c->symbols = d->symbols[number % 2];
    const uint8_t *body = *record;
    int error = float_chunk_size(p, info, c->count, d->table.one_symbol, &size);
    *record += size;
    if (error) return error;
    if (info & FLOAT_CHUNK_RAW) {
        c->raw = body;
        return FLOAT_OK;
    }
    c->exceptions = info >> 16 & 0x7F;
    if (!d->table.one_symbol) {
        c->coded = body;
        c->words = info & 0xFFFF;
        body += float_align(4 * FLOAT_LANES + 2 * c->words);
    }
    c->positions = body;
    c->values = body + float_align(2 * c->exceptions);
    return FLOAT_OK;
}

static int decode_chunk(float_decoder *d, const float_coded_plane *p, float_chunk *c) {
    int error = FLOAT_OK;
    if (c->coded)
        error = d->kernels->decode(c->coded, c->words, c->count, p->lane_values, d->slots, &d->spreads, c->symbols);
    else if (!c->raw) memset(c->symbols, (int)d->table.most_frequent, c->count);
    return error ? error : check_positions(c);
}

/* Two whole chunks at once where the kernels have that. What is wrong with either is left to `decode_chunk` to say:
 * the first error of the stream is the one that is told. */
static int decoded_as_pair(float_decoder *d, const float_coded_plane *p, const float_chunk *a, const float_chunk *b) {
    if (!d->kernels->decode_pair || !a->coded || !b->coded || b->count != FLOAT_CHUNK) return 0;
    const uint8_t *records[2] = {a->coded, b->coded};
    uint8_t *symbols[2] = {a->symbols, b->symbols};
    uint32_t words[2] = {a->words, b->words};
    if (d->kernels->decode_pair(records, words, p->lane_values, d->slots, &d->spreads, symbols)) return 0;
    return check_positions(a) == FLOAT_OK && check_positions(b) == FLOAT_OK;
}

/* The table of a block, and where its first chunk's record begins. */
static int read_table(float_decoder *d, const float_coded_plane *p, uint64_t block, const uint8_t **record) {
    uint64_t size;
    *record = p->records + float_block_start(p, block);
    uint64_t length = float_block_start(p, block + 1) - float_block_start(p, block);
    int error = float_parse_table(*record, length, &d->table, &size);
    if (!error && !d->table.one_symbol) float_slot_table(&d->table, d->slots);
    *record += size;
    return error;
}

int float_read_plane(float_decoder *d, const float_coded_plane *p, float_taker take, void *context) {
    const uint8_t *record = NULL;
    float_chunk chunks[2];
    int error = FLOAT_OK;
    for (uint64_t first = 0; !error && first * FLOAT_CHUNK < p->count; first += 2) {
        int number = (first + 1) * FLOAT_CHUNK < p->count ? 2 : 1;
        if (first % FLOAT_CHUNKS_A_BLOCK == 0) error = read_table(d, p, first / FLOAT_CHUNKS_A_BLOCK, &record);
        for (int i = 0; i < number && !error; i++)
            error = find_chunk(d, p, first + (uint64_t)i, &record, &chunks[i]);
        int decoded = !error && number == 2 && decoded_as_pair(d, p, &chunks[0], &chunks[1]);
        for (int i = 0; i < number && !error; i++) {
            if (!decoded) error = decode_chunk(d, p, &chunks[i]);
            if (!error) error = take(d, context, (first + (uint64_t)i) * FLOAT_CHUNK, &chunks[i]);
        }
    }
    return error;
}
