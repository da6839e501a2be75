/* Decoder of a coded plane: four warps a block of symbols, one chunk a warp (FORMAT.md 16.6 and 16.7).
 *
 * A thread block checks its record, spreads the frequencies into a table of 4096 slots in shared memory, and each warp
 * reads its words backwards through a ring in shared memory, joins symbols with the raw planes and undoes the
 * prediction. A stream is not trusted: no length, offset or position is used before it is checked, table slots and ring
 * places are masked, and what is wrong is reported in `errors` instead of trapping.
 *
 * Versions on an H200, 1 GiB of random weights, GB/s of this kernel alone: BF16 fast / FP32 fast / FP32 default
 *   1  descriptor read anew after each store, generic loads                      1709 / 1737 /  967
 *   2  descriptor in registers, global loads                                     1785 / 1801 /  960
 *   3  sign bytes shifted where they are used, levels loaded without a condition  1749 / 1756 / 1300
 * Version 3 hardly touches rotated layouts: runs differ by about 3 %. With 4 GiB, all kernels: 1932 / 1913 / 1407.
 *   4  BF16 default with one row in flight, so that eight blocks are resident without spills: 1174 before, 1359 now
 */
#include "float_reader.cuh"

#ifndef DECODE_BLOCKS
#define DECODE_BLOCKS 8
#endif

constexpr int kStep = WORD == 4 && !kLog ? 4 : WORD == 1 || (WORD == 2 && kLog) ? 1 : 2; /* rows in flight */

/* Codes in the errors; a plane's first problem is enough */
enum { ERROR_ORDER = 1, ERROR_TABLE = 2, ERROR_RECORD = 4, ERROR_CHUNK = 8, ERROR_STATE = 16, ERROR_END = 32, ERROR_EXCEPTION = 64 };

__device__ __forceinline__ int values_at(u32 at, u32 length) { return at >= length ? 0 : length - at < V ? length - at : V; }

/* Two symbols in their places in Symbols */
__device__ __forceinline__ u32 place_pair(u32 a, u32 b) {
    if (kLog) return (a >> 8 & 0xFF0) | (b << 8 & 0x0FF00000);
    return __byte_perm(multiply_add(a, 4096, 0), multiply_add(b, 4096, 0), 0x7030);
}

template <bool FULL> __device__ __forceinline__ Symbols read_row(Decoder& decoder, int values, int lane) {
    Symbols s;
    u32 e[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (i % 8 == 0) decoder.refill(lane);
        e[i] = decoder.get<FULL>(FULL || i < values);
    }
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
        if (LAYOUT) s.t[i] = place_pair(e[2 * i % V], e[(2 * i + 1) % V]);
        else s.t[i] = (e[4 * i % V] >> 12 & 255) | (e[(4 * i + 1) % V] >> 12 & 255) << 8 | (e[(4 * i + 2) % V] >> 12 & 255) << 16 | (e[(4 * i + 3) % V] >> 12 & 255) << 24;
    }
    return s;
}

__device__ __forceinline__ Symbols constant_row(u32 symbol) {
    Symbols s;
#pragma unroll
    for (int i = 0; i < kPairs; i++) s.t[i] = LAYOUT ? place_pair(symbol << 12, symbol << 12) : symbol * 0x01010101u;
    return s;
}

/* Words whose transformed word is 0 are 0. Others that only have symbol 0 keep what was joined. */
__device__ __forceinline__ uint4 restore_zeros(uint4 row, const Symbols& moved) {
    u32 w[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (i % 2 ? moved.t[i / 2 % kPairs] >> 16 : moved.t[i / 2 % kPairs] & 0xFFFF) continue;
        if (WORD == 2) {
            u32 half = 0xFFFFu << i % 2 * 16;
            if (!(w[i / 2 % 4] & 0x800F800Fu & half)) w[i / 2 % 4] &= ~half;
        } else if (WORD == 4) {
            if (!(w[i % 4] & 0x800FFFFFu)) w[i % 4] = 0;
        } else if (!(w[2 * i % 4] | (w[(2 * i + 1) % 4] & 0x800FFFFFu))) {
            w[(2 * i + 1) % 4] = 0;
        }
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ __forceinline__ bool has_symbol_zero(const Symbols& s) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kPairs; i++) found |= !(s.t[i] & 0xFFFF) || !(s.t[i] >> 16);
    return found;
}

/* Decodes a chunk's symbols into words. `only` is the block's single symbol, kCoded, or kStored: then `stored` has the
 * symbols of layouts 0 and 1 as they are. */
constexpr int kCoded = -1, kStored = -2;
__device__ __forceinline__ Symbols stored_row(const u8* stored, u32 at, int values) {
    u32 bytes[4] = {0, 0, 0, 0};
    if (!kLog && values) load_bytes<V>((u64)stored + at, bytes, values);
    return unpack_symbols(bytes);
}

template <bool FULL, bool PREDICT>
__device__ __forceinline__ void decode_chunk(const Plane& chunk, Decoder& decoder, u64 first, u32 length, int only,
                                             const u8* stored, bool zeros, int lane) {
    int steps = FULL ? kRows / kStep : (length + kRow * kStep - 1) / (kRow * kStep);
    RawBytes next[kStep];
    Walk::Raw next_levels[kStep];
    Walk walk;
    u32 at = lane * V;
    if (PREDICT) walk.begin(chunk, first + at);
    auto fetch = [&](u32 from) {
#pragma unroll
        for (int u = 0; u < kStep; u++) {
            next[u] = load_raw(chunk, from + u * kRow, FULL ? V : values_at(from + u * kRow, length));
            if (PREDICT) next_levels[u] = walk.load(), walk.forward(kRow);
        }
    };
    fetch(at);
#pragma unroll 1
    for (int step = 0; step < steps; step++, at += kStep * kRow) {
        RawBytes raw[kStep];
        u32 levels[kStep][kPairs];
#pragma unroll
        for (int u = 0; u < kStep; u++) {
            raw[u] = next[u];
            if (PREDICT) Walk::expand(next_levels[u], levels[u]);
        }
        if (step + 1 < steps) fetch(at + kStep * kRow);
#pragma unroll
        for (int u = 0; u < kStep; u++) {
            int values = FULL ? V : values_at(at + u * kRow, length);
            Symbols s = only == kCoded ? read_row<FULL>(decoder, values, lane) : only == kStored ? stored_row(stored, at + u * kRow, values) : constant_row(only);
            Symbols moved = s;
            if (PREDICT) {
#pragma unroll
                for (int i = 0; i < kPairs; i++) s.t[i] = (s.t[i] + (levels[u][i] & kQuantumMask)) & kQuantumMask;
            }
            uint4 row = join(s, raw[u], lane);
            if (PREDICT && zeros && has_symbol_zero(moved)) row = restore_zeros(row, moved);
            if (values) store_row(chunk.words, at + u * kRow, values, row);
        }
    }
}

/* ---- what is not coded ---- */

__device__ __forceinline__ Word load_value(const u8* from) {
    u64 value = 0;
#pragma unroll
    for (int b = 0; b < kValue; b++) value |= (u64)from[b] << 8 * b;
    return (Word)value;
}

/* Puts a value in its word's place; in layout 1 the word's other bits are there already */
__device__ __forceinline__ void place_value(const Plane& plane, u64 index, Word value) {
    Word* to = (Word*)plane.words + index;
    if (kRotated) value = with_top(*to, float_with_quantum(top_of(*to), (u32)value, LAYOUT));
    if (kLog && plane.entry_count) {
        const Entry* e = find_entry((const Entry*)plane.entries, plane.entry_count, index);
        value = restored(value, prediction_at(*e, index));
    }
    *to = value;
}

__device__ __noinline__ void place_exceptions(const Plane* plane, const u8* record, u32 count, u64 first, u32 length, u32* errors, int lane) {
    const u16* positions = (const u16*)record;
    bool wrong = false;
    for (u32 i = lane; i < count; i += 32) wrong |= positions[i] >= length || (i && positions[i - 1] >= positions[i]);
    if (__any_sync(kAllLanes, wrong)) {
        if (lane == 0) atomicOr(errors + plane->stream, (u32)ERROR_EXCEPTION);
        return;
    }
    const u8* values = record + align16(2 * count);
    for (u32 i = lane; i < count; i += 32) place_value(*plane, first + positions[i], load_value(values + i * kValue));
}

/* A raw chunk of layout 2: its transformed words */
__device__ __noinline__ void place_raw_words(const Plane* table, const u8* record, u64 first, u32 length, int lane) {
    const Plane plane = *table;
    u32 whole = plane.entry_count ? 0 : length / V * V;
#pragma unroll 4
    for (u32 at = lane * V; at < whole; at += kRow)
        store_global(plane.words + (first + at) * WORD, load_global<uint4>((u64)record + at * WORD));
    for (u32 i = whole + lane; i < length; i += 32) place_value(plane, first + i, load_value(record + i * kValue));
}

/* ---- blocks ---- */

/* Bytes of a chunk's record; more than any record where the description is impossible */
__device__ __forceinline__ u32 chunk_size(u32 info, u32 length, bool one_symbol) {
    u32 words = info & 0xFFFF, exceptions = info >> 16 & 127;
    if (info == FLOAT_CHUNK_RAW) return align16(length * kValue);
    if (info >> 23 || exceptions > length || (one_symbol && words)) return 1u << 28;
    u32 size = one_symbol ? 0 : 4 * FLOAT_LANES + align16(2 * words);
    return size + (exceptions ? align16(2 * exceptions) + align16(exceptions * kValue) : 0);
}

template <bool PREDICT>
__device__ __forceinline__ u32 decode_block(const Plane& plane, const Plane* listed, u32 block, u32* slots, u32* rings, u32* misc, u32* errors) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 blocks = (u32)((plane.count + FLOAT_BLOCK - 1) / FLOAT_BLOCK);
    const u32 *starts = (const u32*)plane.coded, *infos = starts + blocks + 1 + block * FLOAT_CHUNKS_A_BLOCK;
    u32 start = starts[block], end = starts[block + 1];
    if (start > end || end > plane.limit) return ERROR_ORDER;
    const u8* record = (const u8*)plane.records + 16ull * start;
    u64 size = 16ull * (end - start);
    u32 table = read_table(record, size > 1u << 30 ? 1u << 30 : (u32)size, slots, rings, misc);
    if (!table) return ERROR_TABLE;
    bool one_symbol = misc[MISC_USED] == 1;

    u64 block_first = (u64)block * FLOAT_BLOCK;
    u32 block_length = plane.count - block_first < FLOAT_BLOCK ? (u32)(plane.count - block_first) : FLOAT_BLOCK;
    u32 offset = warp * FLOAT_CHUNK, length = 0, info = 0, place = table, total = table;
    for (int w = 0; w < kWarps && (u32)w * FLOAT_CHUNK < block_length; w++) {
        u32 rest = block_length - w * FLOAT_CHUNK, its = rest < FLOAT_CHUNK ? rest : FLOAT_CHUNK;
        if (w == warp) length = its, info = infos[w], place = total;
        total += chunk_size(infos[w], its, one_symbol);
    }
    if (total != size) return ERROR_RECORD;
    if (!length) return 0;
    record += place;
    u64 first = block_first + offset;
    bool raw = info & FLOAT_CHUNK_RAW;
    if (kLog && raw) {
        place_raw_words(listed, record, first, length, lane);
        return 0;
    }
    u32 words = info & 0xFFFF, exceptions = info >> 16 & 127, error = 0;
    Decoder decoder;
    if (!one_symbol && !raw) {
        decoder.x = ((const u32*)record)[lane], decoder.below = (1u << lane) - 1, decoder.slots = shared_address(slots);
        if (decoder.x < FLOAT_STATE_LOW || decoder.x >> 31) error = ERROR_STATE;
        decoder.begin(record + 4 * FLOAT_LANES, words, rings + warp * kRingWords, lane);
        record += 4 * FLOAT_LANES + align16(2 * words);
    }
    int only = raw ? kStored : one_symbol ? (int)misc[MISC_ONLY] : kCoded;
    bool zeros = kLog && (one_symbol ? only == 0 : (slots[0] >> 12 & 255) == 0);
    const Plane chunk = plane_from(plane, first);
    if (length == FLOAT_CHUNK) decode_chunk<true, PREDICT>(chunk, decoder, first, length, only, record, zeros, lane);
    else decode_chunk<false, PREDICT>(chunk, decoder, first, length, only, record, zeros, lane);
    if (only == kCoded && (decoder.left(lane) || decoder.x != FLOAT_STATE_LOW)) error |= ERROR_END;
    __syncwarp();
    if (exceptions) place_exceptions(listed, record, exceptions, first, length, errors, lane);
    return error;
}

/* items[i] = {plane, block}; one thread block each */
extern "C" __global__ void __launch_bounds__(kThreads, DECODE_BLOCKS)
decode_planes(const Plane* planes, const uint2* items, u32* errors) {
    DYNAMIC_SHARED(slots);
    u32 *rings = slots + kSlots, *misc = rings + kWarps * kRingWords;
    uint2 item = items[blockIdx.x];
    const Plane* listed = planes + item.x;
    const Plane plane = *listed; /* a copy: stores would make the compiler read the table's fields again and again */
    u32 error;
#if LAYOUT == 2
    if (plane.entry_count) error = decode_block<true>(plane, listed, item.y, slots, rings, misc, errors);
    else
#endif
        error = decode_block<false>(plane, listed, item.y, slots, rings, misc, errors);
    if (error) atomicOr(errors + plane.stream, error);
}
