/* The encoder of a chunk: a warp codes it from its last row to its first (FORMAT.md 16.7, decisions 12 and 13). */
#pragma once
#include "float_table.cuh"

constexpr int kStep = WORD == 4 && !kLog ? 4 : WORD == 1 || (WORD == 2 && kLog) ? 1 : 2; /* rows in flight */
constexpr u32 kSlotBytes = FLOAT_CHUNK * (kLog ? 2 : 1); /* of a record; longer chunks are stored raw, or cannot be */
constexpr u32 kStateBytes = 4 * FLOAT_LANES;

__device__ __forceinline__ u32* staging_of(const Shared& shared, u32 warp) {
    return shared.staging + warp * (shared.misc->capacity / 4);
}

/* Moves `bytes` of the staging, as many whole 16 bytes as they have, behind the `moved` ones of the warp's record; what
 * lies beyond the slot's end belongs to a raw chunk. Keeps the rest and returns its size. */
__device__ __noinline__ u32 move_words(u32 bytes, u32 moved) {
    DYNAMIC_SHARED(base);
    const Shared shared(base);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, whole = bytes & ~15u;
    u32* staging = staging_of(shared, warp);
    uint4* to = (uint4*)(shared.misc->area + warp * kSlotBytes + kStateBytes + moved);
    __syncwarp();
    if (kStateBytes + moved + whole <= kSlotBytes)
        for (u32 i = lane; i < whole / 16; i += 32) to[i] = ((const uint4*)staging)[i];
    u32 left = (bytes - whole + 3) / 4, rest = lane < left ? staging[whole / 4 + lane] : 0;
    __syncwarp();
    if (lane < left) staging[lane] = rest;
    __syncwarp();
    return bytes - whole;
}

/* The rare symbols: not in the table, without a symbol, or zero. Notes exceptions and says which entry is coded, and in
 * .z how many exceptions there are now. What it needs is found in shared memory, so that the coder keeps its registers. */
template <bool PREDICT>
__device__ __noinline__ uint4 look_closer(u32 at, u32 index, uint2 e, u32 exceptions) {
    DYNAMIC_SHARED(base);
    const Shared shared(base);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool exception = false;
    if (e.y & kLookCloser) {
        u32 symbol = index;
        if (kLog && (index == 0 || index == 256)) { /* others are what they seem, and need no slow look at the word */
            u64 word = (u64)shared.misc->block * FLOAT_BLOCK + warp * FLOAT_CHUNK + at;
            Word w = PREDICT ? plane_word(*shared.misc->plane, word) : ((const Word*)shared.misc->plane->words)[word];
            u32 q = float_quantum(top_of(w), LAYOUT);
            symbol = q > 255 || (q == 0 && w != 0) ? 256 : q;
        }
        exception = symbol == 256 || !(shared.table[symbol / 32] >> symbol % 32 & 1);
        e = ((const uint2*)shared.entries)[exception ? 256 : symbol];
    }
    u32 all = __ballot_sync(kAllLanes, exception);
    u32 place = exceptions + __popc(all & ((1u << lane) - 1));
    if (exception && place < FLOAT_MAX_EXCEPTIONS) ((u16*)(shared.exceptions + warp * kExceptionWords))[place] = (u16)at;
    return make_uint4(e.x, e.y & ~kLookCloser, exceptions + __popc(all), 0);
}

/* A warp's coder. Words pile up at `end` in the staging; `moved` bytes of them have left for the record. */
struct Coder {
    u32 x, exceptions, moved, below;
    SharedAddress end, entries;

    /* Codes one symbol of each lane. With e.y = (4096 - f) << 19 | look << 18 | bias << 5 | shift:
     * f << 19 is 2^31 - (4096 - f) << 19, and e.y >> 5 holds (4096 - f) << 14 above the bias. */
    template <bool FULL> __device__ __forceinline__ void put(uint2 e, bool valid) {
        u32 rest = e.y >> 19, limit = multiply_add(rest, 0u - (1u << 19), 1u << 31), before = x;
#ifndef NVCKPT_EMULATED
        if (FULL) {
            asm volatile(
                "{\n\t.reg .pred p; .reg .b32 m, r, a;\n\tsetp.ge.u32 p, %0, %2;\n\tvote.sync.ballot.b32 m, p, 0xffffffff;\n\t"
                "and.b32 r, m, %3;\n\tpopc.b32 r, r;\n\tmad.lo.u32 a, r, 2, %1;\n\t@p st.shared.u16 [a], %0;\n\t"
                "@p shr.u32 %0, %0, 16;\n\tpopc.b32 m, m;\n\tmad.lo.u32 %1, m, 2, %1;\n\t}"
                : "+r"(x), "+r"(end) : "r"(limit), "r"(below));
        } else
#endif
        {
            bool leaves = valid && x >= limit;
            u32 all = __ballot_sync(kAllLanes, leaves);
            if (leaves) {
                store_shared16(end + 2 * __popc(all & below), x);
                x >>= 16;
            }
            end += 2 * __popc(all);
        }
        u32 quotient = __umulhi(x, e.x) >> (e.y & 31);
        u32 after = multiply_add(rest, quotient - (1u << 14), x + (e.y >> 5));
        x = FULL || valid ? after : before;
    }
};

template <bool FULL, bool PREDICT>
__device__ __forceinline__ void code_row(Coder& coder, const Symbols& s, u32 at, int values) {
    uint2 e[V];
    u32 any = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        e[i] = load_shared64(shared_item(coder.entries, symbol_index(s, i), 8));
        any |= FULL || i < values ? e[i].y : 0;
    }
    if (__any_sync(kAllLanes, any & kLookCloser)) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            uint2 mine = FULL || i < values ? e[i] : make_uint2(0, 0);
            if (!__any_sync(kAllLanes, mine.y & kLookCloser)) continue;
            uint4 found = look_closer<PREDICT>(at + i, symbol_index(s, i), mine, coder.exceptions);
            e[i] = make_uint2(found.x, found.y);
            coder.exceptions = found.z;
        }
    }
#pragma unroll
    for (int i = V - 1; i >= 0; i--) coder.put<FULL>(e[i], FULL || i < values);
}

/* What the words of a plane must be where flags leave raw planes out (decision 10); bits that break it are reported */
struct Expected {
    u32 mask[2], value[2];
    __device__ __forceinline__ explicit Expected(u32 flags) {
        mask[0] = mask[1] = value[0] = value[1] = 0;
        u32 sign = flags & FLAG_SIGN_CONSTANT ? 0x8000u : 0, nibble = flags & FLAG_NO_NIBBLES ? 15u : 0;
        u32 top = sign | nibble, value_top = flags & FLAG_SIGN_VALUE ? sign : 0;
        if (WORD == 2) mask[0] = mask[1] = top * 0x10001u, value[0] = value[1] = value_top * 0x10001u;
        if (WORD > 2) {
            u32 low = flags & FLAG_NO_LOW ? 0xFFFFu : 0;
            mask[1] = top << 16 | low, value[1] = value_top << 16;
            mask[0] = WORD == 4 ? mask[1] : flags & FLAG_NO_LOW ? 0xFFFFFFFFu : 0, value[0] = WORD == 4 ? value[1] : 0;
        }
    }
    __device__ __forceinline__ void check(uint4 row, u32 (&wrong)[2]) const {
        wrong[0] |= (row.x ^ value[0]) & mask[0], wrong[1] |= (row.y ^ value[1]) & mask[1];
        wrong[0] |= (row.z ^ value[0]) & mask[0], wrong[1] |= (row.w ^ value[1]) & mask[1];
    }
    /* The flags that do not hold */
    static __device__ __forceinline__ u32 broken(const u32 (&wrong)[2]) {
        u32 high = wrong[1] | (WORD == 4 ? wrong[0] : 0), low = WORD == 8 ? wrong[0] : 0, flags = 0;
        if (WORD == 2) high = wrong[0] | wrong[1], high |= high << 16;
        if (high & 0x80000000u) flags |= FLAG_SIGN_CONSTANT;
        if (high & 0x000F0000u) flags |= FLAG_NO_NIBBLES;
        if (WORD > 2 && ((high & 0xFFFFu) | low)) flags |= FLAG_NO_LOW;
        return flags;
    }
};

/* A last group of words, those past the end made what is expected */
__device__ __noinline__ uint4 padded_row(uint4 row, int values, u32 value0, u32 value1) {
    u32 parts[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        u32 byte = 0xFFu << i % 4 * 8;
        if (i >= values * WORD) parts[i / 4] = (parts[i / 4] & ~byte) | ((i / 4 % 2 ? value1 : value0) & byte);
    }
    return make_uint4(parts[0], parts[1], parts[2], parts[3]);
}

/* Codes a chunk and writes its part of the raw planes; says which flags are broken. `chunk` begins at the chunk. */
template <bool FULL, bool PREDICT>
__device__ __forceinline__ u32 encode_chunk(const Plane& chunk, Coder& coder, u64 first, u32 length, int lane) {
    const Expected expected(chunk.flags);
    const bool verify = LAYOUT && (expected.mask[0] | expected.mask[1]);
    DYNAMIC_SHARED(base);
    const Shared shared(base);
    const SharedAddress begin = coder.end;
    SharedAddress full = begin + shared.misc->capacity - 2 * kRow;
#ifndef NVCKPT_EMULATED
    asm volatile("" : "+r"(full)); /* keeps it in a register */
#endif
    u32 wrong[2] = {0, 0};
    int steps = FULL ? kRows / kStep : (length + kRow * kStep - 1) / (kRow * kStep);
    uint4 next[kStep];
    Walk::Raw next_levels[kStep];
    Walk walk;
    u32 at = steps * kStep * kRow + lane * V;
    if (PREDICT) walk.begin(chunk, first + at);
    auto fetch = [&](u32 from) {
#pragma unroll
        for (int u = kStep - 1; u >= 0; u--) {
            int values = FULL ? V : values_at(from + u * kRow, length);
            next[u] = values ? load_row(chunk.words, from + u * kRow, values) : zero16();
            if (PREDICT) walk.back(), next_levels[u] = walk.load();
        }
    };
    at -= kStep * kRow;
    fetch(at);
#pragma unroll 1
    for (int step = steps - 1; step >= 0; step--, at -= kStep * kRow) {
        Symbols s[kStep];
        uint4 row[kStep];
#pragma unroll
        for (int u = 0; u < kStep; u++) {
            u32 levels[kPairs] = {};
            row[u] = next[u];
            if (PREDICT) Walk::expand(next_levels[u], levels);
            s[u] = split<PREDICT>(row[u], levels);
        }
        if (step) fetch(at - kStep * kRow);
#pragma unroll
        for (int u = 0; u < kStep && LAYOUT; u++) {
            int values = FULL ? V : values_at(at + u * kRow, length);
            store_raw(chunk, at + u * kRow, values, lane, raw_bytes(row[u], s[u]));
            if (!verify || !values) continue;
            expected.check(FULL || values == V ? row[u] : padded_row(row[u], values, expected.value[0], expected.value[1]), wrong);
        }
#pragma unroll
        for (int u = kStep - 1; u >= 0; u--) {
            if (coder.end > full) {
                u32 bytes = (u32)(coder.end - begin), rest = move_words(bytes, coder.moved);
                coder.moved += bytes - rest;
                coder.end = begin + rest;
            }
            code_row<FULL, PREDICT>(coder, s[u], at + u * kRow, FULL ? V : values_at(at + u * kRow, length));
        }
    }
    return Expected::broken(wrong);
}
