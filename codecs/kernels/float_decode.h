/* What the two files of the decoder share: its working space, and the chunks of a coded plane (16.6). */
#ifndef NVCKPT_FLOAT_DECODE_H
#define NVCKPT_FLOAT_DECODE_H

#include "float_parse.h"

/* To the first-level cache's lines */
#define ALIGNED __attribute__((aligned(64)))

typedef struct {
    const float_kernels *kernels;
    float_shuffles shuffles;
    float_table table;
    ALIGNED float_spreads spreads;
    ALIGNED uint32_t slots[FLOAT_PROBABILITY_SUM];
    ALIGNED uint8_t symbols[2][FLOAT_CHUNK + 64]; /* of two neighbouring chunks */
    ALIGNED uint16_t prediction[FLOAT_PIECE];
    int32_t constant;                 /* all of `prediction`, or -1 */
    uint64_t coded[FLOAT_PIECE + 80]; /* transformed words; with zeros removed, also what the last piece left over */
    uint64_t expanded[FLOAT_PIECE];
    uint8_t first[FLOAT_PIECE / 8], second[FLOAT_PIECE / 2], low[6 * FLOAT_PIECE]; /* planes that are left out */
    float_entry *entries;
    uint8_t *side, *bitmap;
} float_decoder;

/* A chunk of a plane: its record's parts, its symbols once they are decoded, and the values that stand for some. */
typedef struct {
    size_t count;
    const uint8_t *raw;   /* all values, if the chunk is raw */
    const uint8_t *coded; /* states and words, if the table has more than one symbol */
    uint32_t words, exceptions;
    const uint8_t *positions, *values;
    uint8_t *symbols;
} float_chunk;

/* What is done with a chunk; `first` is the number of its first symbol. */
typedef int (*float_taker)(float_decoder *d, void *context, uint64_t first, const float_chunk *c);

/* Calls `take` with every chunk in order. */
int float_read_plane(float_decoder *d, const float_coded_plane *p, float_taker take, void *context);

#endif
