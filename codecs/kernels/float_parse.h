/* What a stream says about itself (16.1 to 16.6), checked by float_parse.c before float_decode.c reads by it. */
#ifndef NVCKPT_FLOAT_PARSE_H
#define NVCKPT_FLOAT_PARSE_H

#include "float_cpu.h"

/* A coded plane in a stream */
typedef struct {
    const uint8_t *start, *info, *records;
    uint64_t count, blocks, size; /* symbols; bytes of the whole plane */
    int value_size, lane_values;
} float_coded_plane;

/* A stream's header and where its sections lie */
typedef struct {
    int layout, word, tail_size;
    uint32_t flags, entry_count;
    uint64_t n, m;
    const uint8_t *tail, *matrices;
    uint64_t side_size;
    const uint8_t *first, *second, *low; /* raw planes; NULL where they are left out */
    int main_planes;
    float_coded_plane main[8], side, bitmap;
} float_parsed;

FLOAT_INLINE uint32_t float_get32(const uint8_t *from, uint64_t index) {
    uint32_t value;
    memcpy(&value, from + 4 * index, 4);
    return value;
}

FLOAT_INLINE uint64_t float_block_start(const float_coded_plane *p, uint64_t block) {
    return 16ull * float_get32(p->start, block);
}

FLOAT_INLINE size_t float_chunk_length(const float_coded_plane *p, uint64_t chunk) {
    return float_least(FLOAT_CHUNK, p->count - chunk * FLOAT_CHUNK);
}

/* Bytes of a chunk's record; FLOAT_OK or an error. */
int float_chunk_size(const float_coded_plane *p, uint32_t info, size_t length, int one_symbol, uint64_t *size);
/* Header, matrices, directories and tables against the stream's length and the original size; FLOAT_OK or an error. */
int float_parse(const uint8_t *stream, uint64_t length, uint64_t size, float_parsed *s);

#endif
