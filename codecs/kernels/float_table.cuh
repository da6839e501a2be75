/* The encoder's table of a block: a sample is counted, and frequencies are made of the counts (decision 11). */
#pragma once
#include "float_words.cuh"

constexpr int kCopies = 16;                  /* of each counter, so that lanes seldom meet */
constexpr u32 kLookCloser = 1u << 18;        /* in an entry's .y: not coded, or to be checked */
constexpr int kEntryWords = 516, kTableWords = 104, kMiscWords = 32, kExceptionWords = 64;

/* What the warps of a block tell each other */
struct Misc {
    const Plane* plane;
    u8* area;                   /* of the block's records in global memory */
    u32 ticket, block, capacity, table_bytes, one_symbol, place, done;
};

/* Shared memory of a thread block; counters share the place of the staging */
struct Shared {
    u32 *entries, *table, *exceptions, *staging;
    Misc* misc;
    __device__ __forceinline__ explicit Shared(u32* base) {
        entries = base, table = entries + kEntryWords, misc = (Misc*)(table + kTableWords);
        exceptions = table + kTableWords + kMiscWords, staging = exceptions + kWarps * kExceptionWords;
    }
};

__device__ __forceinline__ int values_at(u32 at, u32 length) { return at >= length ? 0 : length - at < V ? length - at : V; }

/* Of a word, what is beside its quantum where `quantum` is false, and everything otherwise */
__device__ __forceinline__ u32 bits_of(const u32 (&row)[4], int i, bool quantum) {
    u32 top = quantum ? 0xFFFFu : 0x800Fu;
    if (WORD == 2) return row[i / 2 % 4] >> i % 2 * 16 & top;
    if (WORD == 4) return row[i % 4] & (top << 16 | 0xFFFFu);
    return row[2 * i % 4] | (row[(2 * i + 1) % 4] & (top << 16 | 0xFFFFu));
}

/* In layout 2 only the word 0 has symbol 0. Predicted on the way it looks as if it had none; see zero_has_symbol. */
template <bool PREDICT>
__device__ __forceinline__ void count_row(u32* counters, const Symbols& s, uint4 row, int values, int lane) {
    u32 words[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < V; i++) {
        u32 symbol = symbol_index(s, i);
        bool counted = i < values && symbol < 256;
        if (kLog && PREDICT && i < values && (symbol == 0 || symbol == 256)) {
            counted = symbol == 256 && !bits_of(words, i, true);
            symbol = 0;
        } else if (kLog && counted && symbol == 0) {
            counted = !bits_of(words, i, false);
        }
        if (counted) atomicAdd(counters + symbol * kCopies + lane % kCopies, 1u);
    }
}

/* Counts the block's rows r with r % sampling = 0; warps take turns */
template <bool PREDICT>
__device__ __forceinline__ void count_sample(const Plane& plane, u32* counters, u64 first, u32 length, u32 sampling, int warp, int lane) {
    u32 rows = (length + kRow - 1) / kRow, sampled = (rows + sampling - 1) / sampling;
    constexpr int kFlight = 4;
    Walk walk;
    if (PREDICT) walk.begin(plane, first + warp * sampling * kRow + lane * V);
    for (u32 k = warp; k < sampled; k += kWarps * kFlight) {
        uint4 row[kFlight];
        Walk::Raw raw[kFlight];
#pragma unroll
        for (int u = 0; u < kFlight; u++) {
            u32 at = (k + u * kWarps) * sampling * kRow + lane * V;
            int values = values_at(at, length);
            row[u] = values ? load_row(plane.words + first * WORD, at, values) : zero16();
            if (PREDICT) raw[u] = walk.load(), walk.forward(kWarps * sampling * kRow);
        }
#pragma unroll
        for (int u = 0; u < kFlight; u++) {
            u32 at = (k + u * kWarps) * sampling * kRow + lane * V, levels[kPairs] = {};
            if (PREDICT) Walk::expand(raw[u], levels);
            count_row<PREDICT>(counters, split<PREDICT>(row[u], levels), row[u], values_at(at, length), lane);
        }
    }
}

/* Decision 11, by one warp; lane i has symbols 8 i to 8 i + 7. Writes entries and the packed table. */
__device__ void make_table(const Shared& shared, int lane) {
    u32 counts[8], f[8], total = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        counts[i] = 0;
        for (int c = 0; c < kCopies; c++) counts[i] += shared.staging[(lane * 8 + i) * kCopies + (c + lane) % kCopies];
        total += counts[i];
    }
    total = warp_sum(total);
    if (!total) {
        if (lane == FLOAT_CENTRE / 8) counts[FLOAT_CENTRE % 8] = 1;
        total = 1;
    }
    u32 sum, best, scale = FLOAT_PROBABILITY_SUM;
    for (;;) {
        u32 mine = 0, largest = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 scaled = (counts[i] * scale + total / 2) / total;
            f[i] = counts[i] ? (scaled > 1 ? scaled : 1) : 0;
            mine += f[i];
            u32 key = f[i] << 8 | (255 - (lane * 8 + i)); /* the lowest symbol of equals */
            largest = key > largest ? key : largest;
        }
        sum = warp_sum(mine), best = 255 - (warp_max(largest) & 255);
        if (sum <= FLOAT_PROBABILITY_SUM) break;
        scale -= sum - FLOAT_PROBABILITY_SUM;
    }
    u32 used = 0, mine = 0, present = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (lane * 8 + i == (int)best) f[i] += FLOAT_PROBABILITY_SUM - sum;
        used += f[i] > 0, mine += f[i], present |= (u32)(f[i] > 0) << i;
    }
    u32 rank = warp_scan(used, lane), all = __shfl_sync(kAllLanes, rank, 31);
    u32 start = warp_scan(mine, lane) - mine;
    rank -= used;
    for (int i = lane; i < kTableWords; i += 32) shared.table[i] = 0;
    __syncwarp();
    ((u8*)shared.table)[lane] = (u8)present;
    __syncwarp();
    uint2* entries = (uint2*)shared.entries;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (!f[i]) continue;
        float_encode_entry e = float_make_entry(f[i], start);
        u32 look = kLog && lane * 8 + i == 0 ? kLookCloser : 0;
        uint2 packed = make_uint2(e.reciprocal, (FLOAT_PROBABILITY_SUM - f[i]) << 19 | look | e.bias << 5 | e.shift);
        entries[lane * 8 + i] = packed;
        if (lane * 8 + i == (int)best) entries[256] = make_uint2(packed.x, packed.y | kLookCloser);
        u32 bit = 256 + rank * 12, code = f[i] - 1;
        atomicOr(shared.table + bit / 32, code << bit % 32);
        if (bit % 32 > 20) atomicOr(shared.table + bit / 32 + 1, code >> (32 - bit % 32));
        start += f[i], rank++;
    }
    __syncwarp();
    uint2 stand_in = entries[256];
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (!f[i]) entries[lane * 8 + i] = stand_in;
    if (lane == 0) {
        shared.misc->table_bytes = align16(32 + (all * 12 + 7) / 8);
        shared.misc->one_symbol = all == 1;
    }
}

