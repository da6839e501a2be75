/* A lane's 16 bytes of a row: V words as symbols and raw planes, and back (FORMAT.md 16.5).
 *
 * `Symbols` holds, in kPairs registers: layout 0 the 16 bytes; layout 1 pairs of rotated tops, symbols in bytes 1 and
 * 3; layout 2 pairs of quanta at bits 4 to 14 of each half. Rotating a pair as one register costs one instruction and
 * exchanges the pair's signs, which the mid plane's packing puts right for four values at once.
 */
#pragma once
#include "float_device.cuh"

struct Symbols { u32 t[kPairs]; };

/* Tops of the lane's words, two to a register */
__device__ __forceinline__ void tops_of(uint4 row, u32 (&tops)[kPairs]) {
    if (WORD == 8) {
        tops[0] = __byte_perm(row.y, row.w, 0x7632);
    } else if (WORD == 4) {
        tops[0] = __byte_perm(row.x, row.y, 0x7632);
        tops[1 % kPairs] = __byte_perm(row.z, row.w, 0x7632);
    } else {
        tops[0] = row.x, tops[1 % kPairs] = row.y, tops[2 % kPairs] = row.z, tops[3 % kPairs] = row.w;
    }
}

/* `levels` holds (p - 160) modulo 2048 at bits 4 to 14 of each half; the set bit 15 keeps halves from borrowing */
__device__ __forceinline__ u32 predict_pair(u32 tops, u32 levels) {
    return (((tops & kQuantumMask) | 0x80008000u) - (levels & kQuantumMask)) & kQuantumMask;
}

template <bool PREDICT> __device__ __forceinline__ Symbols split(uint4 row, const u32 (&levels)[kPairs]) {
    Symbols s;
    tops_of(row, s.t);
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
        if (kRotated) s.t[i] = __funnelshift_l(s.t[i], s.t[i], 1);
        if (kLog) s.t[i] = PREDICT ? predict_pair(s.t[i], levels[i]) : s.t[i] & kQuantumMask;
    }
    return s;
}

/* Index of value i's table entry: its symbol, or 256 where it has none */
__device__ __forceinline__ u32 symbol_index(const Symbols& s, int i) {
    if (kLog) {
        u32 q = i % 2 ? s.t[i / 2] >> 20 : (s.t[i / 2] & 0xFFFF) >> 4;
        return q < 256 ? q : 256;
    }
    if (kRotated) return i % 2 ? s.t[i / 2] >> 24 : __byte_perm(s.t[i / 2], 0, 0x4441);
    return __byte_perm(s.t[i / 4], 0, 0x4440 + i % 4);
}

/* Exchanges bit 0 of bytes 0 and 1, and of bytes 2 and 3 */
__device__ __forceinline__ u32 exchange_signs(u32 mid) {
    u32 other = __byte_perm(mid, 0, 0x2301);
    return (mid & 0xFEFEFEFEu) | (other & 0x01010101u);
}

/* Four bits that lie at bits 7, 15, 23 and 31, gathered in order */
__device__ __forceinline__ u32 gather_signs(u32 v) { return (v >> 7 & 0x01010101u) * 0x10204080u >> 28; }

/* A lane's symbols of a row as bytes, in order; layouts 0 and 1 */
__device__ __forceinline__ void pack_symbols(const Symbols& s, u32 (&out)[4]) {
    if (!LAYOUT) { out[0] = s.t[0], out[1] = s.t[1 % kPairs], out[2] = s.t[2 % kPairs], out[3] = s.t[3 % kPairs]; return; }
    out[0] = __byte_perm(s.t[0], s.t[1 % kPairs], 0x7531), out[1] = __byte_perm(s.t[2 % kPairs], s.t[3 % kPairs], 0x7531);
}
__device__ __forceinline__ Symbols unpack_symbols(const u32 (&bytes)[4]) {
    Symbols s;
#pragma unroll
    for (int i = 0; i < kPairs; i++) s.t[i] = LAYOUT ? __byte_perm(bytes[i / 2], 0, i % 2 ? 0x3424 : 0x1404) : bytes[i];
    return s;
}

struct RawBytes { u32 mid[2], nibble, sign, low[3]; };  /* a lane's part of each raw plane, lowest bytes first */

__device__ __forceinline__ RawBytes raw_bytes(uint4 row, const Symbols& s) {
    RawBytes r = {};
    if (kRotated) {
        r.mid[0] = exchange_signs(__byte_perm(s.t[0], s.t[1 % kPairs], 0x6420));
        if (WORD == 2) r.mid[1] = exchange_signs(__byte_perm(s.t[2 % kPairs], s.t[3 % kPairs], 0x6420));
    } else if (kLog) {
        u32 tops[kPairs];
        tops_of(row, tops);
        u32 n[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < (kPairs + 1) / 2; i++) {
            u32 a = tops[2 * i % kPairs], b = kPairs > 1 ? tops[(2 * i + 1) % kPairs] : 0;
            n[i] = __byte_perm(a, b, 0x6420) & 0x0F0F0F0Fu;
            r.sign |= gather_signs(__byte_perm(a, b, 0x7531)) << 4 * i;
            n[i] |= n[i] >> 4;
        }
        r.nibble = __byte_perm(n[0], n[1], 0x6420);
    }
    if (WORD == 4) {
        r.low[0] = __byte_perm(row.x, row.y, 0x5410), r.low[1] = __byte_perm(row.z, row.w, 0x5410);
    } else if (WORD == 8) {
        r.low[0] = row.x, r.low[1] = __byte_perm(row.y, row.z, 0x5410), r.low[2] = __byte_perm(row.z, row.w, 0x5432);
    }
    return r;
}

constexpr int kLowBytes = WORD > 2 ? V * (WORD - 2) : 0;

/* First `bytes` bytes of the registers; whole registers where all are wanted */
template <int ALL> __device__ __forceinline__ void store_bytes(u64 to, const u32* from, int bytes) {
    if (bytes == ALL) {
        if constexpr (ALL == 16) store_global(to, make_uint4(from[0], from[1], from[2], from[3]));
        else
        if (ALL == 8) store_global(to, make_uint2(from[0], from[1]));
        else if (ALL == 12) store_global(to, from[0]), store_global(to + 4, from[1]), store_global(to + 8, from[2]);
        else if (ALL == 4) store_global(to, from[0]);
        else if (ALL == 2) store_global(to, (u16)from[0]);
        else store_global(to, (u8)from[0]);
        return;
    }
#pragma unroll
    for (int i = 0; i < ALL; i++)
        if (i < bytes) ((u8*)to)[i] = (u8)(from[i / 4] >> i % 4 * 8);
}
template <int ALL> __device__ __forceinline__ void load_bytes(u64 from, u32* to, int bytes) {
    if (bytes == ALL) {
        if constexpr (ALL == 16) { uint4 v = load_global<uint4>(from); to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w; }
        else
        if (ALL == 8) { uint2 v = load_global<uint2>(from); to[0] = v.x, to[1] = v.y; }
        else if (ALL == 12) to[0] = load_global<u32>(from), to[1] = load_global<u32>(from + 4), to[2] = load_global<u32>(from + 8);
        else if (ALL == 4) to[0] = load_global<u32>(from);
        else if (ALL == 2) to[0] = load_global<u16>(from);
        else to[0] = load_global<u8>(from);
        return;
    }
#pragma unroll
    for (int i = 0; i < ALL; i++)
        if (i < bytes) to[i / 4] |= (u32)((const u8*)from)[i] << i % 4 * 8;
}

/* Lanes that share a byte of the sign plane: 1, 2 or 4 */
constexpr int kSignLanes = V >= 8 ? 1 : 8 / V;

/* The plane from a word on, a multiple of 8 */
__device__ __forceinline__ Plane plane_from(const Plane& plane, u64 first) {
    Plane rest = plane;
    rest.words += first * WORD;
    rest.mid += first;
    if (rest.sign) rest.sign += first / 8;
    if (rest.nibble) rest.nibble += first / 2;
    if (rest.low) rest.low += first * (WORD > 2 ? WORD - 2 : 0);
    return rest;
}

/* `index` is that of the lane's first word from the plane's begin, `values` how many of its V words exist. All lanes take part. */
__device__ __forceinline__ void store_raw(const Plane& plane, u32 index, int values, int lane, const RawBytes& r) {
    if constexpr (kRotated)
        if (values) store_bytes<V>(plane.mid + index, r.mid, values);
    if (kLog && plane.sign) {
        u32 bits = r.sign << (lane % kSignLanes) * V;
        if (kSignLanes >= 2) bits |= __shfl_xor_sync(kAllLanes, bits, 1);
        if (kSignLanes == 4) bits |= __shfl_xor_sync(kAllLanes, bits, 2);
        if (lane % kSignLanes == 0 && values) store_global(plane.sign + index / 8, (u8)bits);
    }
    if (kLog && plane.nibble && values) store_bytes<(V > 1 ? V / 2 : 1)>(plane.nibble + index / 2, &r.nibble, (values + 1) / 2);
    if (WORD > 2 && plane.low && values) store_bytes<(kLowBytes ? kLowBytes : 1)>(plane.low + index * (u32)(WORD - 2), r.low, values * (WORD - 2));
}
__device__ __forceinline__ RawBytes load_raw(const Plane& plane, u32 index, int values) {
    RawBytes r = {};
    if (!values) return r;
    if constexpr (kRotated) load_bytes<V>(plane.mid + index, r.mid, values);
    if (kLog && plane.sign) r.sign = load_global<u8>(plane.sign + index / 8); /* shifted where it is used, not waited for here */
    else if (kLog && plane.flags & FLAG_SIGN_VALUE) r.sign = 0xFF;
    if (kLog && plane.nibble) load_bytes<(V > 1 ? V / 2 : 1)>(plane.nibble + index / 2, &r.nibble, (values + 1) / 2);
    if (WORD > 2 && plane.low) load_bytes<(kLowBytes ? kLowBytes : 1)>(plane.low + index * (u32)(WORD - 2), r.low, values * (WORD - 2));
    return r;
}

/* The inverse of gather_signs: four bits to bits 7, 15, 23 and 31 */
__device__ __forceinline__ u32 spread_signs(u32 bits) { return (bits & 15) * 0x10204080u & 0x80808080u; }

/* Words from symbols (as in Symbols, the quanta restored) and raw planes */
__device__ __forceinline__ uint4 join(const Symbols& s, const RawBytes& r, int lane) {
    u32 tops[kPairs];
    if (!LAYOUT) return make_uint4(s.t[0], s.t[1 % kPairs], s.t[2 % kPairs], s.t[3 % kPairs]);
    if (kRotated) {
        u32 mid[2] = {exchange_signs(r.mid[0]), exchange_signs(r.mid[1])};
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            u32 pair = __byte_perm(s.t[i], mid[i / 2], i % 2 ? 0x3716 : 0x3514);
            tops[i] = __funnelshift_r(pair, pair, 1);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kPairs; i++) {
            u32 two = r.nibble >> (i % 4 * 8), nibbles = (two & 15) | (two & 0xF0) << 12;
            u32 four = spread_signs(r.sign >> (i / 2 * 4 + lane % kSignLanes * V));
            u32 signs = i % 2 ? (four >> 8 & 0x8000) | (four & 0x80000000u) : (four << 8 & 0x8000) | (four << 16 & 0x80000000u);
            tops[i] = s.t[i] | nibbles | signs;
        }
    }
    if (WORD == 2) return make_uint4(tops[0], tops[1 % kPairs], tops[2 % kPairs], tops[3 % kPairs]);
    if (WORD == 4)
        return make_uint4(__byte_perm(r.low[0], tops[0], 0x5410), __byte_perm(r.low[0], tops[0], 0x7632),
                          __byte_perm(r.low[1], tops[1 % kPairs], 0x5410), __byte_perm(r.low[1], tops[1 % kPairs], 0x7632));
    return make_uint4(r.low[0], __byte_perm(r.low[1], tops[0], 0x5410), __byte_perm(r.low[1], r.low[2], 0x5432),
                      __byte_perm(r.low[2], tops[0], 0x7632));
}

/* The lane's 16 bytes of a row of words, fewer where the plane ends */
__device__ __forceinline__ uint4 load_row(u64 words, u32 index, int values) {
    if (values == V) return load_global<uint4>(words + index * WORD);
    u32 part[4] = {0, 0, 0, 0};
    for (int i = 0; i < values * WORD; i++) {
        u32 byte = ((const u8*)(words + index * WORD))[i];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i / 4 == k) part[k] |= byte << i % 4 * 8;
    }
    return make_uint4(part[0], part[1], part[2], part[3]);
}
__device__ __forceinline__ void store_row(u64 words, u32 index, int values, uint4 row) {
    if (values == V) { store_global(words + index * WORD, row); return; }
    u32 part[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < values * WORD) ((u8*)(words + index * WORD))[i] = (u8)(part[i / 4] >> i % 4 * 8);
}

#ifdef NVCKPT_EMULATED
alignas(16)
#else
__align__(16)
#endif
__device__ u32 flat_columns[4] = {0x80808080u, 0x80808080u, 0x80808080u, 0x80808080u};

/* A lane's walk over the matrices, row after row of a chunk in either direction. Only for planes whose matrices begin
 * and wrap at multiples of V, so that a lane's V words share a matrix row. */
struct Walk {
    const Entry *entry, *end;
    u32 local, count, cols, reciprocal, shift, mask;
    u64 levels, columns;

    __device__ __forceinline__ void enter(const Entry* e) {
        entry = e;
        count = (u32)e->count, cols = e->cols, reciprocal = e->reciprocal, shift = e->shift;
        levels = e->levels, columns = e->columns ? e->columns : (u64)flat_columns, mask = e->columns ? ~0u : 0;
    }
    __device__ __forceinline__ void begin(const Plane& plane, u64 index) {
        const Entry* first = (const Entry*)plane.entries;
        end = first + plane.entry_count;
        enter(find_entry(first, plane.entry_count, index));
        local = (u32)(index - entry->start);
    }
    /* Never before the first word */
    __device__ __forceinline__ void back() {
        local -= kRow;
        while ((i32)local < 0) { enter(entry - 1); local += count; }
    }
    __device__ __forceinline__ void forward(u32 words) {
        local += words;
        while (local >= count && entry + 1 < end) { local -= count; enter(entry + 1); }
    }
    struct Raw { u32 level, columns[2]; };
    __device__ __forceinline__ Raw load() const {
        Raw raw = {0, {0, 0}};
        if (local >= count) return raw;
        u32 row = __umulhi(local, reciprocal) >> shift;
        raw.level = load_global<u32>(levels + 4ull * row);
        load_bytes<(V <= 8 ? V : 8)>(columns + (local - row * cols & mask), raw.columns, V <= 8 ? V : 8);
        return raw;
    }
    static __device__ __forceinline__ void expand(const Raw& raw, u32 (&out)[kPairs]) {
#pragma unroll
        for (int i = 0; i < kPairs; i++)
            out[i] = (__byte_perm(raw.columns[i / 2], 0, i % 2 ? 0x4342 : 0x4140) << 4) + raw.level;
    }
};
