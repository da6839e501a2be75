/* A stream to words: every rule of 16.8 is checked before a word is written, and nothing is believed before.
 *
 * Scratch: about half a MiB, the side plane and the bitmap of zeros; both are smaller than the words they describe.
 */
#include <stdlib.h>

#include "float_parse.h"

typedef struct {
    const float_kernels *kernels;
    float_shuffles shuffles;
    float_table table;
    uint32_t slots[FLOAT_PROBABILITY_SUM];
    uint8_t symbols[FLOAT_CHUNK + 64];
    uint16_t prediction[FLOAT_PIECE];
    uint64_t coded[FLOAT_PIECE + 80]; /* transformed words; with zeros removed, also what the last piece left over */
    uint64_t expanded[FLOAT_PIECE];
    uint8_t first[FLOAT_PIECE / 8], second[FLOAT_PIECE / 2], low[6 * FLOAT_PIECE]; /* planes that are left out */
    float_entry *entries;
    uint8_t *side, *bitmap;
} decoder;

/* A chunk of a plane that was checked: its symbols, and the values that stand for some of them. */
typedef struct {
    size_t count;
    const uint8_t *raw; /* all values, if the chunk is raw */
    uint32_t exceptions;
    const uint8_t *positions, *values;
} chunk;

static int check_positions(const chunk *c) {
    int32_t before = -1;
    for (uint32_t i = 0; i < c->exceptions; i++) {
        int32_t position = ((const float_u16 *)c->positions)[i];
        if (position <= before || (size_t)position >= c->count) return FLOAT_EXCEPTION_ORDER;
        before = position;
    }
    return FLOAT_OK;
}

/* Decodes the chunk whose record is at *record into `symbols`, and moves *record behind it. */
static int read_chunk(decoder *d, const float_coded_plane *p, uint64_t number, const uint8_t **record, uint8_t *symbols,
                      chunk *c) {
    uint32_t info = float_get32(p->info, number), words = info & 0xFFFF;
    uint64_t size = 0;
    memset(c, 0, sizeof *c);
    c->count = float_chunk_length(p, number);
    const uint8_t *body = *record;
    int error = float_chunk_size(p, info, c->count, d->table.one_symbol, &size);
    *record += size;
    if (error) return error;
    if (info & FLOAT_CHUNK_RAW) {
        c->raw = body;
        return FLOAT_OK;
    }
    c->exceptions = info >> 16 & 0x7F;
    if (d->table.one_symbol) {
        memset(symbols, (int)d->table.most_frequent, c->count);
    } else {
        error = d->kernels->decode(body, words, c->count, p->lane_values, d->slots, &d->shuffles, symbols);
        if (error) return error;
        body += float_align(4 * FLOAT_LANES + 2 * words);
    }
    c->positions = body;
    c->values = body + float_align(2 * c->exceptions);
    return check_positions(c);
}

/* The table of a block, and where its first chunk's record begins. */
static int read_table(decoder *d, const float_coded_plane *p, uint64_t block, const uint8_t **record) {
    uint64_t size;
    *record = p->records + float_block_start(p, block);
    uint64_t length = float_block_start(p, block + 1) - float_block_start(p, block);
    int error = float_parse_table(*record, length, &d->table, &size);
    if (!error && !d->table.one_symbol) float_slot_table(&d->table, d->slots);
    *record += size;
    return error;
}

/* Calls `take` with every chunk in order. */
typedef int (*taker)(decoder *d, void *context, uint64_t first, const chunk *c);

static int read_plane(decoder *d, const float_coded_plane *p, taker take, void *context) {
    const uint8_t *record = NULL;
    chunk c;
    int error = FLOAT_OK;
    for (uint64_t number = 0; !error && number * FLOAT_CHUNK < p->count; number++) {
        if (number % FLOAT_CHUNKS_A_BLOCK == 0) error = read_table(d, p, number / FLOAT_CHUNKS_A_BLOCK, &record);
        if (!error) error = read_chunk(d, p, number, &record, d->symbols, &c);
        if (!error) error = take(d, context, number * FLOAT_CHUNK, &c);
    }
    return error;
}

/* Puts exceptions and raw chunks of a plane whose values are symbols in their places. */
static const uint8_t *patched_symbols(decoder *d, const chunk *c) {
    if (c->raw) return c->raw;
    for (uint32_t i = 0; i < c->exceptions; i++)
        d->symbols[((const float_u16 *)c->positions)[i]] = c->values[i];
    return d->symbols;
}

static int take_bytes(decoder *d, void *context, uint64_t first, const chunk *c) {
    memcpy((uint8_t *)context + first, patched_symbols(d, c), c->count);
    return FLOAT_OK;
}

typedef struct {
    uint8_t *out; /* where byte j of the first word goes */
    size_t word;
} byte_plane;

static int take_byte_plane(decoder *d, void *context, uint64_t first, const chunk *c) {
    const byte_plane *to = context;
    const uint8_t *symbols = patched_symbols(d, c);
    uint8_t *out = to->out + first * to->word;
    for (size_t i = 0; i < c->count; i++) out[i * to->word] = symbols[i];
    return FLOAT_OK;
}

typedef struct {
    const float_parsed *s;
    float_cursor cursor;
    uint8_t *out;
    uint64_t written; /* words */
    size_t left;      /* transformed words in d->coded from the chunk before */
} sink;

/* Transformed words of a piece of a chunk, from symbols and raw planes. `next` counts the exceptions before it. */
static void join_piece(decoder *d, const float_parsed *s, uint64_t first, const chunk *c, size_t start, size_t count,
                       uint32_t *next, uint8_t *coded) {
    size_t word = (size_t)s->word;
    int logarithmic = s->layout == LAYOUT_LOG;
    const uint8_t *symbols = !logarithmic && c->raw ? c->raw : d->symbols;
    uint64_t at = first + start;
    d->kernels->join(symbols + start, s->first ? s->first + (logarithmic ? at / 8 : at) : d->first,
                     s->second ? s->second + at / 2 : d->second, s->low ? s->low + at * (word - 2) : d->low, count,
                     s->word, s->layout, coded);
    if (!logarithmic) return;
    for (; *next < c->exceptions; ++*next) {
        size_t position = ((const float_u16 *)c->positions)[*next];
        if (position >= start + count) return;
        memcpy(coded + (position - start) * word, c->values + *next * word, word);
    }
}

/* At most a piece of words */
static void emit(decoder *d, sink *to, const uint8_t *coded, size_t count) {
    const float_parsed *s = to->s;
    float_predict(&to->cursor, d->prediction, count);
    d->kernels->untransform(coded, d->prediction, count, s->word, s->layout,
                            to->out + to->written * (uint64_t)s->word);
    to->written += count;
}

/* The number of bits that are set in the bitmap's 8 bytes from bit `first` on; behind the bitmap they are 0. Without
 * an instruction for it the compilers call a slower function. */
static size_t bits_set(const uint8_t *bitmap, uint64_t first) {
    uint64_t bits = *(const float_u64 *)(bitmap + first / 8);
    bits -= bits >> 1 & 0x5555555555555555ull;
    bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
    return (size_t)(((bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0Full) * 0x0101010101010101ull >> 56);
}

/* Writes as many places, 64 at a time, as `available` transformed words reach; returns how many were used. */
static size_t emit_with_zeros(decoder *d, sink *to, const uint8_t *coded, size_t available) {
    const float_parsed *s = to->s;
    size_t word = (size_t)s->word, used = 0;
    for (;;) {
        uint64_t first = to->written;
        size_t places = 0, kept = 0;
        while (places < FLOAT_PIECE && first + places < s->n) {
            size_t step = float_least(64, s->n - first - places);
            size_t more = bits_set(d->bitmap, first + places);
            if (used + kept + more > available) break;
            places += step;
            kept += more;
        }
        if (places == 0) return used;
        const uint8_t *bits = d->bitmap + first / 8;
        float_predict(&to->cursor, d->prediction, places);
        d->kernels->expand(coded + used * word, bits, places, s->word, &d->shuffles, d->expanded);
        d->kernels->untransform(d->expanded, d->prediction, places, s->word, s->layout, to->out + first * word);
        /* In layout log 0 is the word 0 already. */
        for (size_t i = 0; s->layout == LAYOUT_ROTATED && i < places; i++)
            if (!(bits[i / 8] >> i % 8 & 1)) memset(to->out + (first + i) * word, 0, word);
        to->written += places;
        used += kept;
    }
}

/* A piece at a time, which stays in the first-level cache from the planes to the words. */
static int take_words(decoder *d, void *context, uint64_t first, const chunk *c) {
    sink *to = context;
    size_t word = (size_t)to->s->word;
    int raw_words = c->raw && to->s->layout == LAYOUT_LOG;
    uint8_t *buffer = (uint8_t *)d->coded;
    uint32_t next = 0;
    if (to->s->layout == LAYOUT_ROTATED) patched_symbols(d, c);
    for (size_t start = 0; start < c->count; start += FLOAT_PIECE) {
        size_t count = float_least(FLOAT_PIECE, c->count - start);
        uint8_t *place = buffer + to->left * word;
        if (raw_words) memcpy(place, c->raw + start * word, count * word);
        else join_piece(d, to->s, first, c, start, count, &next, place);
        if (!d->bitmap) {
            emit(d, to, buffer, count);
            continue;
        }
        size_t available = to->left + count, used = emit_with_zeros(d, to, buffer, available);
        to->left = available - used;
        memmove(buffer, buffer + used * word, to->left * word);
    }
    return FLOAT_OK;
}

/* Layout 0 with zeros removed: the m words stand at the front of `out` and are moved from the last to the first. */
static void expand_in_place(const uint8_t *bitmap, uint64_t n, uint64_t m, size_t word, uint8_t *out) {
    for (uint64_t i = n; i-- > 0;) {
        if (bitmap[i / 8] >> i % 8 & 1) memmove(out + i * word, out + --m * word, word);
        else memset(out + i * word, 0, word);
    }
}

static int read_bitmap(decoder *d, const float_parsed *s) {
    uint64_t size = (s->n + 7) / 8, set = 0;
    d->bitmap = malloc(size + 8);
    if (!d->bitmap) return FLOAT_NO_MEMORY;
    memset(d->bitmap + size, 0, 8);
    int error = read_plane(d, &s->bitmap, take_bytes, d->bitmap);
    if (error) return error;
    for (uint64_t i = 0; i < size; i += 8)
        set += bits_set(d->bitmap, 8 * i);
    int beyond = s->n % 8 && d->bitmap[size - 1] >> s->n % 8;
    return set == s->m && !beyond ? FLOAT_OK : FLOAT_BITMAP;
}

static int read_side(decoder *d, const float_parsed *s) {
    d->entries = malloc((s->entry_count + 1ull) * sizeof *d->entries);
    d->side = malloc(s->side_size + 1);
    if (!d->entries || !d->side) return FLOAT_NO_MEMORY;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const uint8_t *entry = s->matrices + FLOAT_MATRIX_SIZE * (uint64_t)i;
        d->entries[i].rows = float_get32(entry, 0);
        d->entries[i].cols = float_get32(entry, 1);
        d->entries[i].base = float_get32(entry, 2) & 0xFFFF;
    }
    return read_plane(d, &s->side, take_bytes, d->side);
}

static int read_words(decoder *d, const float_parsed *s, uint8_t *out) {
    int error = FLOAT_OK;
    if (s->layout == LAYOUT_BYTES) {
        for (int i = 0; i < s->word && !error; i++) {
            byte_plane to = {out + s->word - 1 - i, (size_t)s->word};
            error = read_plane(d, &s->main[i], take_byte_plane, &to);
        }
        if (!error && d->bitmap) expand_in_place(d->bitmap, s->n, s->m, (size_t)s->word, out);
        return error;
    }
    memset(d->first, s->flags & FLAG_SIGN_VALUE ? 0xFF : 0, sizeof d->first);
    memset(d->second, 0, sizeof d->second);
    memset(d->low, 0, sizeof d->low);
    sink to = {.s = s, .out = out};
    to.cursor = float_cursor_at_start(d->entries, s->entry_count, d->side);
    error = read_plane(d, &s->main[0], take_words, &to);
    /* Zeros after the last word that remains, or all there is. */
    if (!error && d->bitmap) emit_with_zeros(d, &to, (const uint8_t *)d->coded, to.left);
    return error;
}

int float_decode_stream(const uint8_t *stream, uint64_t length, uint8_t *out, uint64_t size,
                        const float_kernels *kernels) {
    float_parsed s;
    int error = float_parse(stream, length, size, &s);
    if (error) return error;
    decoder *d = malloc(sizeof *d);
    if (!d) return FLOAT_NO_MEMORY;
    d->kernels = kernels;
    d->side = d->bitmap = NULL;
    d->entries = NULL;
    kernels->decode_shuffles(&d->shuffles);
    if (s.layout != LAYOUT_BYTES) error = read_side(d, &s);
    if (!error && s.flags & FLAG_ZEROS_REMOVED) error = read_bitmap(d, &s);
    if (!error) error = read_words(d, &s, out);
    if (!error && s.tail_size) memcpy(out + s.n * (uint64_t)s.word, s.tail, (size_t)s.tail_size);
    free(d->entries);
    free(d->side);
    free(d->bitmap);
    free(d);
    return error;
}
