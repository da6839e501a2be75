/* Bases of whole numbers for the fit of `lowrank` (lowrank_basis.py): products, rounding, orthogonal vectors. */
#include "lowrank_fit.cuh"

/* Places that vectors across start from, the same always. Items are vectors. */
extern "C" __global__ void __launch_bounds__(256) start_vectors(const Fit* fits, const FitItem* items) {
    const Fit fit = fits[items[blockIdx.x].fit];
    const u32 vector = items[blockIdx.x].part;
    short* entries = (short*)fit.basis_across + (u64)vector * fit.across;
    for (u32 i = threadIdx.x; i < fit.cols; i += blockDim.x) entries[i] = (short)fit_arbitrary(vector, i);
}

/* Products: left[m][k] times right, which is [n][k], or [k][n] where it is laid out by terms. */
struct Factors {
    const short* small;
    const double* large; /* instead of `small` */
    const short* right;
    double* out;
    u64 m, n, k, left_stride, right_stride, out_stride;
    bool by_terms;
};

enum { kAlong, kAcross, kGramAlong, kGramAcross, kTurnAlong, kTurnAcross, kWidths };

static __device__ Factors factors_of(const Fit& fit, u32 form) {
    const bool is_along = form == kAlong || form == kGramAlong || form == kTurnAlong;
    const short *along = (const short*)fit.basis_along, *across = (const short*)fit.basis_across;
    const short *mine = is_along ? along : across, *whole = (const short*)fit.whole;
    const u64 stride = is_along ? fit.along : fit.across, length = is_along ? fit.rows : fit.cols;
    double *products = (double*)fit.products, *gram = (double*)fit.gram;
    const u64 count = fit.count;
    if (form == kAlong)
        return {across, 0, whole, products, count, fit.rows, fit.cols, fit.across, fit.across, stride, false};
    if (form == kAcross)
        return {along, 0, whole, products, count, fit.cols, fit.rows, fit.along, fit.across, stride, true};
    if (form == kWidths) gram = (double*)fit.turn;
    if (form == kGramAlong || form == kGramAcross || form == kWidths)
        return {mine, 0, mine, gram, count, count, length, stride, stride, count, false};
    return {0, (const double*)fit.turn, mine, products, count, length, count, count, stride, stride, true};
}

/* A thread block's part of the product is 48 x 128, a warp's 48 x 16; terms are taken 16 at a time. */
constexpr int kPartM = 48, kPartN = 128, kStep = 16, kLeftStride = kStep + 4, kRightStride = kPartN + 4;

/* Sums of 8 x 8 products of 4 terms: a lane has two neighbours of row lane / 4. */
static __device__ __forceinline__ void add_products(double sum[2], const double* left, const double* right, u32 lane) {
#if !defined(NVCKPT_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const double a = left[lane / 4 * kLeftStride + lane % 4], b = right[lane % 4 * kRightStride + lane / 4];
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sum[0]), "+d"(sum[1])
        : "d"(a), "d"(b));
#else
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 2; j++)
            sum[j] += left[lane / 4 * kLeftStride + k] * right[k * kRightStride + lane % 4 * 2 + j];
#endif
}

struct Part {
    u32 fit, m, n, reserved;
};

extern "C" __global__ void __launch_bounds__(256, 2) multiply(const Fit* fits, const Part* parts, u32 form) {
    const Fit fit = fits[parts[blockIdx.x].fit];
    if (state_of(fit)->stopped) return;
    __shared__ double left[kPartM * kLeftStride], right[kStep * kRightStride];
    const Factors f = factors_of(fit, form);
    const u64 m = (u64)parts[blockIdx.x].m * kPartM, n = (u64)parts[blockIdx.x].n * kPartN;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double sums[kPartM / 8][2][2];
    for (int i = 0; i < kPartM / 8; i++)
        for (int j = 0; j < 4; j++) sums[i][j / 2][j % 2] = 0;
    for (u64 k = 0; k < f.k; k += kStep) {
        for (u32 i = threadIdx.x; i < kPartM * kStep; i += blockDim.x) {
            const u64 row = m + i / kStep, term = k + i % kStep;
            const bool there = row < f.m && term < f.k;
            const u64 place = row * f.left_stride + term;
            left[i / kStep * kLeftStride + i % kStep] = !there ? 0 : f.small ? f.small[place] : f.large[place];
        }
        for (u32 i = threadIdx.x; i < kPartN * kStep; i += blockDim.x) {
            const u64 term = k + (f.by_terms ? i / kPartN : i % kStep), col = n + (f.by_terms ? i % kPartN : i / kStep);
            const u64 place = f.by_terms ? term * f.right_stride + col : col * f.right_stride + term;
            right[(term - k) * kRightStride + (col - n)] = term < f.k && col < f.n ? f.right[place] : 0;
        }
        __syncthreads();
        for (int step = 0; step < kStep; step += 4)
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < kPartM / 8; i++)
                    add_products(sums[i][j], left + i * 8 * kLeftStride + step,
                                 right + step * kRightStride + warp * 16 + j * 8, lane);
        __syncthreads();
    }
    for (int i = 0; i < kPartM / 8; i++)
        for (int j = 0; j < 4; j++) {
            const u64 row = m + i * 8 + lane / 4, col = n + warp * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
            if (row < f.m && col < f.n) f.out[row * f.out_stride + col] = sums[i][j / 2][j % 2];
        }
}

/* The larger of all threads' numbers, which are not negative */
static __device__ double largest_of_block(double mine) {
    __shared__ u64 largest;
    if (!threadIdx.x) largest = 0;
    __syncthreads();
    atomicMax(&largest, (u64)bits_of(mine));
    __syncthreads();
    return __longlong_as_double((i64)largest);
}

/* Products to vectors whose largest entry is LOWRANK_MOST_FACTOR. Items are vectors. */
extern "C" __global__ void __launch_bounds__(256) round_vectors(const Fit* fits, const FitItem* items, u32 is_across) {
    const Fit fit = fits[items[blockIdx.x].fit];
    FitState* state = state_of(fit);
    if (state->stopped) return;
    const u32 vector = items[blockIdx.x].part;
    const u64 stride = is_across ? fit.across : fit.along, length = is_across ? fit.cols : fit.rows;
    const double* products = (const double*)fit.products + vector * stride;
    short* entries = (short*)(is_across ? fit.basis_across : fit.basis_along) + vector * stride;
    double mine = 0;
    for (u64 i = threadIdx.x; i < length; i += blockDim.x) {
        const double size = size_of(products[i]);
        mine = size > mine ? size : mine;
    }
    const double largest = largest_of_block(mine);
    const double factor = largest > 0 ? divided(LOWRANK_MOST_FACTOR, largest) : 0;
    const double fine = largest > 0 ? divided(FIT_FINE, largest) : 0;
    __shared__ u64 finely;
    if (!threadIdx.x) finely = 0;
    __syncthreads();
    u64 sum = 0;
    for (u64 i = threadIdx.x; i < length; i += blockDim.x) {
        const double entry = rint(times(products[i], factor));
        entries[i] = (short)entry;
        if (!is_across) sum += (u64)(entry * rint(times(products[i], fine)));
    }
    atomicAdd(&finely, sum);
    __syncthreads();
    if (!threadIdx.x) state->largest[vector] = largest, state->finely[vector] = finely;
}

constexpr int kOwn = (FIT_VECTORS + 31) / 32;

/* What turns vectors into orthogonal ones, the longest first: the inverse of the Cholesky root of their products, each
 * row rounded to whole numbers (lowrank_basis.py: orthogonal). A thread block of 1024 a matrix.
 *
 * A thread owns elements (row, col), row >= col, in registers: of what is left of the products until column `col` is
 * done, of the inverse from then on. */
extern "C" __global__ void __launch_bounds__(1024) orthogonalise(const Fit* fits) {
    const Fit fit = fits[blockIdx.x];
    FitState* state = state_of(fit);
    if (state->stopped) return;
    const i32 count = (i32)fit.count, ty = threadIdx.x / 32, tx = threadIdx.x % 32;
    const double* gram = (const double*)fit.gram;
    __shared__ double numbers[FIT_VECTORS], taken[FIT_VECTORS], scaled[FIT_VECTORS], pivots[FIT_VECTORS];
    __shared__ u64 peaks[FIT_VECTORS];
    __shared__ u32 order[FIT_VECTORS];
    for (i32 i = threadIdx.x; i < count; i += blockDim.x) {
        const double scale = divided(state->largest[i], LOWRANK_MOST_FACTOR);
        numbers[i] = times(times(scale, scale), gram[i * count + i]);
        peaks[i] = 0;
    }
    __syncthreads();
    sort_largest_first(numbers, count, order);
    double held[kOwn][kOwn];
#pragma unroll
    for (int a = 0; a < kOwn; a++)
#pragma unroll
        for (int b = 0; b <= a; b++) {
            const i32 row = ty + 32 * a, col = tx + 32 * b;
            held[a][b] = row < count && col <= row ? gram[order[row] * count + order[col]] : 0;
            if (row == col && row < count) pivots[row] = held[a][b];
        }
    for (i32 i = 0; i < count; i++) {
        /* Column i from the diagonal on, and row i of the inverse before it */
#pragma unroll
        for (int a = 0; a < kOwn; a++)
#pragma unroll
            for (int b = 0; b <= a; b++) {
                const i32 row = ty + 32 * a, col = tx + 32 * b;
                if (row < count && col == i && row >= i) taken[row] = held[a][b];
                if (row == i && col < i) taken[col] = held[a][b];
            }
        __syncthreads();
        for (i32 k = threadIdx.x; k < count; k += blockDim.x) {
            /* A vector that was lost gets zeros, and takes nothing from the others. */
            const bool lost = taken[i] <= times(pivots[i], FIT_LOST);
            scaled[k] = lost ? 0 : divided(k == i ? 1 : taken[k], root(taken[i]));
        }
        __syncthreads();
#pragma unroll
        for (int a = 0; a < kOwn; a++)
#pragma unroll
            for (int b = 0; b <= a; b++) {
                const i32 row = ty + 32 * a, col = tx + 32 * b;
                if (col > row || row < i || row >= count) continue;
                held[a][b] = row == i ? scaled[col]
                                      : plus(col == i ? 0 : held[a][b], -times(scaled[row], scaled[col]));
            }
    }
    __syncthreads();
#pragma unroll
    for (int a = 0; a < kOwn; a++) {
        double peak = 0;
        const i32 row = ty + 32 * a;
#pragma unroll
        for (int b = 0; b <= a; b++) {
            const double size = size_of(held[a][b]);
            if (row < count && tx + 32 * b <= row && size > peak) peak = size;
        }
        if (row < count) atomicMax(&peaks[row], (u64)bits_of(peak));
    }
    __syncthreads();
    double* turn = (double*)fit.turn;
#pragma unroll
    for (int a = 0; a < kOwn; a++)
#pragma unroll
        for (int b = 0; b < kOwn; b++) {
            const i32 row = ty + 32 * a, col = tx + 32 * b;
            if (row >= count || col >= count) continue;
            const double peak = __longlong_as_double((i64)peaks[row]);
            const double factor = peak > 0 ? divided(FIT_FINE, peak) : 0;
            turn[row * count + order[col]] = b <= a && col <= row ? rint(times(held[a][b], factor)) : 0;
        }
}
