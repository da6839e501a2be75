/* BF16 words and the FP32 words that they were rounded from (FORMAT.md 17); derived_native.py calls these.
 *
 * Words lie where the file has them, at any address.
 */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define STEP 4096

typedef uint16_t __attribute__((aligned(1), may_alias)) word16;
typedef uint32_t __attribute__((aligned(1), may_alias)) word32;

/* `rest` gets what each word is above its widened half, modulo 2^16, and 0 where that is not from -2^15 to 2^15 - 1;
 * `exceptions` the numbers of these words. Returns how many there are, or -1 for more than `allowed`. */
EXPORT int64_t nvckpt_remainder_encode(const word32 *data, const word16 *source, uint64_t count, word16 *rest,
                                       word32 *exceptions, uint64_t allowed) {
    uint64_t found = 0;
    for (uint64_t begin = 0; begin < count; begin += STEP) {
        uint64_t end = begin + STEP < count ? begin + STEP : count;
        uint32_t outside = 0;
        for (uint64_t i = begin; i < end; i++) {
            uint32_t difference = data[i] - ((uint32_t)source[i] << 16);
            rest[i] = (uint16_t)difference;
            outside |= (difference + 0x8000u) >> 16;
        }
        for (uint64_t i = begin; outside && i < end; i++) {
            if (!((data[i] - ((uint32_t)source[i] << 16) + 0x8000u) >> 16)) continue;
            if (found == allowed) return -1;
            exceptions[found++] = (uint32_t)i;
            rest[i] = 0;
        }
    }
    return (int64_t)found;
}

EXPORT void nvckpt_remainder_decode(const word16 *rest, const word16 *source, uint64_t count, word32 *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = ((uint32_t)source[i] << 16) + (uint32_t)(int16_t)rest[i];
}

/* To nearest even; a NaN keeps its upper bits and becomes quiet. */
EXPORT void nvckpt_round_to_bf16(const word32 *words, uint64_t count, word16 *out) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t word = words[i], upper = word >> 16;
        uint32_t rounded = (word + 0x7FFFu + (upper & 1)) >> 16;
        out[i] = (uint16_t)((word & 0x7FFFFFFFu) > 0x7F800000u ? upper | 0x40u : rounded);
    }
}
