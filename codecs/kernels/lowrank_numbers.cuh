/* What coding and decoding the numbers of `lowrank` share (FORMAT.md 19): matrices, segments of a strip's numbers, and
 * the ranks by which a number finds its place among those of its context or width.
 *
 * A warp works on a segment, numbers that lie one after the other in one strip, 32 at a time. First it counts what its
 * segment needs of each kind; scans over a matrix's or a strip's segments (lowrank_counts.cu) turn the counts into
 * places; then it takes or puts from there on. lowrank_cuda_tables.py has the same structs and numbers.
 */
#pragma once
#include "lowrank_device.cuh"

typedef short i16;

constexpr u32 kSegment = 512, kGroup = 32;
constexpr u32 kSegmentWarps = 8, kSegmentThreads = 32 * kSegmentWarps;

/* What is counted in each segment: symbols of each context, of `below`, escapes; then raw bits of each width. Each
 * field's counts of all segments lie together. */
constexpr u32 kBelow = LOWRANK_CONTEXTS, kEscapes = kBelow + 1, kPlanes = kEscapes + 1, kWidths = kPlanes;
constexpr u32 kFields = kWidths + LOWRANK_WIDTHS;

/* The kept rows of a matrix, fewer than 2^32 numbers, and its model. Addresses are of device memory; `number` is that
 * of what is told of the matrix, `first_...` count the tiles, thread blocks and strips of those before it in the
 * table. */
struct Matrix {
    u64 scales, factors;  /* i16[rows + cols]; u16[rank][rows + cols], signs folded in */
    u64 words;            /* encoder: of the kept rows; decoder: of all rows */
    u64 kept;             /* decoder: u32[rows], the place of each kept row among all; 0 where all are kept */
    u64 numbers;          /* what is known of each number between two kernels: Placed, or u32 Coded */
    u64 counts;           /* u32[kFields][segments] */
    u64 planes[kPlanes];  /* u8 symbols of each context and of `below`, words of escapes */
    i32 multipliers[8];
    u32 totals[kPlanes];  /* decoder: symbols in each plane */
    u32 rows, cols, rank, shift;
    u32 strip_numbers, strip_segments, segments; /* of a whole strip; of all strips */
    u32 number, first_tile, first_block, first_strip;
};

/* A strip's raw bits: for each width a bin of `count` numbers that begins `start` bytes behind `raw`. */
struct Strip {
    u64 raw;
    u32 size, matrix, index, reserved; /* decoder: bytes of the raw bits; the strip's number in its matrix */
};
struct Bins {
    u32 start[LOWRANK_WIDTHS], count[LOWRANK_WIDTHS];
};

/* The matrix that thread block `block` works on, by the field that counts those before it */
template <u32 Matrix::*First> __device__ __forceinline__ const Matrix& matrix_of(const Matrix* all, u32 count, u32 block) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (all[middle].*First <= block) low = middle; else high = middle - 1;
    }
    return all[low];
}

/* `count` numbers from `first` on, in row-major order of the kept rows; none where the warp has nothing to do */
struct Segment {
    u32 index, first, count, strip;
};

__device__ __forceinline__ Segment segment_of(const Matrix& m) {
    Segment s;
    s.index = (blockIdx.x - m.first_block) * kSegmentWarps + threadIdx.x / 32;
    s.strip = s.index / m.strip_segments, s.count = 0;
    const u32 within = s.index % m.strip_segments * kSegment, numbers = m.rows * m.cols;
    s.first = s.strip * m.strip_numbers + within;
    if (s.index >= m.segments) return s;
    const u32 rest = numbers - s.strip * m.strip_numbers, strip = rest < m.strip_numbers ? rest : m.strip_numbers;
    s.count = strip - within < kSegment ? strip - within : kSegment;
    return s;
}

__device__ __forceinline__ u32* counts_at(const Matrix& m, u32 field, u32 segment) {
    return (u32*)m.counts + (u64)field * m.segments + segment;
}

/* Counters of a warp in shared memory, one a bin, at most 32; all lanes call everything together. */
struct Ranks {
    u32* counters;
    /* Places from which a segment's bins go on: those of `fields` from `first` on; or zeros, to count */
    __device__ __forceinline__ void start(const Matrix& m, u32 first, u32 fields, u32 segment) {
        const u32 lane = threadIdx.x % 32;
        if (lane < fields) counters[lane] = *counts_at(m, first + lane, segment);
        __syncwarp();
    }
    __device__ __forceinline__ void clear() {
        counters[threadIdx.x % 32] = 0;
        __syncwarp();
    }
    __device__ __forceinline__ void store(const Matrix& m, u32 first, u32 fields, u32 segment) const {
        const u32 lane = threadIdx.x % 32;
        if (lane < fields) *counts_at(m, first + lane, segment) = counters[lane];
    }
    /* How many were in this lane's bin before it; the lower lanes come first. A lane may be in none. */
    __device__ __forceinline__ u32 take(bool in, u32 bin) {
        const u32 lane = threadIdx.x % 32, peers = __match_any_sync(kAllLanes, in ? bin : 32);
        const u32 before = in ? counters[bin] : 0;
        __syncwarp();
        if (in && (u32)__ffs((int)peers) - 1 == lane) counters[bin] = before + __popc(peers);
        __syncwarp();
        return before + __popc(peers & ((1u << lane) - 1));
    }
};

/* Where the block's tile begins */
struct Tile {
    u32 row, col;
};
__device__ __forceinline__ Tile tile_of(const Matrix& m) {
    const u32 across = (m.cols + kTileSide - 1) / kTileSide, index = blockIdx.x - m.first_tile;
    return {index / across * kTileSide, index % across * kTileSide};
}

/* A row of a thread's patch, stored at once where rows of the matrix allow it */
template <class T> struct alignas(16) PatchRow {
    T v[kTilePatch];
};
template <class T>
__device__ __forceinline__ void store_row(const Matrix& m, u32 row, u32 col, const PatchRow<T>& values) {
    T* to = (T*)m.numbers + (u64)row * m.cols + col;
    if (m.cols % kTilePatch == 0) {
        *(PatchRow<T>*)to = values;
        return;
    }
    for (u32 j = 0; j < kTilePatch && col + j < m.cols; j++) to[j] = values.v[j];
}
