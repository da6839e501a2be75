/* What the files of the C float codec share: errors, unaligned words, the kernels' table, the plan and the cursor.
 *
 * Plain C11 for gcc and clang, without Python.h. The stream is FORMAT.md section 16, the oracle is
 * float_reference.py. No global state: every call allocates its own scratch and frees it.
 */
#ifndef NVCKPT_FLOAT_CPU_H
#define NVCKPT_FLOAT_CPU_H

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The C float codec is for little-endian hosts; nvckpt falls back to NumPy."
#endif

#include <stddef.h>
#include <string.h>

#include "float_common.h"

#if defined(__x86_64__) && !defined(NVCKPT_NO_SIMD)
#define FLOAT_HAVE_AVX2 1
#else
#define FLOAT_HAVE_AVX2 0
#endif

#define FLOAT_INLINE static inline __attribute__((always_inline))

/* Buffers come from other people's files, so no pointer into them is aligned. */
typedef uint16_t __attribute__((aligned(1), may_alias)) float_u16;
typedef uint32_t __attribute__((aligned(1), may_alias)) float_u32;
typedef uint64_t __attribute__((aligned(1), may_alias)) float_u64;

/* Numbers are those of float_native.py's table of sentences. */
enum {
    FLOAT_OK,
    FLOAT_CUT,
    FLOAT_UNKNOWN_HEADER,
    FLOAT_CONTRADICTION,
    FLOAT_OTHER_SIZE,
    FLOAT_IMPOSSIBLE_MATRIX,
    FLOAT_MATRIX_SUM,
    FLOAT_OTHER_LENGTH,
    FLOAT_PLANE_CUT,
    FLOAT_BLOCK_ORDER,
    FLOAT_RECORD_LENGTH,
    FLOAT_RAW_CHUNK,
    FLOAT_IMPOSSIBLE_CHUNK,
    FLOAT_TABLE_CUT,
    FLOAT_TABLE_SUM,
    FLOAT_EXCEPTION_ORDER,
    FLOAT_STATE_RANGE,
    FLOAT_TOO_FEW_WORDS,
    FLOAT_OTHER_END,
    FLOAT_BITMAP,
    FLOAT_NO_MEMORY,
    FLOAT_BAD_ARGUMENT,
    FLOAT_NO_ROOM
};

enum { KIND_BYTES, KIND_BF16, KIND_FP16, KIND_FP32, KIND_FP64 };
enum { LEVEL_FAST, LEVEL_DEFAULT, LEVEL_MAX };

#define FLOAT_MAX_SIZE (256ull << 20)

enum {
    /* Words that are moved through the first-level cache together; a multiple of 64, a divisor of a chunk. */
    FLOAT_PIECE = 2048,
    FLOAT_PLAIN_V = 16,
    FLOAT_MAX_ROWS = FLOAT_CHUNK / (FLOAT_LANES * 2),
    FLOAT_TABLE_BITMAP = 32
};

FLOAT_INLINE uint64_t float_align(uint64_t offset) { return (offset + 15) & ~15ull; }
FLOAT_INLINE uint64_t float_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- Tables (float_table.c) ---- */

/* How to code one symbol: frequency in bits 0-11, bias 12-24, shift 25-28, and bit 31 if the symbol is not in the
 * table and the most frequent one is coded in its place. 8 bytes, so that a symbol is an index without arithmetic. */
typedef struct {
    uint32_t reciprocal, packed;
} float_coding;

#define FLOAT_ABSENT 0x80000000u

typedef struct {
    uint16_t frequency[256];
    uint32_t most_frequent;
    int one_symbol;
} float_table;

void float_normalise(const uint32_t counts[256], float_table *table);
size_t float_pack_table(const float_table *table, uint8_t *out);
/* Reads at most `length` bytes; *size is the padded size. FLOAT_OK or an error. */
int float_parse_table(const uint8_t *record, uint64_t length, float_table *table, uint64_t *size);
void float_coding_table(const float_table *table, float_coding coding[256]);
/* Slot to symbol (bits 0-7), slot less start (8-19) and frequency (20-31). Not for tables of one symbol. */
void float_slot_table(const float_table *table, uint32_t slots[FLOAT_PROBABILITY_SUM]);

/* ---- Kernels: loops over many words, once in plain C and once for AVX2 ---- */

/* Permutations by an 8-bit mask of lanes: to the front (encoding) and back to the lanes (decoding). */
typedef struct {
    uint8_t bytes[256][16];
} float_shuffles;

/* The same of decoding, from 16-bit words to elements of 32 bits */
typedef struct {
    uint8_t bytes[256][32];
} float_spreads;

typedef struct {
    /* Adds the quanta and the number of the nonzero words to sums[0] and sums[1]; at most FLOAT_PIECE words. */
    void (*sum)(const void *words, size_t count, int word, int layout, int64_t sums[2]);
    /* The same for each column of a row, less the row's level. */
    void (*columns)(const void *words, size_t count, int word, int layout, int32_t level, int32_t *totals,
                    int32_t *counts);
    /* Adds |q - flat| and |q - level - columns + 128| over the nonzero words; at most FLOAT_PIECE words. */
    void (*cost)(const void *words, size_t count, int word, int layout, int32_t flat, int32_t level,
                 const uint8_t *columns, int64_t sums[2]);
    /* Adds the number of zeros and of exceptions by quantum (layout log) to sums[0] and sums[1]. */
    void (*survey)(const void *words, const uint16_t *prediction, size_t count, int word, int64_t sums[2]);
    /* found[0] |= words, found[1] |= complements of the words that are coded, found[2] += zeros. */
    void (*scan)(const void *words, size_t count, int word, int zeros_removed, uint64_t found[3]);
    /* Nonzero words and their predictions to the front; both outputs have room for `count` and 16 more. */
    size_t (*compact)(const void *words, const uint16_t *prediction, size_t count, int word, void *out,
                      uint16_t *prediction_out, const float_shuffles *shuffles);
    /* kept[k] goes to the place of the k-th bit that is set, 0 to the others; 16 bytes after it can be read. */
    void (*expand)(const void *kept, const uint8_t *bits, size_t count, int word, const float_shuffles *shuffles,
                   void *out);
    /* Bit i of the output is set where word i is not 0. */
    void (*bitmap)(const void *words, size_t count, int word, uint8_t *out);
    /* Words to transformed words, as their top 16 bits and, apart, their low word - 2 bytes. */
    void (*transform)(const void *words, const uint16_t *prediction, size_t count, int word, int layout,
                      uint16_t *tops, uint8_t *low);
    /* Tops to symbols and raw planes: mid (first) in layout rotated, sign (first) and nibble (second) in layout log,
     * where bit i of exceptions is set for a word without a symbol of its own. At most FLOAT_PIECE words. */
    void (*split)(const uint16_t *tops, const uint8_t *low, size_t count, int word, int layout, uint8_t *symbols,
                  uint8_t *first, uint8_t *second, uint32_t *exceptions);
    /* Undoes split and puts tops and low bytes together to transformed words; at most FLOAT_PIECE words. */
    void (*join)(const uint8_t *symbols, const uint8_t *first, const uint8_t *second, const uint8_t *low, size_t count,
                 int word, int layout, void *coded);
    /* join and untransform in one, for words without exceptions. */
    void (*restore)(const uint8_t *symbols, const uint8_t *first, const uint8_t *second, const uint8_t *low,
                    const uint16_t *prediction, size_t count, int word, int layout, void *words);
    void (*untransform)(const void *coded, const uint16_t *prediction, size_t count, int word, int layout, void *words);
    /* Codes up to a chunk of symbols; returns the number of words. flagged[row] becomes 1 where a symbol was absent.
     * `words` has room for FLOAT_CHUNK + 16. */
    uint32_t (*encode)(const uint8_t *symbols, size_t count, int lane_values, const float_coding *coding,
                       const float_shuffles *shuffles, uint32_t states[FLOAT_LANES], uint16_t *words,
                       uint8_t flagged[FLOAT_MAX_ROWS]);
    /* `record` begins with the states; 16 bytes after its last word can be read. FLOAT_OK or an error. */
    int (*decode)(const uint8_t *record, uint32_t word_count, size_t count, int lane_values, const uint32_t *slots,
                  const float_spreads *spreads, uint8_t *symbols);
    /* Two whole chunks of one table at a time, or NULL where that is no faster. An error may be of either. */
    int (*decode_pair)(const uint8_t *const records[2], const uint32_t word_counts[2], int lane_values,
                       const uint32_t *slots, const float_spreads *spreads, uint8_t *const symbols[2]);
    void (*encode_shuffles)(float_shuffles *shuffles);
    void (*decode_shuffles)(float_shuffles *shuffles);
    void (*spreads)(float_spreads *spreads);
} float_kernels;

extern const float_kernels float_kernels_plain;
#if FLOAT_HAVE_AVX2
extern const float_kernels float_kernels_avx2;
#endif

/* Rows from `last` - 1 down to `first`, and up, lane by lane: the whole of plain C, and AVX2's incomplete row. */
uint32_t float_encode_rows(const uint8_t *symbols, size_t count, int lane_values, size_t first, size_t last,
                           const float_coding *coding, uint32_t *states, uint16_t *words, uint32_t position,
                           uint8_t *flagged);
int64_t float_decode_rows(const uint8_t *words, int64_t position, size_t count, int lane_values, size_t first,
                          const uint32_t *slots, uint32_t *states, uint8_t *symbols);

/* ---- Prediction (float_plan.c) ---- */

typedef struct {
    uint32_t rows, cols; /* cols 0: flat */
    uint32_t base;
} float_entry;

/* A place in the sequence of words: what is predicted for the next ones. */
typedef struct {
    const float_entry *entries;
    const uint8_t *side; /* offsets of the current entry: rows, then columns plus 128 */
    uint64_t done;       /* words of the current entry before this place */
    uint32_t left;       /* entries from the current one */
} float_cursor;

float_cursor float_cursor_at_start(const float_entry *entries, uint32_t count, const uint8_t *side);
/* p - FLOAT_CENTRE of the next words, modulo 2^16; zeros without entries. */
void float_predict(float_cursor *cursor, uint16_t *prediction, size_t count);
void float_skip(float_cursor *cursor, uint64_t count);
/* The same number for each of the next words, or -1. */
int32_t float_constant(const float_cursor *cursor, size_t count);

typedef struct {
    int layout, zeros_removed, sampling;
    uint32_t entry_count;
    float_entry *entries; /* free() it, and side */
    uint8_t *side;
    uint64_t side_size;
} float_plan;

typedef struct {
    const uint8_t *data;
    uint64_t size, n; /* bytes, whole words */
    int word, kind, level;
    const uint32_t *matrices; /* rows and cols of each */
    uint32_t matrix_count;
} float_input;

/* Decisions 1 to 9; FLOAT_OK or FLOAT_NO_MEMORY. */
int float_make_plan(const float_input *input, const float_kernels *kernels, float_plan *plan);
void float_free_plan(float_plan *plan);

/* ---- The two directions ---- */

uint64_t float_bound(const float_input *input);
/* Bytes written, or minus an error; `out` has room for float_bound. */
int64_t float_encode_stream(const float_input *input, const float_kernels *kernels, uint8_t *out);
int float_check_stream(const uint8_t *stream, uint64_t length, uint64_t size);
int float_decode_stream(const uint8_t *stream, uint64_t length, uint8_t *out, uint64_t size,
                        const float_kernels *kernels);

#endif
