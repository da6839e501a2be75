/* The loops of lowrank_loops.h in plain C. */
#include "lowrank_fit.h"

#include "lowrank_loops.h"
#include "lowrank_decode_loops.h"
#include "lowrank_encode_loops.h"
#include "lowrank_fit_loops.h"
#include "lowrank_fit_words.h"

const lowrank_kernels lowrank_kernels_plain = {multiply, take_symbols, put_words, put_symbols, put_raw};
const fit_kernels lowrank_fit_plain = {
    dot, combine, round_vector, round_and_multiply, measure, make_whole, sum_squares, invert_root,
};
