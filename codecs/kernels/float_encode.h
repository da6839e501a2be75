/* What writes coded planes (float_write_planes.c), and the scratch of an encoder, for float_encode.c. */
#ifndef NVCKPT_FLOAT_ENCODE_H
#define NVCKPT_FLOAT_ENCODE_H

#include "float_cpu.h"

/* Scratch of one call */
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
} float_encoder;

/* A plane being written: `start` and `info` stand before the records. */
typedef struct {
    uint8_t *out, *records, *end;
    uint64_t blocks, chunks;
    int lane_values, sampling;
} float_plane_writer;

/* What the symbols of a block are, and what exceptions and raw chunks keep of them. */
typedef struct {
    size_t count;
    const uint32_t *exceptions; /* NULL: every word has a symbol */
    const uint16_t *tops;       /* NULL: values are symbols */
    const uint8_t *low;         /* the words' low bytes; NULL if they are all zero */
    int value_size;
} float_block;

FLOAT_INLINE uint64_t float_blocks_of(uint64_t count) { return (count + FLOAT_BLOCK - 1) / FLOAT_BLOCK; }
FLOAT_INLINE uint64_t float_chunks_of(uint64_t count) { return (count + FLOAT_CHUNK - 1) / FLOAT_CHUNK; }

FLOAT_INLINE void float_put32(uint8_t *out, uint64_t index, uint32_t value) { memcpy(out + 4 * index, &value, 4); }

FLOAT_INLINE uint8_t *float_pad(uint8_t *from, uint8_t *end) {
    uint8_t *aligned = from + float_align((uint64_t)(end - from));
    memset(end, 0, (size_t)(aligned - end));
    return aligned;
}

float_plane_writer float_begin_plane(uint8_t *out, uint64_t count, int lane_values, int sampling);
/* Codes e->symbols[0 .. count). Symbols of exceptions by quantum are overwritten: their values are in tops. */
void float_put_block(float_encoder *e, float_plane_writer *p, uint64_t number, const float_block *b);

#endif
