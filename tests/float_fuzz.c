/* Damages float streams and decodes them under sanitizers; test_float_native.py compiles and feeds it.
 *
 *     float_fuzz SEEDS RUNS NUMBER
 *
 * SEEDS holds valid streams: 8 bytes stream length, 8 bytes original size, the stream. Every buffer is allocated at its
 * exact length, so that a byte read or written outside is a report. Plain C and AVX2 must agree on every stream, and
 * every 16th run encodes invented data instead and wants it back.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t nvckpt_float_max_encoded_size(uint64_t, int, int, const uint32_t *, uint32_t);
int64_t nvckpt_float_encode(const uint8_t *, uint64_t, int, int, int, const uint32_t *, uint32_t, uint8_t *, uint64_t,
                            int);
int nvckpt_float_decode(const uint8_t *, uint64_t, uint8_t *, uint64_t, int);
int nvckpt_float_check(const uint8_t *, uint64_t, uint64_t);

static uint64_t state;

static uint32_t any(uint32_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return below ? (uint32_t)((state >> 33) % below) : 0;
}

static void fail(const char *what) {
    fprintf(stderr, "float_fuzz: %s\n", what);
    abort();
}

static uint32_t interesting(void) {
    static const uint32_t values[] = {0,      1,      7,      127,        128,        255,        4095,       4096,
                                      0x7FFF, 0x8000, 0xFFFF, 0x10000,    0x7F0000,   0x7FFFFF,   0x7FFFFFFF, 0x80000000,
                                      32767,  32768,  32769,  0xFFFFFFFF, 0x80000001, 0x00800000, 2,          16};
    return any(4) ? values[any(sizeof values / sizeof *values)] : any(0xFFFFFFFF);
}

/* Most damage goes where structure is: the header, and 32-bit fields anywhere. */
static void damage(uint8_t *stream, uint64_t length) {
    uint64_t span = any(3) ? length : length < 1024 ? length : 1024, at = any((uint32_t)span);
    uint32_t value = interesting();
    switch (any(6)) {
    case 0: stream[at] ^= (uint8_t)(1 << any(8)); break;
    case 1: stream[at] = (uint8_t)value; break;
    case 2: at &= ~3ull; if (at + 4 <= length) memcpy(stream + at, &value, 4); break;
    case 3: at &= ~1ull; if (at + 2 <= length) memcpy(stream + at, &value, 2); break;
    case 4:
        at &= ~3ull;
        if (at + 4 > length) break;
        memcpy(&value, stream + at, 4);
        value += any(9) - 4;
        memcpy(stream + at, &value, 4);
        break;
    default: {
        uint64_t from = any((uint32_t)length), count = any(64);
        if (from + count <= length && at + count <= length) memmove(stream + at, stream + from, count);
    }
    }
}

static void decode_damaged(const uint8_t *seed, uint64_t length, uint64_t size) {
    uint64_t cut = any(8) ? length : any((uint32_t)length + 64);
    uint8_t *stream = malloc(cut ? cut : 1);
    memset(stream, 0, cut);
    memcpy(stream, seed, cut < length ? cut : length);
    for (uint32_t times = any(4); cut && times-- > 0;) damage(stream, cut);
    if (cut >= 48 && any(4)) { /* a size that the header agrees with */
        uint64_t n;
        memcpy(&n, stream + 8, 8);
        if (n <= 1 << 20 && (stream[2] == 1 || stream[2] == 2 || stream[2] == 4 || stream[2] == 8))
            size = n * stream[2] + stream[24] % 8;
    }
    int checked = nvckpt_float_check(stream, cut, size), errors[2];
    uint8_t *out[2];
    for (int simd = 0; simd < 2; simd++) {
        out[simd] = calloc(1, size ? size : 1);
        errors[simd] = nvckpt_float_decode(stream, cut, out[simd], size, simd);
    }
    if (errors[0] != errors[1]) fail("plain C and AVX2 disagree on a damaged stream");
    if (checked && checked != errors[0]) fail("decode accepts what check rejects");
    if (!errors[0] && memcmp(out[0], out[1], size)) fail("plain C and AVX2 decode differently");
    free(out[0]);
    free(out[1]);
    free(stream);
}

static void encode_invented(void) {
    static const int words[] = {1, 2, 2, 4, 8, 4, 8, 2}, kinds[] = {0, 1, 2, 3, 4, 0, 0, 0};
    int which = (int)any(8), word = words[which], level = (int)any(3);
    uint32_t rows = 1 + any(any(2) ? 300 : 40), cols = 1 + any(any(2) ? 300 : 40);
    uint64_t size = (uint64_t)rows * cols * (uint64_t)word;
    uint32_t matrix[4] = {rows, any(2) ? cols : 0, rows * cols, 0};
    uint64_t tail = any((uint32_t)word);
    uint8_t *data = malloc(size + tail + 1);
    uint32_t spread = 1 + any(256), zeros = any(3) ? 0 : any(100), base = any(256);
    for (uint64_t i = 0; i < size + tail; i++) data[i] = (uint8_t)(base + any(spread));
    for (uint64_t i = 0; i < size; i += (uint64_t)word)
        if (any(100) < zeros) memset(data + i, 0, (size_t)word);
    const uint32_t *matrices = matrix[1] ? matrix : matrix + 2;
    uint64_t bound = nvckpt_float_max_encoded_size(size + tail, word, kinds[which], matrices, 1);
    uint8_t *out[2];
    int64_t length[2];
    for (int simd = 0; simd < 2; simd++) {
        out[simd] = malloc(bound);
        length[simd] = nvckpt_float_encode(data, size + tail, word, kinds[which], level, matrices, 1, out[simd],
                                           bound, simd);
    }
    if (length[0] != length[1] || length[0] <= 0 || memcmp(out[0], out[1], (size_t)length[0]))
        fail("plain C and AVX2 encode differently");
    uint8_t *stream = malloc((size_t)length[0]), *back = malloc(size + tail + 1);
    memcpy(stream, out[0], (size_t)length[0]);
    for (int simd = 0; simd < 2; simd++) {
        memset(back, 0xA5, size + tail);
        if (nvckpt_float_decode(stream, (uint64_t)length[0], back, size + tail, simd)) fail("own stream is rejected");
        if (memcmp(back, data, size + tail)) fail("other data came back");
    }
    free(data);
    free(out[0]);
    free(out[1]);
    free(stream);
    free(back);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    FILE *file = fopen(argv[1], "rb");
    if (!file) return 2;
    enum { MOST = 4096 };
    static uint8_t *seeds[MOST];
    static uint64_t sizes[MOST][2];
    uint32_t count = 0;
    while (count < MOST && fread(sizes[count], 8, 2, file) == 2) {
        seeds[count] = malloc(sizes[count][0]);
        if (fread(seeds[count], 1, sizes[count][0], file) != sizes[count][0]) return 2;
        count++;
    }
    fclose(file);
    state = strtoull(argv[3], NULL, 10) * 0x9E3779B97F4A7C15ull + 1;
    for (uint64_t run = 0, runs = strtoull(argv[2], NULL, 10); run < runs; run++) {
        uint32_t which = any(count);
        if (run % 16 == 15) encode_invented();
        else decode_damaged(seeds[which], sizes[which][0], sizes[which][1]);
    }
    for (uint32_t i = 0; i < count; i++) free(seeds[i]);
    return 0;
}
