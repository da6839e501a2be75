/* From counts of segments to places (lowrank_numbers.cuh): scans over all segments of a matrix, and over those of a strip
 * for the widths of raw bits. The same for coding and decoding, which checks the totals here and nowhere else. */
#include "lowrank_numbers.cuh"

/* Bits of what is found wrong with a matrix; the lowest one is told. lowrank_cuda_tables.py has their sentences. */
enum {
    WRONG_FACTOR = 1,
    WRONG_CONTEXTS = 2,  /* some context has too few symbols: all together they are as many as the numbers */
    WRONG_BELOW = 4,     /* too few */
    WRONG_RAW = 8,
    WRONG_ESCAPES = 16,  /* too few */
    WRONG_LEFT_OVER = 32 /* symbols of `below`, or escapes: no harm is done by going on */
};

constexpr u32 kScanThreads = 256, kScanEach = 8, kScanRound = kScanThreads * kScanEach;

/* Turn counts into what lies before each; returns their sum to all threads of the block. */
static __device__ u64 scan_block(u32* counts, u32 count) {
    __shared__ u32 sums[kScanThreads / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 carry = 0;
    for (u32 first = 0; first < count; first += kScanRound) {
        u32 mine[kScanEach], sum = 0;
        const u32 at = first + threadIdx.x * kScanEach;
        for (u32 i = 0; i < kScanEach; i++) {
            mine[i] = at + i < count ? counts[at + i] : 0;
            sum += mine[i];
        }
        u32 before = warp_scan(sum, lane);
        if (lane == 31) sums[warp] = before;
        before -= sum;
        __syncthreads();
        u64 all = 0;
        for (int w = 0; w < (int)kScanThreads / 32; w++) {
            if (w < warp) before += sums[w];
            all += sums[w];
        }
        before += (u32)carry;
        for (u32 i = 0; i < kScanEach; i++) {
            if (at + i < count) counts[at + i] = before;
            before += mine[i];
        }
        carry += all;
        __syncthreads();
    }
    return carry;
}

/* A thread block for each of `fields` fields of each matrix, from `field` on. Decoding, with `errors`: the totals must be
 * those of the record, and matrices that are `known` to be wrong are left out. Coding: the totals are told. */
extern "C" __global__ void __launch_bounds__(256)
scan_counts(const Matrix* matrices, u32 field, u32 fields, u32* errors, u32 known, u32* totals) {
    const Matrix& m = matrices[blockIdx.x / fields];
    const u32 mine = field + blockIdx.x % fields;
    /* Other blocks only add bits that are not `known` in this launch. */
    if (errors && load_relaxed(errors + m.number) & known) return;
    const u64 total = scan_block(counts_at(m, mine, 0), m.segments);
    if (threadIdx.x) return;
    if (!errors) {
        totals[m.number * kPlanes + mine] = (u32)total;
        return;
    }
    u32 wrong = 0;
    if (mine < kBelow && total != m.totals[mine]) wrong = WRONG_CONTEXTS;
    if (mine == kBelow && total > m.totals[mine]) wrong = WRONG_BELOW;
    if (mine == kEscapes && total > m.totals[mine]) wrong = WRONG_ESCAPES;
    if (mine >= kBelow && total < m.totals[mine]) wrong = WRONG_LEFT_OVER;
    if (wrong) atomicOr(errors + m.number, wrong);
}

/* A thread block a strip: where the bins of each width lie, and the places of each segment in them. `errors` as above;
 * else the bytes of each strip's raw bits are told. */
extern "C" __global__ void __launch_bounds__(256)
place_bins(const Matrix* matrices, const Strip* strips, Bins* bins, u32* errors, u32 known, u32* sizes) {
    __shared__ u32 counts[LOWRANK_WIDTHS];
    const Strip& strip = strips[blockIdx.x];
    const Matrix& m = matrices[strip.matrix];
    if (errors && load_relaxed(errors + m.number) & known) return;
    const u32 lane = threadIdx.x % 32, first = strip.index * m.strip_segments;
    const u32 rest = m.segments - first, segments = rest < m.strip_segments ? rest : m.strip_segments;
    for (u32 width = threadIdx.x / 32; width < LOWRANK_WIDTHS; width += kScanThreads / 32) {
        u32* mine = counts_at(m, kWidths + width, first);
        u32 total = 0;
        for (u32 from = 0; from < segments; from += 32) {
            const u32 count = from + lane < segments ? mine[from + lane] : 0, scan = warp_scan(count, (int)lane);
            if (from + lane < segments) mine[from + lane] = total + scan - count;
            total += __shfl_sync(kAllLanes, scan, 31);
        }
        if (lane == 0) counts[width] = total;
    }
    __syncthreads();
    if (threadIdx.x) return;
    Bins& to = bins[blockIdx.x];
    u64 size = 0;
    for (u32 width = 0; width < LOWRANK_WIDTHS; width++) {
        to.start[width] = (u32)size, to.count[width] = counts[width];
        if (width) size += lowrank_packed_size(counts[width], width);
    }
    if (!errors)
        sizes[blockIdx.x] = (u32)size;
    else if (size != strip.size)
        atomicOr(errors + m.number, (u32)WRONG_RAW);
}
