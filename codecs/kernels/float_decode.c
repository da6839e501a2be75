/* A stream to words: every rule of 16.8 is checked before a word is written, and nothing is believed before.
 *
 * Scratch: about half a MiB, the side plane and the bitmap of zeros; both are smaller than the words they describe.
 */
#include <stdlib.h>

#include "float_cpu.h"

/* ---- Coded planes (16.6) ---- */

typedef struct {
    const uint8_t *start, *info, *records;
    uint64_t count, blocks, size; /* symbols; bytes of the whole plane */
    int value_size, lane_values;
} plane;

static uint32_t get32(const uint8_t *from, uint64_t index) {
    uint32_t value;
    memcpy(&value, from + 4 * index, 4);
    return value;
}

static uint64_t block_start(const plane *p, uint64_t block) { return 16ull * get32(p->start, block); }

static size_t chunk_length(const plane *p, uint64_t chunk) {
    return float_least(FLOAT_CHUNK, p->count - chunk * FLOAT_CHUNK);
}

/* Bytes of a chunk's record; FLOAT_OK or an error. */
static int chunk_size(const plane *p, uint32_t info, size_t length, int one_symbol, uint64_t *size) {
    uint32_t words = info & 0xFFFF, exceptions = info >> 16 & 0x7F;
    if (info & FLOAT_CHUNK_RAW) {
        *size = float_align(length * (uint64_t)p->value_size);
        return info == FLOAT_CHUNK_RAW ? FLOAT_OK : FLOAT_RAW_CHUNK;
    }
    if (info >> 23 || exceptions > length || (one_symbol && words)) return FLOAT_IMPOSSIBLE_CHUNK;
    *size = one_symbol ? 0 : float_align(4 * FLOAT_LANES + 2 * words);
    *size += float_align(2 * exceptions) + float_align(exceptions * (uint64_t)p->value_size);
    return FLOAT_OK;
}

static int check_block(const plane *p, uint64_t block) {
    const uint8_t *record = p->records + block_start(p, block);
    uint64_t length = block_start(p, block + 1) - block_start(p, block), position, size;
    float_table table;
    int error = float_parse_table(record, length, &table, &position);
    uint64_t first = block * FLOAT_CHUNKS_A_BLOCK;
    for (uint64_t i = first; !error && i < first + FLOAT_CHUNKS_A_BLOCK && i * FLOAT_CHUNK < p->count; i++) {
        error = chunk_size(p, get32(p->info, i), chunk_length(p, i), table.one_symbol, &size);
        if (!error) position += size;
    }
    if (error) return error;
    return position == length ? FLOAT_OK : FLOAT_RECORD_LENGTH;
}

/* Fills p and checks the plane that begins at `stream`, of at most `length` bytes. */
static int open_plane(const uint8_t *stream, uint64_t length, uint64_t count, int value_size, int lane_values,
                      plane *p) {
    memset(p, 0, sizeof *p);
    if (count == 0) return FLOAT_OK;
    uint64_t chunks = (count + FLOAT_CHUNK - 1) / FLOAT_CHUNK;
    p->count = count;
    p->blocks = (count + FLOAT_BLOCK - 1) / FLOAT_BLOCK;
    p->value_size = value_size;
    p->lane_values = lane_values;
    uint64_t directory = 4 * (p->blocks + 1 + chunks);
    if (directory > length) return FLOAT_PLANE_CUT;
    p->start = stream;
    p->info = stream + 4 * (p->blocks + 1);
    p->records = stream + float_align(directory);
    if (get32(p->start, 0)) return FLOAT_BLOCK_ORDER;
    for (uint64_t i = 0; i < p->blocks; i++)
        if (get32(p->start, i) > get32(p->start, i + 1)) return FLOAT_BLOCK_ORDER;
    p->size = float_align(directory) + block_start(p, p->blocks);
    if (p->size > length) return FLOAT_PLANE_CUT;
    int error = FLOAT_OK;
    for (uint64_t i = 0; i < p->blocks && !error; i++) error = check_block(p, i);
    return error;
}

/* ---- Parsing (16.1 to 16.5) ---- */

typedef struct {
    int layout, word, tail_size;
    uint32_t flags, entry_count;
    uint64_t n, m;
    const uint8_t *tail, *matrices;
    uint64_t side_size;
    const uint8_t *first, *second, *low; /* raw planes; NULL where they are left out */
    int main_planes;
    plane main[8], side, bitmap;
} parsed;

static uint32_t allowed_flags(const parsed *s) {
    uint32_t allowed = FLAG_ZEROS_REMOVED | (s->entry_count ? FLAG_SIDE_PLANE : 0);
    if (s->layout == LAYOUT_LOG) {
        allowed |= FLAG_SIGN_CONSTANT | FLAG_NO_NIBBLES;
        if (s->flags & FLAG_SIGN_CONSTANT) allowed |= FLAG_SIGN_VALUE;
    }
    return s->layout != LAYOUT_BYTES && s->word > 2 ? allowed | FLAG_NO_LOW : allowed;
}

static int any_byte(const uint8_t *bytes, int from, int to) {
    int any = 0;
    for (int i = from; i < to; i++) any |= bytes[i];
    return any;
}

static int parse_header(const uint8_t *stream, uint64_t length, uint64_t size, parsed *s) {
    memset(s, 0, sizeof *s);
    if (length < FLOAT_HEADER_SIZE + FLOAT_END_SIZE || size > FLOAT_MAX_SIZE) return FLOAT_CUT;
    s->layout = stream[1];
    s->word = stream[2];
    s->flags = stream[3];
    s->entry_count = get32(stream, 1);
    memcpy(&s->n, stream + 8, 8);
    memcpy(&s->m, stream + 16, 8);
    s->tail_size = stream[24];
    s->tail = stream + 32;
    int known_word = s->word == 1 || s->word == 2 || s->word == 4 || s->word == 8;
    if (stream[0] != FLOAT_VERSION || s->layout > LAYOUT_LOG || !known_word || any_byte(stream, 25, 32))
        return FLOAT_UNKNOWN_HEADER;
    if ((s->layout && s->word == 1) || (s->layout == LAYOUT_ROTATED && s->word == 8)) return FLOAT_CONTRADICTION;
    if (s->flags & ~allowed_flags(s) || (s->layout == LAYOUT_BYTES && s->entry_count)) return FLOAT_CONTRADICTION;
    if (s->tail_size >= s->word || s->n > FLOAT_MAX_SIZE || s->n * (uint64_t)s->word + (uint64_t)s->tail_size != size ||
        any_byte(s->tail, s->tail_size, 16))
        return FLOAT_OTHER_SIZE;
    if (s->layout == LAYOUT_LOG && s->n && !s->entry_count) return FLOAT_CONTRADICTION;
    if (s->m > s->n || (s->m < s->n && !(s->flags & FLAG_ZEROS_REMOVED))) return FLOAT_CONTRADICTION;
    s->matrices = stream + FLOAT_HEADER_SIZE;
    if (FLOAT_HEADER_SIZE + FLOAT_MATRIX_SIZE * (uint64_t)s->entry_count > length) return FLOAT_CUT;
    return FLOAT_OK;
}

static int parse_matrices(parsed *s) {
    uint64_t words = 0;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const uint8_t *entry = s->matrices + FLOAT_MATRIX_SIZE * (uint64_t)i;
        uint64_t rows = get32(entry, 0), cols = get32(entry, 1), kind = get32(entry, 2) >> 16;
        int fits = rows > 0 && (cols > 0) == (kind == 1) && (!kind || s->flags & FLAG_SIDE_PLANE);
        if (kind > 1 || get32(entry, 3) || !fits) return FLOAT_IMPOSSIBLE_MATRIX;
        /* Compared with what is left, so that no sum and no product can overflow. */
        if (rows > s->n - words || (cols && rows * cols > s->n - words)) return FLOAT_MATRIX_SUM;
        words += rows * (cols ? cols : 1);
        if (cols) s->side_size += rows + cols;
    }
    return words == s->n || !s->entry_count ? FLOAT_OK : FLOAT_MATRIX_SUM;
}

/* Position after a raw plane, which is noted unless it is left out. */
static uint64_t place_raw(const uint8_t *stream, uint64_t position, uint64_t size, int left_out,
                          const uint8_t **place) {
    if (left_out) return position;
    *place = stream + position;
    return float_align(position + size);
}

static int parse(const uint8_t *stream, uint64_t length, uint64_t size, parsed *s) {
    int error = parse_header(stream, length, size, s);
    if (!error) error = parse_matrices(s);
    if (error) return error;
    uint64_t at = FLOAT_HEADER_SIZE + FLOAT_MATRIX_SIZE * (uint64_t)s->entry_count, m = s->m;
    int logarithmic = s->layout == LAYOUT_LOG;
    if (s->layout == LAYOUT_ROTATED) at = place_raw(stream, at, m, 0, &s->first);
    if (logarithmic) at = place_raw(stream, at, (m + 7) / 8, (s->flags & FLAG_SIGN_CONSTANT) != 0, &s->first);
    if (logarithmic) at = place_raw(stream, at, (m + 1) / 2, (s->flags & FLAG_NO_NIBBLES) != 0, &s->second);
    if (s->layout && s->word > 2)
        at = place_raw(stream, at, m * ((uint64_t)s->word - 2), (s->flags & FLAG_NO_LOW) != 0, &s->low);
    s->main_planes = s->layout ? 1 : s->word;
    for (int i = 0; i < s->main_planes + 2 && !error; i++) {
        if (at > length) return FLOAT_PLANE_CUT;
        const uint8_t *place = stream + at;
        plane *p = i < s->main_planes ? &s->main[i] : i == s->main_planes ? &s->side : &s->bitmap;
        if (i < s->main_planes)
            error = open_plane(place, length - at, m, logarithmic ? s->word : 1,
                               s->layout ? 16 / s->word : FLOAT_PLAIN_V, p);
        else if (i == s->main_planes)
            error = open_plane(place, length - at, s->flags & FLAG_SIDE_PLANE ? s->side_size : 0, 1, FLOAT_PLAIN_V, p);
        else
            error = open_plane(place, length - at, s->flags & FLAG_ZEROS_REMOVED ? (s->n + 7) / 8 : 0, 1,
                               FLOAT_PLAIN_V, p);
        at += p->size;
    }
    if (error) return error;
    return at + FLOAT_END_SIZE == length ? FLOAT_OK : FLOAT_OTHER_LENGTH;
}

int float_check_stream(const uint8_t *stream, uint64_t length, uint64_t size) {
    parsed s;
    return parse(stream, length, size, &s);
}

/* ---- Decoding ---- */

typedef struct {
    const float_kernels *kernels;
    float_shuffles shuffles;
    float_table table;
    uint32_t slots[FLOAT_PROBABILITY_SUM];
    uint8_t symbols[FLOAT_CHUNK + 64];
    uint16_t prediction[FLOAT_PIECE];
    uint64_t coded[FLOAT_CHUNK + 64]; /* transformed words; with zeros removed, also what the last chunk left over */
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
static int read_chunk(decoder *d, const plane *p, uint64_t number, const uint8_t **record, uint8_t *symbols,
                      chunk *c) {
    uint32_t info = get32(p->info, number), words = info & 0xFFFF;
    uint64_t size = 0;
    memset(c, 0, sizeof *c);
    c->count = chunk_length(p, number);
    const uint8_t *body = *record;
    int error = chunk_size(p, info, c->count, d->table.one_symbol, &size);
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
static int read_table(decoder *d, const plane *p, uint64_t block, const uint8_t **record) {
    uint64_t size;
    *record = p->records + block_start(p, block);
    int error = float_parse_table(*record, block_start(p, block + 1) - block_start(p, block), &d->table, &size);
    if (!error && !d->table.one_symbol) float_slot_table(&d->table, d->slots);
    *record += size;
    return error;
}

/* Calls `take` with every chunk in order. */
typedef int (*taker)(decoder *d, void *context, uint64_t first, const chunk *c);

static int read_plane(decoder *d, const plane *p, taker take, void *context) {
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
    const parsed *s;
    float_cursor cursor;
    uint8_t *out;
    uint64_t written; /* words */
    size_t left;      /* transformed words in d->coded from the chunk before */
} sink;

/* Transformed words of a chunk, from symbols and raw planes, to d->coded from word `at` on. */
static void join_chunk(decoder *d, const parsed *s, uint64_t first, const chunk *c, uint8_t *coded) {
    size_t word = (size_t)s->word, low_size = word - 2;
    const uint8_t *symbols = s->layout == LAYOUT_LOG ? d->symbols : patched_symbols(d, c);
    for (size_t i = 0; i < c->count; i += FLOAT_PIECE) {
        uint64_t at = first + i;
        d->kernels->join(symbols + i, s->first ? s->first + (s->layout == LAYOUT_LOG ? at / 8 : at) : d->first,
                         s->second ? s->second + at / 2 : d->second, s->low ? s->low + at * low_size : d->low,
                         float_least(FLOAT_PIECE, c->count - i), s->word, s->layout, coded + i * word);
    }
    if (s->layout != LAYOUT_LOG) return;
    for (uint32_t i = 0; i < c->exceptions; i++)
        memcpy(coded + ((const float_u16 *)c->positions)[i] * word, c->values + i * word, word);
}

static void emit(decoder *d, sink *to, const uint8_t *coded, size_t count) {
    const parsed *s = to->s;
    for (size_t i = 0; i < count; i += FLOAT_PIECE) {
        size_t length = float_least(FLOAT_PIECE, count - i);
        float_predict(&to->cursor, d->prediction, length);
        d->kernels->untransform(coded + i * (size_t)s->word, d->prediction, length, s->word, s->layout,
                                to->out + to->written * (uint64_t)s->word);
        to->written += length;
    }
}

static uint64_t bits_from(const uint8_t *bitmap, uint64_t first, size_t count) {
    uint64_t bits = 0;
    memcpy(&bits, bitmap + first / 8, (count + 7) / 8);
    return bits;
}

/* Writes as many places, 64 at a time, as `available` transformed words reach; returns how many were used. */
static size_t emit_with_zeros(decoder *d, sink *to, const uint8_t *coded, size_t available) {
    const parsed *s = to->s;
    size_t word = (size_t)s->word, used = 0;
    for (;;) {
        uint64_t first = to->written;
        size_t places = 0, kept = 0;
        while (places < FLOAT_PIECE && first + places < s->n) {
            size_t step = float_least(64, s->n - first - places);
            size_t more = (size_t)__builtin_popcountll(bits_from(d->bitmap, first + places, step));
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

static int take_words(decoder *d, void *context, uint64_t first, const chunk *c) {
    sink *to = context;
    size_t word = (size_t)to->s->word;
    uint8_t *buffer = (uint8_t *)d->coded;
    const uint8_t *coded = buffer;
    uint8_t *place = buffer + to->left * word;
    if (!c->raw || to->s->layout != LAYOUT_LOG) join_chunk(d, to->s, first, c, place);
    else if (d->bitmap) memcpy(place, c->raw, c->count * word);
    else coded = c->raw;
    if (!d->bitmap) {
        emit(d, to, coded, c->count);
        return FLOAT_OK;
    }
    size_t available = to->left + c->count, used = emit_with_zeros(d, to, buffer, available);
    to->left = available - used;
    memmove(buffer, buffer + used * word, to->left * word);
    return FLOAT_OK;
}

/* Layout 0 with zeros removed: the m words stand at the front of `out` and are moved from the last to the first. */
static void expand_in_place(const uint8_t *bitmap, uint64_t n, uint64_t m, size_t word, uint8_t *out) {
    for (uint64_t i = n; i-- > 0;) {
        if (bitmap[i / 8] >> i % 8 & 1) memmove(out + i * word, out + --m * word, word);
        else memset(out + i * word, 0, word);
    }
}

static int read_bitmap(decoder *d, const parsed *s) {
    uint64_t size = (s->n + 7) / 8, set = 0;
    d->bitmap = malloc(size + 8);
    if (!d->bitmap) return FLOAT_NO_MEMORY;
    int error = read_plane(d, &s->bitmap, take_bytes, d->bitmap);
    if (error) return error;
    for (uint64_t i = 0; i < size; i += 8) set += (uint64_t)__builtin_popcountll(bits_from(d->bitmap, 8 * i, (size_t)(8 * float_least(8, size - i))));
    int beyond = s->n % 8 && d->bitmap[size - 1] >> s->n % 8;
    return set == s->m && !beyond ? FLOAT_OK : FLOAT_BITMAP;
}

static int read_side(decoder *d, const parsed *s) {
    d->entries = malloc((s->entry_count + 1ull) * sizeof *d->entries);
    d->side = malloc(s->side_size + 1);
    if (!d->entries || !d->side) return FLOAT_NO_MEMORY;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const uint8_t *entry = s->matrices + FLOAT_MATRIX_SIZE * (uint64_t)i;
        d->entries[i].rows = get32(entry, 0);
        d->entries[i].cols = get32(entry, 1);
        d->entries[i].base = get32(entry, 2) & 0xFFFF;
    }
    return read_plane(d, &s->side, take_bytes, d->side);
}

static int read_words(decoder *d, const parsed *s, uint8_t *out) {
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
    parsed s;
    int error = parse(stream, length, size, &s);
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
