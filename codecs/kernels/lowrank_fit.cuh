/* What the kernels of the CUDA fit of `lowrank` share: the matrices worked on, and arithmetic that is the same
 * everywhere.
 *
 * lowrank_fit.py, lowrank_basis.py and lowrank_choice.py are the oracle (FORMAT.md 19.4). Doubles hold whole numbers
 * whose sums are exact in any order, or come from single operations that round once: never contracted to a fused one.
 */
#pragma once
#include "lowrank_device.cuh"
#include "lowrank_fit_common.h"

constexpr int kLoudest = 320;

/* What a fit finds on its way. lowrank_cuda_fit.py declares the same fields. */
struct FitState {
    double unit; /* the worth of a product of factors' entries */
    double step;
    i64 gain; /* in bits times 2^17 */
    u64 energy; /* sum of the squares of the whole numbers */
    i32 shift; /* of the whole numbers, in units of 2^-shift of their scale */
    u32 rank; /* components kept */
    u32 stopped; /* nothing is gained, or nothing is to be fitted */
    u32 reserved;
    double largest[FIT_VECTORS]; /* entry of each vector before the last rounding */
    u64 finely[FIT_VECTORS]; /* products of a vector along, and itself with FIT_FINE for a largest entry */
    double left[FIT_RANK], right[FIT_RANK]; /* what makes entries of factors of those of vectors */
    u32 order[FIT_VECTORS]; /* the vectors' numbers, the largest component first */
    u32 loud[kLoudest]; /* numbers by their exponent above FIT_FINEST's bound */
};

/* A matrix. Vectors across have an entry for each column, vectors along one for each row; both are rows of memory whose
 * length is `across` and `along`, multiples of 16, zeros behind the last entry. */
struct Fit {
    u64 words;
    u64 sums; /* i64 of rows, then of columns: of logarithms; zeros between two uses */
    u64 scales; /* i32 of rows, then of columns: in eighths of an octave */
    u64 whole; /* i16[rows][across] */
    u64 basis_across, next_across, basis_along; /* i16[count][...] */
    u64 products; /* double[count][the longer of both] */
    u64 gram, turn; /* double[count][count] */
    u64 factors; /* u16[rank][rows + cols], signs folded in */
    u64 coded_scales; /* i16 of rows, then of columns, as a record has them */
    u64 state;
    u32 rows, cols, count, rank, across, along;
};

struct FitItem {
    u32 fit, part;
};

static __device__ __forceinline__ FitState* state_of(const Fit& fit) { return (FitState*)fit.state; }

static __device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
static __device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }
static __device__ __forceinline__ double divided(double a, double b) { return __ddiv_rn(a, b); }
static __device__ __forceinline__ double root(double a) { return __dsqrt_rn(a); }
static __device__ __forceinline__ i64 bits_of(double a) { return __double_as_longlong(a); }
/* Exact, as all exponents here are far from a double's bounds */
static __device__ __forceinline__ double power_of_two(i32 exponent) {
    return __longlong_as_double((i64)(exponent + 1023) << 52);
}
static __device__ __forceinline__ double size_of(double a) { return a < 0 ? -a : a; }
static __device__ __forceinline__ i64 floor_divided(i64 a, i64 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

/* Places of the numbers, the largest first, of equal ones the first one first */
static __device__ void sort_largest_first(const double* numbers, u32 count, u32* order) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 before = 0;
        for (u32 j = 0; j < count; j++) before += numbers[j] > numbers[i] || (numbers[j] == numbers[i] && j < i);
        order[before] = i;
    }
    __syncthreads();
}
