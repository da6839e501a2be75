/* The numbers of `lowrank`'s fit (FORMAT.md 19.4), for the C and the CUDA; a test holds them against the Python. */
#ifndef NVCKPT_LOWRANK_FIT_COMMON_H
#define NVCKPT_LOWRANK_FIT_COMMON_H

#include "lowrank_common.h"

enum {
    FIT_RANK = 128,
    FIT_SPARE = 16,
    FIT_VECTORS = FIT_RANK + FIT_SPARE,
    FIT_MOST_NUMBERS = 1 << 30,
    FIT_MOST_SIDE = 1 << 20,
    FIT_FINE = 1 << 21,
    FIT_FINEST = 3,
    FIT_CUT_ONE_IN = 16384,
    FIT_LOG_BITS = 8,
    FIT_LOG_MEAN = 15,
    FIT_MOST_ROW = 8 * 160,
    FIT_MOST_COL = 8 * 200,
    FIT_SHIFT = 20,
    FIT_MOST_UNIT = 512,
    FIT_LOG_UNIT = 1 << 16,
    FIT_SIDE = 16
};

#define FIT_FLOOR 0.29
#define FIT_SMALLEST 0x1p-126
#define FIT_LOST 0x1p-20
#define FIT_LEAST_REST 1e-12
#define FIT_TWO_PI_E 17.079468445347135

/* 2^(k / 8) and 2^(-k / 8) */
#define FIT_OCTAVE                                                                                      \
    {                                                                                                   \
        1.0, 1.0905077326652577, 1.189207115002721, 1.2968395546510096, 1.4142135623730951,             \
            1.5422108254079407, 1.681792830507429, 1.8340080864093424                                   \
    }
#define FIT_INVERSE                                                                                     \
    {                                                                                                   \
        1.0, 0.9170040432046712, 0.8408964152537145, 0.7711054127039704, 0.7071067811865476,            \
            0.6484197773255048, 0.5946035575013605, 0.5452538663326288                                  \
    }

/* An entry of the vectors that the fit starts from: arbitrary, the same always */
NVCKPT_FN int32_t fit_arbitrary(uint32_t vector, uint32_t place) {
    uint32_t mixed = vector * 0x9E3779B1u + place * 0x85EBCA77u;
    mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6Du;
    mixed = (mixed ^ mixed >> 12) * 0x297A2D39u;
    return (int32_t)(mixed >> 24) - 128;
}

#endif
