/* Decoding the numbers of `lowrank` matrices (FORMAT.md 19.2 and 19.3), given their symbols. In order:
 *
 * place_numbers   tiles: predictions of all numbers
 * count_contexts  segments; then a scan, so that each number's symbol is known by its rank in its context
 * take_symbols    segments: steps of all numbers; counts those below a step, and escapes; then a scan
 * take_below      segments: exponents of those below a step; counts widths; then places of all bins
 * put_words       segments: raw bits and escapes to words, in the rows where they belong
 * clear_ranges    rows that are not kept
 *
 * Scans compare totals with the record (lowrank_counts.cu). A kernel leaves out matrices that are wrong in what it
 * relies on, so that no rank is beyond its plane.
 */
#include "lowrank_numbers.cuh"

#if WORD == 2
typedef i32 Placed;
#else
typedef i64 Placed;
#endif

/* A number as known so far: its steps with their sign; the exponent of a step, later of the word where that is below a
 * step; and first its context, then its state. */
enum { STATE_STEPS, STATE_ESCAPE, STATE_SMALL, STATE_ZERO };
constexpr int kExponentAt = 3, kStepsAt = 18;
constexpr i32 kExponentBias = 9216; /* scales of 16 bits are added up, and `below` is taken off */

__device__ __forceinline__ Placed placed(i32 steps, i32 exponent, u32 state) {
    return (Placed)steps * ((Placed)1 << kStepsAt) + (Placed)((u32)(exponent + kExponentBias) << kExponentAt | state);
}
__device__ __forceinline__ u32 state_of(Placed p) { return (u32)p & 7; }
__device__ __forceinline__ i32 steps_of(Placed p) { return (i32)(p >> kStepsAt); }
__device__ __forceinline__ i32 exponent_of(Placed p) {
    return (i32)((u32)p >> kExponentAt & ((1u << (kStepsAt - kExponentAt)) - 1)) - kExponentBias;
}
__device__ __forceinline__ u32 size_of(i32 steps) { return (u32)(steps ^ steps >> 31); }

/* Whether any entry of the tile's rows, in the first column of tiles, or of its columns, in the first row, is too large */
static __device__ bool has_large_factor(const Matrix& m, Tile tile) {
    if (tile.row && tile.col) return false;
    bool large = false;
    const u64 sides = (u64)m.rows + m.cols;
    for (u32 k = threadIdx.x; k < m.rank * kTileSide; k += kTileThreads) {
        const u16* component = (const u16*)m.factors + k / kTileSide * sides;
        const u32 row = tile.row + k % kTileSide, col = tile.col + k % kTileSide;
        if (tile.col == 0 && row < m.rows) large |= component[row] > 2 * LOWRANK_MOST_FACTOR;
        if (tile.row == 0 && col < m.cols) large |= component[m.rows + (u64)col] > 2 * LOWRANK_MOST_FACTOR;
    }
    return large;
}

extern "C" __global__ void __launch_bounds__(256)
place_numbers(const Matrix* matrices, u32 count, u32* errors, u32 wrong) {
    const Matrix& m = matrix_of<&Matrix::first_tile>(matrices, count, blockIdx.x);
    const Tile tile = tile_of(m);
    if (has_large_factor(m, tile)) atomicOr(errors + m.number, wrong);
    i64 sums[kTilePatch][kTilePatch];
    multiply_tile((const u16*)m.factors, m.rank, m.rows, m.cols, tile.row, tile.col, sums);
    const i16* scales = (const i16*)m.scales;
    const u32 row = tile.row + patch_row(), col = tile.col + patch_col();
    if (col >= m.cols) return;
#pragma unroll
    for (u32 i = 0; i < kTilePatch; i++) {
        if (row + i >= m.rows) break;
        PatchRow<Placed> values;
#pragma unroll
        for (u32 j = 0; j < kTilePatch; j++) {
            const i32 scale = col + j < m.cols ? scales[row + i] + scales[m.rows + col + j] : 0;
            const lowrank_place place = lowrank_predict(scale, sums[i][j], m.multipliers, (i32)m.shift, kMantissa);
            values.v[j] = placed(place.steps, place.exponent, (u32)place.context);
        }
        store_row(m, row + i, col, values);
    }
}

extern "C" __global__ void __launch_bounds__(256)
count_contexts(const Matrix* matrices, u32 count) {
    __shared__ u32 counters[kSegmentWarps][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count) return;
    Ranks ranks = {counters[threadIdx.x / 32]};
    ranks.clear();
    for (u32 k = 0; k < s.count; k += kGroup) {
        const bool in = k + lane < s.count;
        ranks.take(in, in ? state_of(((const Placed*)m.numbers)[s.first + k + lane]) : 0);
    }
    ranks.store(m, 0, LOWRANK_CONTEXTS, s.index);
}

extern "C" __global__ void __launch_bounds__(256)
take_symbols(const Matrix* matrices, u32 count, const u32* errors, u32 known) {
    __shared__ u32 counters[kSegmentWarps][2][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count || errors[m.number] & known) return;
    Ranks ranks = {counters[threadIdx.x / 32][0]}, found = {counters[threadIdx.x / 32][1]};
    ranks.start(m, 0, LOWRANK_CONTEXTS, s.index);
    found.clear();
    for (u32 k = 0; k < s.count; k += kGroup) {
        const bool in = k + lane < s.count;
        Placed* at = (Placed*)m.numbers + s.first + k + lane;
        const Placed p = in ? *at : 0;
        const u32 context = state_of(p), rank = ranks.take(in, context);
        u32 state = STATE_STEPS;
        if (in) {
            const i32 symbol = ((const u8*)m.planes[context])[rank], steps = steps_of(p) + symbol - 128;
            state = !symbol ? STATE_ESCAPE : size_of(steps) ? STATE_STEPS : STATE_SMALL;
            *at = placed(steps, exponent_of(p), state);
        }
        found.take(state != STATE_STEPS, state == STATE_ESCAPE);
    }
    found.store(m, kBelow, 2, s.index);
}

__device__ __forceinline__ u32 width_of(Placed p) {
    const u32 state = state_of(p);
    if (state == STATE_STEPS) return (u32)lowrank_width(size_of(steps_of(p)), kMantissa);
    return state == STATE_SMALL ? kMantissa : 0;
}

extern "C" __global__ void __launch_bounds__(256)
take_below(const Matrix* matrices, u32 count, const u32* errors, u32 known) {
    __shared__ u32 counters[kSegmentWarps][2][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count || errors[m.number] & known) return;
    Ranks ranks = {counters[threadIdx.x / 32][0]}, widths = {counters[threadIdx.x / 32][1]};
    ranks.start(m, kBelow, 1, s.index);
    widths.clear();
    for (u32 k = 0; k < s.count; k += kGroup) {
        const bool in = k + lane < s.count;
        Placed* at = (Placed*)m.numbers + s.first + k + lane;
        Placed p = in ? *at : placed(0, 0, STATE_ZERO);
        const bool small = in && state_of(p) == STATE_SMALL;
        const u32 rank = ranks.take(small, 0);
        if (small) {
            const i32 below = ((const u8*)m.planes[kBelow])[rank];
            p = below ? placed(steps_of(p), exponent_of(p) - below, STATE_SMALL) : placed(steps_of(p), 0, STATE_ZERO);
            *at = p;
        }
        const u32 width = width_of(p);
        widths.take(width != 0, width);
    }
    widths.store(m, kWidths, LOWRANK_WIDTHS, s.index);
}

/* The raw bits of the number of a rank; nothing beyond the bin is read. */
__device__ __forceinline__ u32 raw_bits(const u8* raw, const Bins& bins, u32 width, u32 rank) {
    const u32 whole = width & ~7u, rest = width & 7, count = bins.count[width];
    const u8* bytes = raw + bins.start[width];
    u32 value = whole ? bytes[rank] : 0;
    if (whole > 8) value |= (u32)bytes[(u64)count + rank] << 8;
    if (!rest) return value;
    const u64 bit = (u64)rank * rest;
    const u8* bits = bytes + (u64)count * (width >> 3) + (bit >> 3);
    const u32 at = (u32)bit & 7, two = bits[0] | (at + rest > 8 ? (u32)bits[1] << 8 : 0);
    return value | (two >> at & ((1u << rest) - 1)) << whole;
}

extern "C" __global__ void __launch_bounds__(256)
put_words(const Matrix* matrices, u32 count, const Strip* strips, const Bins* bins, const u32* errors, u32 known) {
    __shared__ u32 counters[kSegmentWarps][2][32];
    const Matrix& m = matrix_of<&Matrix::first_block>(matrices, count, blockIdx.x);
    const Segment s = segment_of(m);
    const u32 lane = threadIdx.x % 32;
    if (!s.count || errors[m.number] & known) return;
    const Bins& mine = bins[m.first_strip + s.strip];
    const u8* raw = (const u8*)strips[m.first_strip + s.strip].raw;
    Ranks ranks = {counters[threadIdx.x / 32][0]}, escapes = {counters[threadIdx.x / 32][1]};
    ranks.start(m, kWidths, LOWRANK_WIDTHS, s.index);
    escapes.start(m, kEscapes, 1, s.index);
    for (u32 k = 0; k < s.count; k += kGroup) {
        const u32 at = s.first + k + lane;
        const bool in = k + lane < s.count;
        const Placed p = in ? ((const Placed*)m.numbers)[at] : placed(0, 0, STATE_ZERO);
        const u32 width = width_of(p), rank = ranks.take(width != 0, width);
        const bool escape = state_of(p) == STATE_ESCAPE;
        const u32 which = escapes.take(escape, 0);
        if (in) {
            const i32 steps = steps_of(p);
            const u32 size = size_of(steps), bits = width ? raw_bits(raw, mine, width, rank) : 0;
            u32 word = size ? lowrank_word(size, exponent_of(p), bits, kMantissa)
                            : ((u32)exponent_of(p) & 0xFF) << kMantissa | bits;
            word |= (u32)(steps < 0) << (kMantissa + 8);
            if (escape) word = ((const Word*)m.planes[kEscapes])[which];
            const u32 row = at / m.cols, to = m.kept ? ((const u32*)m.kept)[row] : row;
            ((Word*)m.words)[(u64)to * m.cols + at % m.cols] = (Word)word;
        }
    }
}

/* Rows that are not kept: bytes from an address on, whole words; one thread block a part of a range */
struct Range {
    u64 address, size;
};
constexpr u64 kClearPart = 65536;

extern "C" __global__ void __launch_bounds__(256)
clear_ranges(const Range* ranges, const uint2* items) {
    const Range& range = ranges[items[blockIdx.x].x];
    const u64 begin = items[blockIdx.x].y * kClearPart, rest = range.size - begin;
    const u64 from = range.address + begin, to = from + (rest < kClearPart ? rest : kClearPart);
    u64 wide = (from + 15) & ~15ull, wide_end = to & ~15ull;
    if (wide >= wide_end) wide = wide_end = to;
    for (u64 at = from + WORD * threadIdx.x; at < wide; at += WORD * blockDim.x) *(Word*)at = 0;
    for (u64 at = wide + 16 * threadIdx.x; at < wide_end; at += 16 * blockDim.x) *(uint4*)at = zero16();
    for (u64 at = wide_end + WORD * threadIdx.x; at < to; at += WORD * blockDim.x) *(Word*)at = 0;
}
