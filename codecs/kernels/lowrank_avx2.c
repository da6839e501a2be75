/* The loops of lowrank_loops.h for AVX2. */
#include "lowrank_fit.h"

#if FLOAT_HAVE_AVX2

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,lzcnt")
#endif

#define LOOPS_AVX2
#include "lowrank_loops.h"
#include "lowrank_decode_loops.h"
#include "lowrank_encode_loops.h"
#include "lowrank_fit_loops.h"
#include "lowrank_fit_words.h"

const lowrank_kernels lowrank_kernels_avx2 = {multiply, take_symbols, put_words, put_symbols, put_raw};
const fit_kernels lowrank_fit_avx2 = {
    dot, combine, round_vector, round_and_multiply, measure, make_whole, sum_squares, invert_root,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
