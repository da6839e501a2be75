/* How many components the fit of `lowrank` keeps, and their factors (lowrank_choice.py, lowrank_fit.py: _factors). */
#include "lowrank_fit.cuh"

constexpr i64 kLogUnit = FIT_LOG_UNIT;

static __device__ __forceinline__ i64 logarithm(double value, const u32* table) {
    const i64 bits = bits_of(value);
    return ((bits >> 52) - 1023) * kLogUnit + table[bits >> 44 & 0xFF];
}

/* The product of two components; one is its worth times a vector along times a vector across. */
static __device__ __forceinline__ double shared_by(const Fit& fit, double worth, double other, u32 i, u32 j) {
    const double *lefts = (const double*)fit.gram, *rights = (const double*)fit.turn;
    const u32 place = i * fit.count + j;
    return times(times(worth, other), times(lefts[place], rights[place]));
}

/* A thread block of 160 a matrix; `table` is that of lowrank_choice.py. `gram` and `turn` hold the products of the
 * vectors along, and of those across. */
extern "C" __global__ void __launch_bounds__(160) choose_rank(const Fit* fits, const u32* table) {
    const Fit fit = fits[blockIdx.x];
    FitState* state = state_of(fit);
    if (state->stopped) return;
    const u32 count = fit.count, own = threadIdx.x;
    const double *lefts = (const double*)fit.gram, *rights = (const double*)fit.turn;
    __shared__ double worths[FIT_VECTORS], squares[FIT_VECTORS], sizes[FIT_VECTORS], gone[FIT_VECTORS];
    __shared__ double totals[FIT_VECTORS], steps[FIT_VECTORS];
    __shared__ i64 gains[FIT_VECTORS];
    __shared__ u32 usable;
    if (!own) usable = 0;
    if (own < count) {
        const double width = rights[own * count + own];
        worths[own] = width > 0 ? divided(divided(state->largest[own], LOWRANK_MOST_FACTOR), width) : 0;
        sizes[own] = shared_by(fit, worths[own], worths[own], own, own);
    }
    __syncthreads();
    sort_largest_first(sizes, count, state->order);
    const double unit = power_of_two(-2 * state->shift), energy = times((double)state->energy, unit);
    const i64 rows = fit.rows, cols = fit.cols, n = rows * cols;
    const double noise = divided((double)((own + 1) * (rows + cols)), (double)n);
    if (own < fit.rank) {
        const u32 vector = state->order[own];
        /* What remains of the matrix, exactly */
        double before = 0;
        for (u32 j = 0; j < own; j++) {
            const u32 other = state->order[j];
            const double both = shared_by(fit, worths[vector], worths[other], vector, other);
            before = j ? plus(before, both) : both;
        }
        const double fine = divided(state->largest[vector], FIT_FINE);
        const double common = times(times(times(2, worths[vector]), fine), (double)state->finely[vector]);
        squares[own] = sizes[vector];
        gone[own] = plus(plus(common, -squares[own]), -times(2, before));
    }
    __syncthreads();
    if (own < fit.rank) {
        squares[own] = times(squares[own], unit), sizes[own] = root(squares[own]);
        if (noise <= 0.5 && squares[own] > 0) atomicAdd(&usable, 1u);
    }
    __syncthreads();
    if (!own) {
        double sum = 0, total = 0;
        for (u32 i = 0; i < usable; i++) {
            sum = i ? plus(sum, gone[i]) : gone[i], total = i ? plus(total, sizes[i]) : sizes[i];
            gone[i] = times(sum, unit), totals[i] = total;
        }
    }
    __syncthreads();
    const double even = root(divided((double)rows, (double)cols));
    if (own < usable) {
        const double weight = plus(divided(1, times((double)cols, even)), divided(even, (double)rows));
        const double least = times(FIT_LEAST_REST, energy), left = plus(energy, -gone[own]);
        const double rest = divided(left > least ? left : least, (double)n);
        const double step2 = divided(times(times(12, noise), rest), times(totals[own], weight));
        i64 gain = n * (logarithm(divided(energy, (double)n), table) - logarithm(times(rest, plus(1, noise)), table));
        gain -= 2 * FIT_SIDE * kLogUnit * (own + 1);
        i64 by_rows = 0, by_cols = 0;
        for (u32 i = 0; i <= own; i++) {
            const double power = divided(times(FIT_TWO_PI_E, sizes[i]), step2);
            by_rows += logarithm(plus(1, divided(times(power, even), (double)rows)), table);
            by_cols += logarithm(plus(1, divided(power, times((double)cols, even))), table);
        }
        steps[own] = step2, gains[own] = gain - rows * by_rows - cols * by_cols;
    }
    __syncthreads();
    if (own) return;
    i64 gain = 0;
    u32 rank = 0;
    for (u32 i = 0; energy > 0 && i < usable; i++)
        if (gains[i] > gain) gain = gains[i], rank = i + 1;
    state->rank = rank, state->gain = gain, state->unit = 0;
    if (!rank) {
        state->stopped = 1;
        return;
    }
    const double fourth = root(even);
    double loudest = 0;
    for (u32 i = 0; i < rank; i++) {
        const u32 vector = state->order[i], place = vector * count + vector;
        const double size = root(sizes[i]);
        const double left = divided(times(size, fourth), root(lefts[place]));
        const double right = divided(divided(size, fourth), root(rights[place]));
        state->left[i] = left, state->right[i] = right;
        /* The largest entry of a vector is LOWRANK_MOST_FACTOR. */
        const double larger = times(LOWRANK_MOST_FACTOR, left > right ? left : right);
        if (larger > loudest) loudest = larger;
    }
    double step = root(steps[rank - 1]);
    const double bound = divided(loudest, LOWRANK_MOST_FACTOR);
    step = step > bound ? step : bound;
    state->step = step, state->unit = times(step, step);
}

/* Factors of the components kept, and the vectors across in their order. Items are components. */
extern "C" __global__ void __launch_bounds__(256) write_factors(const Fit* fits, const FitItem* items) {
    const Fit fit = fits[items[blockIdx.x].fit];
    const FitState* state = state_of(fit);
    if (state->stopped) return;
    const u32 component = items[blockIdx.x].part, vector = state->order[component];
    const short* along = (const short*)fit.basis_along + (u64)vector * fit.along;
    const short* across = (const short*)fit.basis_across + (u64)vector * fit.across;
    short* next = (short*)fit.next_across + (u64)component * fit.across;
    for (u64 j = threadIdx.x; j < fit.cols; j += blockDim.x) next[j] = across[j];
    if (component >= state->rank) return;
    u16* factors = (u16*)fit.factors + (u64)component * (fit.rows + fit.cols);
    const double left = divided(state->left[component], state->step);
    const double right = divided(state->right[component], state->step);
    for (u64 i = threadIdx.x; i < fit.rows; i += blockDim.x) factors[i] = (u16)folded((i32)rint(times(along[i], left)));
    for (u64 j = threadIdx.x; j < fit.cols; j += blockDim.x)
        factors[fit.rows + j] = (u16)folded((i32)rint(times(across[j], right)));
}
