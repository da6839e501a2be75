/* The loops of lowrank_loops.h in plain C. */
#include "lowrank_cpu.h"

#include "lowrank_loops.h"
#include "lowrank_decode_loops.h"
#include "lowrank_encode_loops.h"

const lowrank_kernels lowrank_kernels_plain = {multiply, take_symbols, put_words, put_symbols, put_raw};
