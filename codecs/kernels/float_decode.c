/* A stream to words: every rule of 16.8 is checked before a word is written, and nothing is believed before.
 *
 * Scratch: about half a MiB, the side plane and the bitmap of zeros; both are smaller than the words they describe.
 */
#include <stdlib.h>

#include "float_decode.h"

/* Puts exceptions and raw chunks of a plane whose values are symbols in their places. */
static const uint8_t *patched_symbols(const float_chunk *c) {
    if (c->raw) return c->raw;
    for (uint32_t i = 0; i < c->exceptions; i++)
        c->symbols[((const float_u16 *)c->positions)[i]] = c->values[i];
    return c->symbols;
}

static int take_bytes(float_decoder *d, void *context, uint64_t first, const float_chunk *c) {
    (void)d;
    memcpy((uint8_t *)context + first, patched_symbols(c), c->count);
    return FLOAT_OK;
}

typedef struct {
    uint8_t *out; /* where byte j of the first word goes */
    size_t word;
} byte_plane;

static int take_byte_plane(float_decoder *d, void *context, uint64_t first, const float_chunk *c) {
    (void)d;
    const byte_plane *to = context;
    const uint8_t *symbols = patched_symbols(c);
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

/* Raw planes from word `at` on; what is left out is read from constants. */
typedef struct {
    const uint8_t *first, *second, *low;
} raw_planes;

static raw_planes planes_at(const float_decoder *d, const float_parsed *s, uint64_t at) {
    raw_planes planes = {d->first, d->second, d->low};
    if (s->first) planes.first = s->first + (s->layout == LAYOUT_LOG ? at / 8 : at);
    if (s->second) planes.second = s->second + at / 2;
    if (s->low) planes.low = s->low + at * ((uint64_t)s->word - 2);
    return planes;
}

/* The symbols of a chunk from `start` on; in layout rotated all exceptions are in their places. */
static const uint8_t *symbols_at(const float_parsed *s, const float_chunk *c, size_t start) {
    return (s->layout == LAYOUT_ROTATED && c->raw ? c->raw : c->symbols) + start;
}

/* Transformed words of a piece of a chunk, from symbols and raw planes. `next` counts the exceptions before it. */
static void join_piece(float_decoder *d, const float_parsed *s, uint64_t first, const float_chunk *c, size_t start,
                       size_t count, uint32_t *next, uint8_t *coded) {
    size_t word = (size_t)s->word;
    raw_planes planes = planes_at(d, s, first + start);
    d->kernels->join(symbols_at(s, c, start), planes.first, planes.second, planes.low, count, s->word, s->layout,
                     coded);
    for (; s->layout == LAYOUT_LOG && *next < c->exceptions; ++*next) {
        size_t position = ((const float_u16 *)c->positions)[*next];
        if (position >= start + count) return;
        memcpy(coded + (position - start) * word, c->values + *next * word, word);
    }
}

/* Pieces of flat matrices, which weights are, have the same prediction one after the other. */
static void predict(float_decoder *d, float_cursor *cursor, size_t count) {
    int32_t constant = float_constant(cursor, count);
    if (constant >= 0 && constant == d->constant) {
        float_skip(cursor, count);
        return;
    }
    float_predict(cursor, d->prediction, count);
    d->constant = count == FLOAT_PIECE ? constant : -1;
}

/* The words of a piece of a chunk where none were removed. `next` counts the exceptions before it. */
static void restore_piece(float_decoder *d, sink *to, uint64_t first, const float_chunk *c, size_t start, size_t count,
                          uint32_t *next) {
    const float_parsed *s = to->s;
    size_t word = (size_t)s->word;
    uint8_t *out = to->out + (first + start) * word;
    predict(d, &to->cursor, count);
    if (c->raw && s->layout == LAYOUT_LOG) {
        d->kernels->untransform(c->raw + start * word, d->prediction, count, s->word, s->layout, out);
        return;
    }
    raw_planes planes = planes_at(d, s, first + start);
    d->kernels->restore(symbols_at(s, c, start), planes.first, planes.second, planes.low, d->prediction, count, s->word,
                        s->layout, out);
    for (; s->layout == LAYOUT_LOG && *next < c->exceptions; ++*next) {
        size_t position = ((const float_u16 *)c->positions)[*next];
        if (position >= start + count) return;
        d->kernels->untransform(c->values + *next * word, d->prediction + (position - start), 1, s->word, s->layout,
                                out + (position - start) * word);
    }
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
static size_t emit_with_zeros(float_decoder *d, sink *to, const uint8_t *coded, size_t available) {
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
        predict(d, &to->cursor, places);
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
static int take_words(float_decoder *d, void *context, uint64_t first, const float_chunk *c) {
    sink *to = context;
    size_t word = (size_t)to->s->word;
    int raw_words = c->raw && to->s->layout == LAYOUT_LOG;
    uint8_t *buffer = (uint8_t *)d->coded;
    uint32_t next = 0;
    if (to->s->layout == LAYOUT_ROTATED) patched_symbols(c);
    for (size_t start = 0; start < c->count; start += FLOAT_PIECE) {
        size_t count = float_least(FLOAT_PIECE, c->count - start);
        if (!d->bitmap) {
            restore_piece(d, to, first, c, start, count, &next);
            continue;
        }
        uint8_t *place = buffer + to->left * word;
        if (raw_words) memcpy(place, c->raw + start * word, count * word);
        else join_piece(d, to->s, first, c, start, count, &next, place);
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

static int read_bitmap(float_decoder *d, const float_parsed *s) {
    uint64_t size = (s->n + 7) / 8, set = 0;
    d->bitmap = malloc(size + 8);
    if (!d->bitmap) return FLOAT_NO_MEMORY;
    memset(d->bitmap + size, 0, 8);
    int error = float_read_plane(d, &s->bitmap, take_bytes, d->bitmap);
    if (error) return error;
    for (uint64_t i = 0; i < size; i += 8)
        set += bits_set(d->bitmap, 8 * i);
    int beyond = s->n % 8 && d->bitmap[size - 1] >> s->n % 8;
    return set == s->m && !beyond ? FLOAT_OK : FLOAT_BITMAP;
}

static int read_side(float_decoder *d, const float_parsed *s) {
    d->entries = malloc((s->entry_count + 1ull) * sizeof *d->entries);
    d->side = malloc(s->side_size + 1);
    if (!d->entries || !d->side) return FLOAT_NO_MEMORY;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const uint8_t *entry = s->matrices + FLOAT_MATRIX_SIZE * (uint64_t)i;
        d->entries[i].rows = float_get32(entry, 0);
        d->entries[i].cols = float_get32(entry, 1);
        d->entries[i].base = float_get32(entry, 2) & 0xFFFF;
    }
    return float_read_plane(d, &s->side, take_bytes, d->side);
}

static int read_words(float_decoder *d, const float_parsed *s, uint8_t *out) {
    int error = FLOAT_OK;
    if (s->layout == LAYOUT_BYTES) {
        for (int i = 0; i < s->word && !error; i++) {
            byte_plane to = {out + s->word - 1 - i, (size_t)s->word};
            error = float_read_plane(d, &s->main[i], take_byte_plane, &to);
        }
        if (!error && d->bitmap) expand_in_place(d->bitmap, s->n, s->m, (size_t)s->word, out);
        return error;
    }
    memset(d->first, s->flags & FLAG_SIGN_VALUE ? 0xFF : 0, sizeof d->first);
    memset(d->second, 0, sizeof d->second);
    memset(d->low, 0, sizeof d->low);
    sink to = {.s = s, .out = out};
    to.cursor = float_cursor_at_start(d->entries, s->entry_count, d->side);
    error = float_read_plane(d, &s->main[0], take_words, &to);
    /* Zeros after the last word that remains, or all there is. */
    if (!error && d->bitmap) emit_with_zeros(d, &to, (const uint8_t *)d->coded, to.left);
    return error;
}

int float_decode_stream(const uint8_t *stream, uint64_t length, uint8_t *out, uint64_t size,
                        const float_kernels *kernels) {
    float_parsed s;
    int error = float_parse(stream, length, size, &s);
    if (error) return error;
    float_decoder *d = aligned_alloc(64, sizeof *d);
    if (!d) return FLOAT_NO_MEMORY;
    d->kernels = kernels;
    d->side = d->bitmap = NULL;
    d->entries = NULL;
    d->constant = -1;
    kernels->decode_shuffles(&d->shuffles);
    kernels->spreads(&d->spreads);
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
