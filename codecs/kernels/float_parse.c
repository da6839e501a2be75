/* A stream's sections: every rule of 16.8 that can be checked without decoding is checked here. */
#include "float_parse.h"

/* ---- Coded planes (16.6) ---- */

int float_chunk_size(const float_coded_plane *p, uint32_t info, size_t length, int one_symbol, uint64_t *size) {
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

static int check_block(const float_coded_plane *p, uint64_t block) {
    const uint8_t *record = p->records + float_block_start(p, block);
    uint64_t length = float_block_start(p, block + 1) - float_block_start(p, block), position, size;
    float_table table;
    int error = float_parse_table(record, length, &table, &position);
    uint64_t first = block * FLOAT_CHUNKS_A_BLOCK;
    for (uint64_t i = first; !error && i < first + FLOAT_CHUNKS_A_BLOCK && i * FLOAT_CHUNK < p->count; i++) {
        error = float_chunk_size(p, float_get32(p->info, i), float_chunk_length(p, i), table.one_symbol, &size);
        if (!error) position += size;
    }
    if (error) return error;
    return position == length ? FLOAT_OK : FLOAT_RECORD_LENGTH;
}

/* Fills p and checks the plane that begins at `stream`, of at most `length` bytes. */
static int open_plane(const uint8_t *stream, uint64_t length, uint64_t count, int value_size, int lane_values,
                      float_coded_plane *p) {
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
    if (float_get32(p->start, 0)) return FLOAT_BLOCK_ORDER;
    for (uint64_t i = 0; i < p->blocks; i++)
        if (float_get32(p->start, i) > float_get32(p->start, i + 1)) return FLOAT_BLOCK_ORDER;
    p->size = float_align(directory) + float_block_start(p, p->blocks);
    if (p->size > length) return FLOAT_PLANE_CUT;
    int error = FLOAT_OK;
    for (uint64_t i = 0; i < p->blocks && !error; i++) error = check_block(p, i);
    return error;
}

/* ---- Parsing (16.1 to 16.5) ---- */

static uint32_t allowed_flags(const float_parsed *s) {
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

static int parse_header(const uint8_t *stream, uint64_t length, uint64_t size, float_parsed *s) {
    memset(s, 0, sizeof *s);
    if (length < FLOAT_HEADER_SIZE + FLOAT_END_SIZE || size > FLOAT_MAX_SIZE) return FLOAT_CUT;
    s->layout = stream[1];
    s->word = stream[2];
    s->flags = stream[3];
    s->entry_count = float_get32(stream, 1);
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

static int parse_matrices(float_parsed *s) {
    uint64_t words = 0;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const uint8_t *entry = s->matrices + FLOAT_MATRIX_SIZE * (uint64_t)i;
        uint64_t rows = float_get32(entry, 0), cols = float_get32(entry, 1), kind = float_get32(entry, 2) >> 16;
        int fits = rows > 0 && (cols > 0) == (kind == 1) && (!kind || s->flags & FLAG_SIDE_PLANE);
        if (kind > 1 || float_get32(entry, 3) || !fits) return FLOAT_IMPOSSIBLE_MATRIX;
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

int float_parse(const uint8_t *stream, uint64_t length, uint64_t size, float_parsed *s) {
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
        float_coded_plane *p = i < s->main_planes ? &s->main[i] : i == s->main_planes ? &s->side : &s->bitmap;
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
    float_parsed s;
    return float_parse(stream, length, size, &s);
}
