/* Coding the numbers of `lowrank` matrices by their models (FORMAT.md 19.2 and 19.3). In order:
 *
 * code_numbers   tiles: every number's symbol and what goes with it
 * count_numbers  segments: what each needs of every plane and bin; then scans, whose totals are told
 * put_planes     segments: symbols, escapes, and whole bytes of raw bits
 * put_bits       segments: the rest of the raw bits, which share their bytes
 *
 * The last two are apart so that no byte is written while its neighbours are changed by atomic operations.
 */
#include "lowrank_numbers.cuh"

/* A number as coded: what lowrank_number has, and its context */
typedef u32 Coded;
constexpr int kBelowAt = 8, kWidthAt = 16, kContextAt = 21, kSmallAt = 24;

__device__ __forceinline__ Coded coded(const lowrank_number& number, i32 context) {
    return (u32)number.symbol | (u32)number.below << kBelowAt | (u32)number.width << kWidthAt |
           (u32)context << kContextAt | (u32)number.small << kSmallAt;
}
__device__ __forceinline__ u32 symbol_of(Coded c) { return c & 255; }
__device__ __forceinline__ u32 below_of(Coded c) { return c >> kBelowAt & 255; }
__device__ __forceinline__ u32 width_of(Coded c) { return c >> kWidthAt & 31; }
__device__ __forceinline__ u32 context_of(Coded c) { return c >> kContextAt & 7; }
__device__ __forceinline__ bool is_small(Coded c) { return c >> kSmallAt; }
/* A lane that has no number counts as one of no symbol in `below`, no escape, and no raw bits. */
constexpr Coded kNoNumber = 1;

extern "C" __global__ void __launch_bounds__(256)
code_numbers(const Matrix* matrices, u32 count) {
    const Matrix& m = matrix_of<&Matrix::first_tile>(matrices, count, blockIdx.x);
    const Tile tile = tile_of(m);
    i64 sums[kTilePatch][kTilePatch];
    multiply_tile((const u16*)m.factors, m.rank, m.rows, m.cols, tile.row, tile.col, sums);
    const i16* scales = (const i16*)m.scales;
    const u32 row = tile.row + patch_row(), col = tile.col + patch_col();
    if (col >= m.cols) return;
#pragma unroll
    for (u32 i = 0; i < kTilePatch; i++) {
        if (row + i >= m.rows) break;
        const Word* words = (const Word*)m.words + (u64)(row + i) * m.cols;
        PatchRow<Coded> values;
#pragma unroll
        for (u32 j = 0; j < kTilePatch; j++) {
            values.v[j] = 0;
            if (col + j >= m.cols) continue;
            const i32 scale = scales[row + i] + scales[m.rows + col + j];
            const lowrank_place place = lowrank_predict(scale, sums[i][j], m.multipliers, (i32)m.shift, kMantissa);
            values.v[j] = coded(lowrank_code(words[col + j], place, kMantissa), place.context);
        }
        store_row(m, row + i, col, values);
    }
}

/* A number's bin among the planes of `below` and escapes, if it is in one */
__device__ __forceinline__ bool has_more(Coded c) { return is_small(c) || !symbol_of(c); }
__device__ __forceinline__ u32 more_of(Coded c) { return is_small(c) ? kBelow : kEscapes; }

extern "C" __global__ void __launch_bounds__(256)
count_numbers(const Matrix* matrices, u32 count) {
    __shared__ u32 counters[kSegmentWarps][2][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count) return;
    Ranks planes = {counters[threadIdx.x / 32][0]}, widths = {counters[threadIdx.x / 32][1]};
    planes.clear();
    widths.clear();
    for (u32 k = 0; k < s.count; k += kGroup) {
        const bool in = k + lane < s.count;
        const Coded c = in ? ((const Coded*)m.numbers)[s.first + k + lane] : kNoNumber;
        planes.take(in, context_of(c));
        planes.take(has_more(c), more_of(c));
        widths.take(width_of(c) != 0, width_of(c));
    }
    planes.store(m, 0, kPlanes, s.index);
    widths.store(m, kWidths, LOWRANK_WIDTHS, s.index);
}

extern "C" __global__ void __launch_bounds__(256)
put_planes(const Matrix* matrices, u32 count, const Strip* strips, const Bins* bins) {
    __shared__ u32 counters[kSegmentWarps][2][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count) return;
    const Bins& mine = bins[m.first_strip + s.strip];
    u8* raw = (u8*)strips[m.first_strip + s.strip].raw;
    Ranks planes = {counters[threadIdx.x / 32][0]}, widths = {counters[threadIdx.x / 32][1]};
    planes.start(m, 0, kPlanes, s.index);
    widths.start(m, kWidths, LOWRANK_WIDTHS, s.index);
    for (u32 k = 0; k < s.count; k += kGroup) {
        const u32 at = s.first + k + lane;
        const bool in = k + lane < s.count;
        const Coded c = in ? ((const Coded*)m.numbers)[at] : kNoNumber;
        const u32 context = context_of(c), rank = planes.take(in, context);
        if (in) ((u8*)m.planes[context])[rank] = (u8)symbol_of(c);
        const u32 more = planes.take(has_more(c), more_of(c));
        if (is_small(c)) ((u8*)m.planes[kBelow])[more] = (u8)below_of(c);
        if (!symbol_of(c)) ((Word*)m.planes[kEscapes])[more] = ((const Word*)m.words)[at];
#if WORD > 2 /* else mantissas have no whole bytes */
        const u32 width = width_of(c), which = widths.take(width != 0, width);
        if (width >= 8) {
            const u32 word = ((const Word*)m.words)[at];
            u8* bytes = raw + mine.start[width];
            bytes[which] = (u8)word;
            if (width >= 16) bytes[(u64)mine.count[width] + which] = (u8)(word >> 8);
        }
#endif
    }
}

extern "C" __global__ void __launch_bounds__(256)
put_bits(const Matrix* matrices, u32 count, const Strip* strips, const Bins* bins) {
    __shared__ u32 counters[kSegmentWarps][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count) return;
    const Bins& mine = bins[m.first_strip + s.strip];
    const u64 raw = strips[m.first_strip + s.strip].raw;
    Ranks widths = {counters[threadIdx.x / 32]};
    widths.start(m, kWidths, LOWRANK_WIDTHS, s.index);
    for (u32 k = 0; k < s.count; k += kGroup) {
        const u32 at = s.first + k + lane;
        const Coded c = k + lane < s.count ? ((const Coded*)m.numbers)[at] : kNoNumber;
        const u32 width = width_of(c), rest = width & 7, rank = widths.take(width != 0, width);
        if (rest) {
            const u32 value = (u32)((const Word*)m.words)[at] >> (width & ~7u) & ((1u << rest) - 1);
            const u64 bit = (u64)rank * rest;
            const u64 byte = raw + mine.start[width] + (u64)mine.count[width] * (width >> 3) + (bit >> 3);
            const u64 shifted = (u64)value << ((bit & 7) + 8 * (byte & 3));
            u32* to = (u32*)(byte & ~3ull);
            atomicOr(to, (u32)shifted);
            if (shifted >> 32) atomicOr(to + 1, (u32)(shifted >> 32));
        }
    }
}
