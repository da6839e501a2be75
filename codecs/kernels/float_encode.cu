/* Encoder of a coded plane: four warps a block of symbols, one chunk a warp (FORMAT.md 16.6, 16.7, decisions 11 to 13).
 *
 * Resident thread blocks take blocks of symbols by ticket, in order. Each counts a sample of its rows, makes the table,
 * codes its chunks backwards, learns its record's place from the blocks before it and copies its words there. Words are
 * staged in shared memory; what does not fit is moved to the warp's slot in global memory, which is used again and
 * again and so stays in the L2 cache. Raw planes go straight to their places.
 */
#include "float_words.cuh"

#ifndef ENCODE_BLOCKS
#define ENCODE_BLOCKS 8
#endif

constexpr int kStep = WORD == 4 ? 4 : WORD == 1 ? 1 : 2; /* rows in flight */
constexpr int kCopies = 16;                              /* of each counter, so that lanes seldom meet */
constexpr u32 kLookCloser = 1u << 18;                    /* in an entry's .y: not coded, or to be checked */
constexpr int kEntryWords = 516, kTableWords = 104, kMiscWords = 16, kExceptionWords = 64;
constexpr u32 kSlotBytes = FLOAT_CHUNK * (kLog ? 2 : 1); /* longer chunks are stored raw, or cannot be */

/* Shared memory of a thread block; counters share the place of the staging */
struct Shared {
    u32 *entries, *table, *misc, *exceptions, *staging;
    __device__ __forceinline__ explicit Shared(u32* base) {
        entries = base, table = entries + kEntryWords, misc = table + kTableWords;
        exceptions = misc + kMiscWords, staging = exceptions + kWarps * kExceptionWords;
    }
};
enum { MISC_TICKET = 0, MISC_SIZES = 1, MISC_PLACE = 5, MISC_TABLE = 6, MISC_ONE_SYMBOL = 7 };

__device__ __forceinline__ int values_at(u32 at, u32 length) { return at >= length ? 0 : length - at < V ? length - at : V; }

/* ---- counting and the table ---- */

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
    for (u32 k = warp; k < sampled; k += kWarps * kFlight) {
        uint4 row[kFlight];
#pragma unroll
        for (int u = 0; u < kFlight; u++) {
            u32 at = (k + u * kWarps) * sampling * kRow + lane * V;
            int values = values_at(at, length);
            row[u] = values ? load_row(plane.words, first + at, values) : zero16();
        }
#pragma unroll
        for (int u = 0; u < kFlight; u++) {
            u32 at = (k + u * kWarps) * sampling * kRow + lane * V, levels[kPairs] = {};
            int values = values_at(at, length);
            if (PREDICT && values) {
                Walk walk;
                walk.begin(plane, first + at);
                Walk::expand(walk.load(), levels);
            }
            count_row<PREDICT>(counters, split<PREDICT>(row[u], levels), row[u], values, lane);
        }
    }
}

/* Decision 11, by one warp; lane i has symbols 8 i to 8 i + 7. Writes entries, the packed table, and what misc tells. */
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
        shared.misc[MISC_TABLE] = align16(32 + (all * 12 + 7) / 8);
        shared.misc[MISC_ONE_SYMBOL] = all == 1;
    }
}

/* ---- coding ---- */

/* A warp's coder. Words pile up at `end`; `moved` bytes of them have left for `slot`. */
struct Coder {
    u32 x, exceptions, moved, below;
    SharedAddress end, table;
    u32* staging;
    u16* positions;
    const u32* present; /* the table's bitmap */
    u8* slot;

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
                : "+r"(x), "+r"(end) : "r"(limit), "r"(below) : "memory");
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

    /* Moves all whole 16 bytes of the staging to the slot; what lies beyond the slot's end belongs to a raw chunk */
    __device__ void move_words(u32 lane) {
        __syncwarp();
        u32 bytes = (u32)(end - shared_address(staging)), whole = bytes & ~15u;
        if (moved + whole <= kSlotBytes)
            for (u32 i = lane; i < whole / 16; i += 32) ((uint4*)(slot + moved))[i] = ((const uint4*)staging)[i];
        u32 left = (bytes - whole + 3) / 4, rest = lane < left ? staging[whole / 4 + lane] : 0;
        __syncwarp();
        if (lane < left) staging[lane] = rest;
        __syncwarp();
        moved += whole;
        end -= whole;
    }
};

/* The rare symbols: not in the table, without a symbol, or zero. Notes exceptions and says which entry is coded, and in
 * .z how many exceptions there are now. Arguments by value, so that the coder stays in registers. */
template <bool PREDICT>
__device__ __noinline__ uint4 look_closer(const Plane* plane, u64 word, u32 at, u32 index, uint2 e, u32 exceptions,
                                          SharedAddress table, const u32* present, u16* positions) {
    bool exception = false;
    if (e.y & kLookCloser) {
        u32 symbol = index;
        if (kLog) {
            Word w = PREDICT ? plane_word(*plane, word) : ((const Word*)plane->words)[word];
            u32 q = float_quantum(top_of(w), LAYOUT);
            symbol = q > 255 || (q == 0 && w != 0) ? 256 : q;
        }
        exception = symbol == 256 || !(present[symbol / 32] >> symbol % 32 & 1);
        e = load_shared64(table + 8 * (exception ? 256 : symbol));
    }
    u32 all = __ballot_sync(kAllLanes, exception);
    u32 place = exceptions + __popc(all & ((1u << threadIdx.x % 32) - 1));
    if (exception && place < FLOAT_MAX_EXCEPTIONS) positions[place] = (u16)at;
    return make_uint4(e.x, e.y & ~kLookCloser, exceptions + __popc(all), 0);
}

template <bool FULL, bool PREDICT>
__device__ __forceinline__ void code_row(const Plane* table, Coder& coder, const Symbols& s, u64 first, u32 at, int values) {
    uint2 e[V];
    u32 any = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        e[i] = load_shared64(shared_item(coder.table, symbol_index(s, i), 8));
        any |= FULL || i < values ? e[i].y : 0;
    }
    if (__any_sync(kAllLanes, any & kLookCloser)) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            uint2 mine = FULL || i < values ? e[i] : make_uint2(0, 0);
            uint4 found = look_closer<PREDICT>(table, first + at + i, at + i, symbol_index(s, i), mine, coder.exceptions,
                                               coder.table, coder.present, coder.positions);
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

/* Codes a chunk from its last row to its first and writes its part of the raw planes; says which flags are broken */
template <bool FULL, bool PREDICT>
__device__ __forceinline__ u32 encode_chunk(const Plane& plane, const Plane* table, Coder& coder, u64 first, u32 length, u32 capacity, int lane) {
    const Expected expected(plane.flags);
    const bool verify = LAYOUT && (expected.mask[0] | expected.mask[1]);
    const SharedAddress full = shared_address(coder.staging) + capacity - 2 * kRow;
    u32 wrong[2] = {0, 0};
    int steps = FULL ? kRows / kStep : (length + kRow * kStep - 1) / (kRow * kStep);
    uint4 next[kStep];
    Walk::Raw next_levels[kStep];
    Walk walk;
    u32 at = steps * kStep * kRow + lane * V;
    if (PREDICT) walk.begin(plane, first + at);
    auto fetch = [&](u32 from) {
#pragma unroll
        for (int u = kStep - 1; u >= 0; u--) {
            int values = FULL ? V : values_at(from + u * kRow, length);
            next[u] = values ? load_row(plane.words, first + from + u * kRow, values) : zero16();
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
        if (LAYOUT) {
#pragma unroll
            for (int u = 0; u < kStep; u++) {
                int values = FULL ? V : values_at(at + u * kRow, length);
                store_raw(plane, first + at + u * kRow, values, lane, raw_bytes(row[u], s[u]));
                if (verify && values == V) expected.check(row[u], wrong);
                if (!FULL && verify && values && values < V) {
                    uint4 last = row[u]; /* words past the end are made what is expected */
                    u32 parts[4] = {last.x, last.y, last.z, last.w};
                    for (int i = values * WORD; i < 16; i++) {
                        u32 byte = 0xFFu << i % 4 * 8, wanted = expected.value[i / 4 % 2] & byte;
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            if (k == i / 4) parts[k] = (parts[k] & ~byte) | wanted;
                    }
                    expected.check(make_uint4(parts[0], parts[1], parts[2], parts[3]), wrong);
                }
            }
        }
#pragma unroll
        for (int u = kStep - 1; u >= 0; u--) {
            if (coder.end > full) coder.move_words(lane);
            int values = FULL ? V : values_at(at + u * kRow, length);
            code_row<FULL, PREDICT>(table, coder, s[u], first, at + u * kRow, values);
        }
    }
    return Expected::broken(wrong);
}

/* ---- records ---- */

__device__ __forceinline__ u32 coded_size(u32 words, u32 exceptions, bool one_symbol) {
    u32 size = one_symbol ? 0 : 4 * FLOAT_LANES + align16(2 * words);
    return size + (exceptions ? align16(2 * exceptions) + align16(exceptions * kValue) : 0);
}

/* The value that an exception or a raw chunk keeps of one word */
__device__ __forceinline__ Word kept_value(const Plane& plane, u64 index) {
    Word w = plane_word(plane, index);
    if (kRotated) return (Word)float_quantum(top_of(w), LAYOUT);
    return w;
}
__device__ __forceinline__ void store_value(u8* to, Word value) {
#pragma unroll
    for (int b = 0; b < kValue; b++) to[b] = (u8)((u64)value >> 8 * b);
}

__device__ __noinline__ void write_raw_chunk(const Plane* table, u8* record, u64 first, u32 length, int lane) {
    const Plane plane = *table;
    u32 at = lane * V;
#pragma unroll 4
    for (; at - lane * V + kRow <= length; at += kRow) {
        uint4 row = load_row(plane.words, first + at, V);
        u32 none[kPairs] = {}, bytes[4] = {row.x, row.y, row.z, row.w};
        if (kLog && plane.entry_count) break;
        if (!kLog) pack_symbols(split<false>(row, none), bytes);
        store_bytes<kValue * V>((u64)record + at * kValue, bytes, kValue * V);
    }
    for (u32 i = at - lane * V + lane; i < length; i += 32) store_value(record + i * kValue, kept_value(plane, first + i));
    for (u32 i = length * kValue + lane; i < align16(length * kValue); i += 32) record[i] = 0;
}

/* Positions in ascending order and their values */
__device__ __noinline__ void write_exceptions(const Plane* plane, const u16* noted, u32 count, u8* record, u64 first, int lane) {
    u32 positions = align16(2 * count), values = align16(count * kValue);
    for (u32 i = lane; i < count; i += 32) {
        u32 position = noted[i], rank = 0;
        for (u32 k = 0; k < count; k++) rank += noted[k] < position;
        ((u16*)record)[rank] = (u16)position;
        store_value(record + positions + rank * kValue, kept_value(*plane, first + position));
    }
    for (u32 i = 2 * count + lane; i < positions; i += 32) record[i] = 0;
    for (u32 i = count * kValue + lane; i < values; i += 32) record[positions + i] = 0;
}

/* States, words (first those in the slot, then those in the staging), exceptions */
__device__ __forceinline__ void write_record(const Plane* table, Coder& coder, u8* record, u64 first, bool one_symbol, int lane) {
    if (!one_symbol) {
        ((u32*)record)[lane] = coder.x;
        record += 4 * FLOAT_LANES;
        u32 staged = (u32)(coder.end - shared_address(coder.staging)), padded = align16(staged);
        if (lane < (int)(padded - staged) / 2) ((u16*)coder.staging)[staged / 2 + lane] = 0;
        __syncwarp();
#pragma unroll 4
        for (u32 i = lane; i < coder.moved / 16; i += 32) ((uint4*)record)[i] = ((const uint4*)coder.slot)[i];
        record += coder.moved;
#pragma unroll 4
        for (u32 i = lane; i < padded / 16; i += 32) ((uint4*)record)[i] = ((const uint4*)coder.staging)[i];
        record += padded;
    }
    if (coder.exceptions) write_exceptions(table, coder.positions, coder.exceptions, record, first, lane);
}

template <bool PREDICT>
__device__ __forceinline__ void encode_block(const Plane& plane, const Plane* table, const Shared& shared, u32 block, u32* status, u32* infos,
                                             u32* reports, u8* slot, u32 capacity) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 start = (u64)block * FLOAT_BLOCK;
    u32 block_length = plane.count - start < FLOAT_BLOCK ? (u32)(plane.count - start) : FLOAT_BLOCK;
    for (u32 i = threadIdx.x; i < 256 * kCopies; i += kThreads) shared.staging[i] = 0;
    __syncthreads();
    count_sample<PREDICT>(plane, shared.staging, start, block_length, block_length > FLOAT_CHUNK ? plane.sampling : 1, warp, lane);
    __syncthreads();
    if (warp == 0) make_table(shared, lane);
    __syncthreads();

    u32 offset = warp * FLOAT_CHUNK, length = offset >= block_length ? 0 : block_length - offset;
    if (length > FLOAT_CHUNK) length = FLOAT_CHUNK;
    u64 first = start + offset;
    bool one_symbol = shared.misc[MISC_ONE_SYMBOL], raw = false;
    Coder coder;
    coder.x = FLOAT_STATE_LOW, coder.exceptions = coder.moved = 0, coder.below = (1u << lane) - 1;
    coder.staging = shared.staging + warp * (capacity / 4), coder.end = shared_address(coder.staging);
    coder.table = shared_address(shared.entries), coder.present = shared.table, coder.slot = slot + (u64)warp * kSlotBytes;
    coder.positions = (u16*)(shared.exceptions + warp * kExceptionWords);
    u32 size = 0, info = 0;
    if (length) {
        u32 broken = length == FLOAT_CHUNK ? encode_chunk<true, PREDICT>(plane, table, coder, first, length, capacity, lane)
                                           : encode_chunk<false, PREDICT>(plane, table, coder, first, length, capacity, lane);
        if (__any_sync(kAllLanes, broken)) {
            broken = warp_or(broken);
            if (lane == 0) atomicOr(reports + plane.stream, broken);
        }
        u32 words = (coder.moved + (u32)(coder.end - shared_address(coder.staging))) / 2;
        size = coded_size(words, coder.exceptions, one_symbol);
        raw = coder.exceptions > FLOAT_MAX_EXCEPTIONS || size >= align16(length * kValue);
        info = raw ? FLOAT_CHUNK_RAW : words | coder.exceptions << 16;
        if (raw) size = align16(length * kValue);
    }
    if (lane == 0) {
        shared.misc[MISC_SIZES + warp] = size;
        infos[((u64)plane.first + block) * FLOAT_CHUNKS_A_BLOCK + warp] = info;
    }
    __syncthreads();
    u32 place = shared.misc[MISC_TABLE];
    if (warp == 0) {
        u32 total = (place + shared.misc[MISC_SIZES] + shared.misc[MISC_SIZES + 1] + shared.misc[MISC_SIZES + 2] + shared.misc[MISC_SIZES + 3]) / 16;
        u32 before = look_back(status, plane.first + block, plane.chain, total, lane);
        if (lane == 0) shared.misc[MISC_PLACE] = before;
    }
    __syncthreads();
    u8* record = (u8*)plane.coded + plane.records + 16ull * shared.misc[MISC_PLACE];
    for (u32 i = threadIdx.x; i < place / 16; i += kThreads) ((uint4*)record)[i] = ((const uint4*)shared.table)[i];
    for (int w = 0; w < warp; w++) place += shared.misc[MISC_SIZES + w];
    if (!length) return;
    if (raw) write_raw_chunk(table, record + place, first, length, lane);
    else write_record(table, coder, record + place, first, one_symbol, lane);
}

/* items[i] = {plane, block}, in the order of their status indexes within each stream; capacity in bytes a warp */
extern "C" __global__ void __launch_bounds__(kThreads, ENCODE_BLOCKS)
encode_planes(const Plane* planes, const uint2* items, u32 count, u32* ticket, u32* status, u32* infos, u32* reports,
              u8* slots, u32 capacity) {
    DYNAMIC_SHARED(base);
    Shared shared(base);
    u8* slot = slots + (u64)blockIdx.x * kWarps * kSlotBytes;
    for (;;) {
        if (threadIdx.x == 0) shared.misc[MISC_TICKET] = atomicAdd(ticket, 1u);
        __syncthreads();
        u32 item = shared.misc[MISC_TICKET];
        if (item >= count) return;
        /* a copy: stores would make the compiler read the table's fields again and again */
        const Plane* table = planes + items[item].x;
        const Plane plane = *table;
#if LAYOUT == 2
        if (plane.entry_count) encode_block<true>(plane, table, shared, items[item].y, status, infos, reports, slot, capacity);
        else
#endif
            encode_block<false>(plane, table, shared, items[item].y, status, infos, reports, slot, capacity);
        __syncthreads();
    }
}
