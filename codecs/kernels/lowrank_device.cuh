/* What the CUDA kernels of `lowrank` share: a thread block works on a tile of 64 x 64 numbers, 4 x 4 of them a thread.
 *
 * Compiled as float_device.cuh says; WORD is the bytes of a number, 2 for BF16 and 4 for FP32.
 */
#pragma once
#include "float_device.cuh"
#include "lowrank_common.h"

constexpr int kTileSide = 64, kTilePatch = 4, kTileThreads = 256, kTileTerms = 16;
constexpr i32 kMantissa = WORD == 2 ? 7 : 23;

static __device__ __forceinline__ i32 unfolded(u32 folded) { return (i32)(folded >> 1) ^ -(i32)(folded & 1); }
static __device__ __forceinline__ u32 folded(i32 entry) { return (u32)(entry < 0 ? -2 * entry - 1 : 2 * entry); }

/* Where a thread's 4 x 4 numbers begin in its tile */
static __device__ __forceinline__ u32 patch_row() { return threadIdx.x / (kTileSide / kTilePatch) * kTilePatch; }
static __device__ __forceinline__ u32 patch_col() { return threadIdx.x % (kTileSide / kTilePatch) * kTilePatch; }

/* sums[i][j] = sum over t of left entry (row + patch_row() + i, t) * right entry (col + patch_col() + j, t).
 * `factors` holds for each of `rank` components the rows' entries, then the columns', with folded signs and at most
 * LOWRANK_MOST_FACTOR in size: LOWRANK_TERMS products fit into 32 bits. All threads of the block take part. */
static __device__ void multiply_tile(const u16* factors, u32 rank, u64 rows, u64 cols, u64 row, u64 col,
                                     i64 sums[kTilePatch][kTilePatch]) {
    __shared__ i32 left[kTileTerms][kTileSide], right[kTileTerms][kTileSide];
    i32 some[kTilePatch][kTilePatch];
    for (int i = 0; i < kTilePatch; i++)
        for (int j = 0; j < kTilePatch; j++) sums[i][j] = some[i][j] = 0;
    for (u32 first = 0; first < rank; first += kTileTerms) {
        for (u32 k = threadIdx.x; k < kTileTerms * kTileSide; k += kTileThreads) {
            const u32 term = k / kTileSide, place = k % kTileSide;
            const u16* component = factors + (u64)(first + term) * (rows + cols);
            const bool there = first + term < rank;
            left[term][place] = there && row + place < rows ? unfolded(component[row + place]) : 0;
            right[term][place] = there && col + place < cols ? unfolded(component[rows + col + place]) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int term = 0; term < kTileTerms; term++)
            for (int i = 0; i < kTilePatch; i++)
                for (int j = 0; j < kTilePatch; j++)
                    some[i][j] += left[term][patch_row() + i] * right[term][patch_col() + j];
        __syncthreads();
        if ((first + kTileTerms) % LOWRANK_TERMS == 0 || first + kTileTerms >= rank)
            for (int i = 0; i < kTilePatch; i++)
                for (int j = 0; j < kTilePatch; j++) sums[i][j] += some[i][j], some[i][j] = 0;
    }
}
