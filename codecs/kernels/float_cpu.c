/* What the shared library exports; float_native.py calls it through ctypes.
 *
 * `simd`: 0 plain C, 1 AVX2 (plain C where the processor lacks it), -1 the best there is. All give the same bytes.
 */
#include "float_cpu.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvckpt_float_has_avx2(void) {
#if FLOAT_HAVE_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}

static const float_kernels *kernels_for(int simd) {
#if FLOAT_HAVE_AVX2
    if (simd && nvckpt_float_has_avx2()) return &float_kernels_avx2;
#endif
    (void)simd;
    return &float_kernels_plain;
}

static int kind_fits(int kind, int word) {
    switch (kind) {
    case KIND_BYTES: return word == 1 || word == 2 || word == 4 || word == 8;
    case KIND_BF16:
    case KIND_FP16: return word == 2;
    case KIND_FP32: return word == 4;
    case KIND_FP64: return word == 8;
    default: return 0;
    }
}

/* FLOAT_BAD_ARGUMENT for sizes, kinds and matrices that contradict each other. */
static int make_input(const uint8_t *data, uint64_t size, int word, int kind, int level, const uint32_t *matrices,
                      uint32_t matrix_count, float_input *input) {
    if (!kind_fits(kind, word) || size > FLOAT_MAX_SIZE || level < LEVEL_FAST || level > LEVEL_MAX)
        return FLOAT_BAD_ARGUMENT;
    uint64_t n = size / (uint64_t)word, words = 0;
    float_input made = {data, size, n, word, kind, level, matrices, kind == KIND_BYTES ? 0 : matrix_count};
    *input = made;
    if (kind == KIND_BYTES || (level == LEVEL_FAST && kind != KIND_FP64)) return FLOAT_OK;
    for (uint32_t i = 0; i < matrix_count; i++) {
        uint64_t rows = matrices[2 * i], cols = matrices[2 * i + 1];
        if (rows > n - words || (cols && rows * cols > n - words)) return FLOAT_BAD_ARGUMENT;
        words += rows * (cols ? cols : 1);
    }
    return words == n ? FLOAT_OK : FLOAT_BAD_ARGUMENT;
}

/* Upper bound of what nvckpt_float_encode writes for the same arguments; 0 if it would refuse them. */
EXPORT uint64_t nvckpt_float_max_encoded_size(uint64_t size, int word, int kind, const uint32_t *matrices,
                                              uint32_t matrix_count) {
    float_input input;
    if (make_input(NULL, size, word, kind, LEVEL_FAST, matrices, matrix_count, &input)) return 0;
    return float_bound(&input);
}

/* Bytes written to `out`, or minus an error. `capacity` must be at least the bound above. */
EXPORT int64_t nvckpt_float_encode(const uint8_t *data, uint64_t size, int word, int kind, int level,
                                   const uint32_t *matrices, uint32_t matrix_count, uint8_t *out, uint64_t capacity,
                                   int simd) {
    float_input input;
    int error = make_input(data, size, word, kind, level, matrices, matrix_count, &input);
    if (error) return -error;
    if (capacity < float_bound(&input)) return -FLOAT_NO_ROOM;
    return float_encode_stream(&input, kernels_for(simd), out);
}

/* FLOAT_OK, or an error; `out` may then hold anything. */
EXPORT int nvckpt_float_decode(const uint8_t *stream, uint64_t length, uint8_t *out, uint64_t size, int simd) {
    return float_decode_stream(stream, length, out, size, kernels_for(simd));
}

/* Whether header, matrices, directories and tables account for the stream; nothing is decoded. */
EXPORT int nvckpt_float_check(const uint8_t *stream, uint64_t length, uint64_t size) {
    return float_check_stream(stream, length, size);
}
