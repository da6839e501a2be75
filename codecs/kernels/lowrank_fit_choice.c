/* How many components the fit keeps, and how finely their factors are rounded; lowrank_choice.py is the oracle. */
#include "lowrank_fit.h"

enum { LOG_ENTRIES = 256 };

/* The logarithms of (513 + 2 i) / 512, bit after bit: a square above 2 is a bit that is set. */
static void make_table(int64_t table[LOG_ENTRIES]) {
    for (uint64_t i = 0; i < LOG_ENTRIES; i++) {
        uint64_t number = (513 + 2 * i) << 22;
        table[i] = 0;
        for (int k = 0; k < 16; k++) {
            number = number * number >> 31;
            table[i] = table[i] << 1 | (int64_t)(number >> 32);
            number >>= number >> 32;
        }
    }
}

/* Of positive numbers, in 1 / FIT_LOG_UNIT */
FLOAT_INLINE int64_t logarithm(const int64_t table[LOG_ENTRIES], double number) {
    uint64_t bits = fit_bits(number);
    return ((int64_t)(bits >> 52) - 1023) * FIT_LOG_UNIT + table[bits >> 44 & 0xFF];
}

fit_choice lowrank_fit_choose(const double *squares, const double *gone, size_t count, size_t rows, size_t cols,
                              double energy) {
    const double n = (double)(rows * cols), height = (double)rows, width = (double)cols;
    const double even = __builtin_sqrt(height / width), weight = 1 / (width * even) + even / height;
    int64_t table[LOG_ENTRIES];
    double sizes[FIT_RANK], total = 0;
    fit_choice best = {0, 0, 0};
    if (energy <= 0) return best;
    make_table(table);
    int64_t all = logarithm(table, energy / n);
    for (size_t k = 0; k < count; k++) {
        double noise = (double)((k + 1) * (rows + cols)) / n, rest = energy - gone[k], least = FIT_LEAST_REST * energy;
        if (!(noise <= 0.5 && squares[k] > 0)) break;
        sizes[k] = __builtin_sqrt(squares[k]);
        total += sizes[k];
        rest = (rest > least ? rest : least) / n;
        double step2 = 12 * noise * rest / (total * weight);
        int64_t gain = (int64_t)(rows * cols) * (all - logarithm(table, rest * (1 + noise)));
        int64_t by_row = 0, by_col = 0;
        for (size_t i = 0; i <= k; i++) {
            double power = FIT_TWO_PI_E * sizes[i] / step2;
            by_row += logarithm(table, 1 + power * even / height);
            by_col += logarithm(table, 1 + power / (width * even));
        }
        gain -= 2 * FIT_SIDE * FIT_LOG_UNIT * (int64_t)(k + 1) + (int64_t)rows * by_row + (int64_t)cols * by_col;
        if (gain > best.gain) best.rank = k + 1, best.step = step2, best.gain = gain;
    }
    best.step = __builtin_sqrt(best.step);
    return best;
}
