/* Scales of a matrix's rows and columns, and its values as whole numbers (lowrank_fit.py: _scales, _whole).
 *
 * A thread block of 256 takes a tile of 64 x 64 numbers, or a matrix.
 */
#include "lowrank_fit.cuh"

static __device__ const double kOctaves[8] = FIT_OCTAVE, kInverses[8] = FIT_INVERSE;

/* Of the sums of logarithms, an eighth of an octave */
constexpr i32 kEighth = 1 << (FIT_LOG_BITS - 3);

/* What is not finite counts as zero, and so does what is subnormal. */
static __device__ __forceinline__ double value_at(const Fit& fit, u64 row, u64 col) {
    const u64 place = row * fit.cols + col;
    const u32 word = WORD == 2 ? (u32)((const u16*)fit.words)[place] << 16 : ((const u32*)fit.words)[place];
    const u32 exponent = word >> 23 & 0xFF;
    return exponent == 0 || exponent == 0xFF ? 0.0 : (double)__uint_as_float(word);
}

struct Tile {
    u64 row, col;
};
static __device__ __forceinline__ Tile tile_of(const Fit& fit, u32 part) {
    const u32 across = (fit.cols + kTileSide - 1) / kTileSide;
    return {(u64)(part / across) * kTileSide, (u64)(part % across) * kTileSide};
}

/* Scales are made of the values where nothing is predicted, with `plain`, or else of the residual. */
static __device__ __forceinline__ bool is_scaled(const FitState* state, u32 plain) {
    return plain ? state->rank == 0 || state->unit >= FIT_MOST_UNIT : !state->stopped;
}

/* Adds up logarithms of what is to be scaled by rows and columns. */
extern "C" __global__ void __launch_bounds__(256) add_logarithms(const Fit* fits, const FitItem* items, u32 plain) {
    const Fit fit = fits[items[blockIdx.x].fit];
    FitState* state = state_of(fit);
    if (!is_scaled(state, plain)) return;
    const u32 rank = plain ? 0 : state->rank;
    __shared__ i32 by_row[kTileSide], by_col[kTileSide];
    for (u32 i = threadIdx.x; i < kTileSide; i += blockDim.x) by_row[i] = by_col[i] = 0;
    const Tile tile = tile_of(fit, items[blockIdx.x].part);
    i64 products[kTilePatch][kTilePatch];
    multiply_tile((const u16*)fit.factors, rank, fit.rows, fit.cols, tile.row, tile.col, products);
    __syncthreads();
    const i32* scales = (const i32*)fit.scales;
    const double least = FIT_FLOOR * (WORD == 2 ? 0x1p-7 : 0x1p-23);
    i32 columns[kTilePatch] = {0, 0, 0, 0};
    for (int i = 0; i < kTilePatch; i++) {
        const u64 row = tile.row + patch_row() + i;
        if (row >= fit.rows) break;
        const i32 scale = scales[row];
        const double scale_row = times(times(state->unit, kOctaves[scale & 7]), power_of_two(scale >> 3));
        i32 sum = 0;
        for (int j = 0; j < kTilePatch; j++) {
            const u64 col = tile.col + patch_col() + j;
            if (col >= fit.cols) break;
            const double held = value_at(fit, row, col), size = size_of(held);
            double residual = size;
            if (rank) {
                const i32 other = scales[fit.rows + col];
                const double scale_col = times(kOctaves[other & 7], power_of_two(other >> 3));
                residual = size_of(plus(held, -times(times((double)products[i][j], scale_row), scale_col)));
            }
            const double bound = times(size > FIT_SMALLEST ? size : FIT_SMALLEST, least);
            if (residual < bound) residual = bound;
            const i64 found = (bits_of(residual) >> (52 - FIT_LOG_BITS)) - (1023 << FIT_LOG_BITS);
            const i32 logarithm = (i32)found + FIT_LOG_MEAN;
            sum += logarithm, columns[j] += logarithm;
        }
        atomicAdd(&by_row[patch_row() + i], sum);
    }
    for (int j = 0; j < kTilePatch; j++) atomicAdd(&by_col[patch_col() + j], columns[j]);
    __syncthreads();
    u64* sums = (u64*)fit.sums;
    for (u32 i = threadIdx.x; i < kTileSide; i += blockDim.x) {
        if (tile.row + i < fit.rows) atomicAdd(&sums[tile.row + i], (u64)(i64)by_row[i]);
        if (tile.col + i < fit.cols) atomicAdd(&sums[fit.rows + tile.col + i], (u64)(i64)by_col[i]);
    }
}

static __device__ __forceinline__ i64 bounded(i64 number, i64 most) {
    return number > most ? most : number < -most ? -most : number;
}

/* Makes scales of the sums, and clears what the next kernels add up. A thread block a matrix. */
extern "C" __global__ void __launch_bounds__(256) finish_scales(const Fit* fits, u32 plain) {
    const Fit fit = fits[blockIdx.x];
    FitState* state = state_of(fit);
    if (!is_scaled(state, plain)) return;
    __shared__ u64 total;
    if (!threadIdx.x) total = 0, state->energy = 0;
    __syncthreads();
    i64 *sums = (i64*)fit.sums, mine = 0;
    i32* scales = (i32*)fit.scales;
    for (u64 i = threadIdx.x; i < fit.rows; i += blockDim.x) {
        const i64 unit = (i64)kEighth * fit.cols;
        scales[i] = (i32)bounded(floor_divided(sums[i] + unit / 2, unit), FIT_MOST_ROW);
        mine += scales[i], sums[i] = 0;
    }
    atomicAdd(&total, (u64)mine);
    for (u32 i = threadIdx.x; i < kLoudest; i += blockDim.x) state->loud[i] = 0;
    __syncthreads();
    for (u64 j = threadIdx.x; j < fit.cols; j += blockDim.x) {
        const i64 unit = (i64)kEighth * fit.rows;
        i64* sum = &sums[fit.rows + j];
        const i64 scale = floor_divided(*sum - kEighth * (i64)total + unit / 2, unit);
        scales[fit.rows + j] = (i32)bounded(scale, FIT_MOST_COL);
        *sum = 0;
    }
}

/* A value in units of its scale */
static __device__ __forceinline__ double scaled(double value, i32 row_scale, i32 col_scale) {
    const double by_row = times(kInverses[row_scale & 7], power_of_two(-(row_scale >> 3)));
    const double by_col = times(kInverses[col_scale & 7], power_of_two(-(col_scale >> 3)));
    return times(times(value, by_row), by_col);
}

/* Counts numbers that a fine unit would cut, by their exponents. */
extern "C" __global__ void __launch_bounds__(256) count_loud(const Fit* fits, const FitItem* items) {
    const Fit fit = fits[items[blockIdx.x].fit];
    FitState* state = state_of(fit);
    if (state->stopped) return;
    const i32* scales = (const i32*)fit.scales;
    const Tile tile = tile_of(fit, items[blockIdx.x].part);
    for (int i = 0; i < kTilePatch; i++)
        for (int j = 0; j < kTilePatch; j++) {
            const u64 row = tile.row + patch_row() + i, col = tile.col + patch_col() + j;
            if (row >= fit.rows || col >= fit.cols) continue;
            const double number = scaled(value_at(fit, row, col), scales[row], scales[fit.rows + col]);
            const i32 above = (i32)(bits_of(size_of(number)) >> 52) - 1023 - (11 - FIT_FINEST);
            if (above >= 0) atomicAdd(&state->loud[above < kLoudest ? above : kLoudest - 1], 1u);
        }
}

/* A thread block of one warp a matrix */
extern "C" __global__ void __launch_bounds__(32) choose_shift(const Fit* fits) {
    const Fit fit = fits[blockIdx.x];
    FitState* state = state_of(fit);
    u32 mine = 0;
    for (u32 i = threadIdx.x; i < kLoudest; i += 32) mine += state->loud[i];
    u64 left = warp_sum(mine);
    if (threadIdx.x || state->stopped) return;
    const u64 all = (u64)fit.rows * fit.cols;
    i32 shift = FIT_FINEST;
    for (u32 i = 0; i < kLoudest && left * FIT_CUT_ONE_IN > all; i++) left -= state->loud[i], shift--;
    state->shift = shift;
}

extern "C" __global__ void __launch_bounds__(256) make_whole(const Fit* fits, const FitItem* items) {
    const Fit fit = fits[items[blockIdx.x].fit];
    FitState* state = state_of(fit);
    if (state->stopped) return;
    __shared__ u64 energy;
    if (!threadIdx.x) energy = 0;
    __syncthreads();
    const Tile tile = tile_of(fit, items[blockIdx.x].part);
    const i32* scales = (const i32*)fit.scales;
    const double unit = power_of_two(state->shift);
    short* whole = (short*)fit.whole;
    u64 mine = 0;
    for (int i = 0; i < kTilePatch; i++)
        for (int j = 0; j < kTilePatch; j++) {
            const u64 row = tile.row + patch_row() + i, col = tile.col + patch_col() + j;
            if (row >= fit.rows || col >= fit.cols) continue;
            double number = times(scaled(value_at(fit, row, col), scales[row], scales[fit.rows + col]), unit);
            number = rint(number);
            number = number > LOWRANK_MOST_FACTOR    ? LOWRANK_MOST_FACTOR
                     : number < -LOWRANK_MOST_FACTOR ? -LOWRANK_MOST_FACTOR
                                                     : number;
            const i32 made = (i32)number;
            whole[row * fit.across + col] = (short)made;
            mine += (u64)(made * made);
        }
    atomicAdd(&energy, mine);
    __syncthreads();
    if (!threadIdx.x) atomicAdd(&state->energy, energy);
}

/* Scales as a record has them. A thread block a matrix. */
extern "C" __global__ void __launch_bounds__(256) write_scales(const Fit* fits) {
    const Fit fit = fits[blockIdx.x];
    const i32* scales = (const i32*)fit.scales;
    short* coded = (short*)fit.coded_scales;
    for (u64 i = threadIdx.x; i < fit.rows; i += blockDim.x) coded[i] = (short)(scales[i] + 8 * 127);
    for (u64 j = fit.rows + threadIdx.x; j < (u64)fit.rows + fit.cols; j += blockDim.x) coded[j] = (short)scales[j];
}
