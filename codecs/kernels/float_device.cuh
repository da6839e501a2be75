/* What the CUDA kernels of the float codec share: descriptors, warp and shared-memory primitives, look-back, lookups.
 *
 * Every kernel file is compiled for one kind of plane: -DWORD=<bytes> -DLAYOUT=<0, 1 or 2> (FORMAT.md 16.2).
 * Compiled by NVRTC, by nvcc, and by a C++ compiler under tests/cuda_emulation (NVCKPT_EMULATED), where a block's
 * threads are fibers and device addresses are host addresses.
 */
#pragma once
#include "float_common.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef int32_t i32;
typedef long long i64;

#ifndef WORD
#define WORD 1
#endif
#ifndef LAYOUT
#define LAYOUT 0
#endif

constexpr u32 kAllLanes = 0xffffffffu;
constexpr int kWarps = FLOAT_CHUNKS_A_BLOCK;
constexpr int kThreads = 32 * kWarps;
constexpr bool kRotated = LAYOUT == LAYOUT_ROTATED, kLog = LAYOUT == LAYOUT_LOG;
constexpr int V = 16 / WORD;                      /* values a lane has in a row: always 16 bytes */
constexpr int kPairs = LAYOUT ? (V + 1) / 2 : 4;  /* registers that hold a lane's symbols of a row */
constexpr int kRow = 32 * V;
constexpr int kRows = FLOAT_CHUNK / kRow;
constexpr int kValue = kLog ? WORD : 1; /* bytes of an exception's value, and of a raw chunk's values */
constexpr u32 kQuantumMask = 0x7FF07FF0u;

/* A matrix of the prediction, found by word index. A flat one is a single row without column offsets. */
struct Entry {
    u64 start, count;   /* in words of the stream */
    u64 levels;         /* address of u32[rows]: (base + R - 128 - 160) modulo 2048, shifted left by 4, in both halves */
    u64 columns;        /* address of u8[cols], 16-byte aligned; 0 where flat: every offset is 128 */
    u32 cols;           /* flat: 0 */
    u32 reciprocal, shift; /* row = local index * reciprocal >> 32 >> shift; 0 where flat */
    u32 reserved;
};

/* A coded plane and the raw planes beside it. Addresses of raw planes are 0 where a flag leaves them out. */
struct Plane {
    u64 words;       /* the words to code or to fill, 16-byte aligned */
    u64 count;       /* symbols */
    u64 mid, sign, nibble, low;
    u64 coded;       /* encoder: address of the stream's first directory; decoder: of this plane's directory */
    u64 records;     /* encoder: bytes of directories before this plane's records; decoder: address of the records */
    u64 limit;       /* decoder: units of 16 bytes that the records may take */
    u64 entries;     /* address of Entry[entry_count] */
    u32 entry_count; /* 0: the words are coded as they are */
    u32 chain;       /* status index of the stream's first block */
    u32 first;       /* status index of this plane's first block */
    u32 sampling;    /* every how many rows are counted for a table */
    u32 stream;      /* index of the stream's report */
    u32 flags;       /* the header's */
};

#ifdef NVCKPT_EMULATED
typedef u64 SharedAddress;
#define DYNAMIC_SHARED(name) u32* name = (u32*)emulated::dynamic_shared
static inline SharedAddress shared_address(const void* p) { return (u64)p; }
static inline u32 load_relaxed(const u32* p) { return *p; }
static inline void store_relaxed(u32* p, u32 v) { *p = v; }
static inline uint2 load_shared64(SharedAddress a) { return *(const uint2*)a; }
static inline u32 load_shared32(SharedAddress a) { return *(const u32*)a; }
static inline u32 load_shared16(SharedAddress a) { return *(const u16*)a; }
static inline void store_shared16(SharedAddress a, u32 v) { *(u16*)a = (u16)v; }
static inline u32 multiply_add(u32 a, u32 b, u32 c) { return a * b + c; }
static inline SharedAddress shared_item(SharedAddress base, u32 index, u32 size) { return base + index * size; }
static inline void copy16_async(SharedAddress to, const void* from) { *(uint4*)to = *(const uint4*)from; }
static inline void commit_copies() {}
template <int N> static inline void wait_copies() {}
#else
typedef u32 SharedAddress;
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u32 name[]
__device__ __forceinline__ SharedAddress shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u32 load_relaxed(const u32* p) {
    u32 v;
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
#endif
    return v;
}
__device__ __forceinline__ void store_relaxed(u32* p, u32 v) {
#if __CUDA_ARCH__ >= 700
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#endif
}
__device__ __forceinline__ uint2 load_shared64(SharedAddress a) {
    uint2 v;
    asm("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a));
    return v;
}
__device__ __forceinline__ u32 load_shared32(SharedAddress a) {
    u32 v;
    asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a));
    return v;
}
__device__ __forceinline__ u32 load_shared16(SharedAddress a) {
    u32 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
    return v;
}
__device__ __forceinline__ void store_shared16(SharedAddress a, u32 v) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}
/* On the FMA pipe: the integer pipe is the busy one (half rate). */
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ SharedAddress shared_item(SharedAddress base, u32 index, u32 size) { return multiply_add(index, size, base); }
__device__ __forceinline__ void copy16_async(SharedAddress to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    uint4 v = *(const uint4*)from;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> __device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
#endif

__device__ __forceinline__ u32 warp_sum(u32 v) {
#if defined(NVCKPT_EMULATED) || __CUDA_ARCH__ >= 800
    return __reduce_add_sync(kAllLanes, v);
#else
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(kAllLanes, v, d);
    return v;
#endif
}
__device__ __forceinline__ u32 warp_max(u32 v) {
#if defined(NVCKPT_EMULATED) || __CUDA_ARCH__ >= 800
    return __reduce_max_sync(kAllLanes, v);
#else
    for (int d = 16; d; d /= 2) { u32 o = __shfl_xor_sync(kAllLanes, v, d); v = o > v ? o : v; }
    return v;
#endif
}
__device__ __forceinline__ u32 warp_or(u32 v) {
    for (int d = 16; d; d /= 2) v |= __shfl_xor_sync(kAllLanes, v, d);
    return v;
}
__device__ __forceinline__ u64 warp_sum64(u64 v) {
    for (int d = 16; d; d /= 2) {
        u32 low = __shfl_xor_sync(kAllLanes, (u32)v, d), high = __shfl_xor_sync(kAllLanes, (u32)(v >> 32), d);
        v += (u64)high << 32 | low;
    }
    return v;
}
/* Sum over this lane and all lower ones */
__device__ __forceinline__ u32 warp_scan(u32 v, int lane) {
    for (int d = 1; d < 32; d *= 2) {
        u32 below = __shfl_up_sync(kAllLanes, v, d);
        if (lane >= d) v += below;
    }
    return v;
}
__device__ __forceinline__ u32 align16(u32 bytes) { return (bytes + 15) & ~15u; }
__device__ __forceinline__ uint4 zero16() { return make_uint4(0, 0, 0, 0); }

/* Addresses travel as integers, from which the compiler cannot know that they are global memory's */
#ifdef NVCKPT_EMULATED
template <class T> static inline T load_global(u64 from) { return *(const T*)from; }
template <class T> static inline void store_global(u64 to, T v) { *(T*)to = v; }
#else
template <class T> __device__ __forceinline__ T load_global(u64 from) { return __ldg((const T*)__cvta_global_to_generic(from)); }
template <class T> __device__ __forceinline__ void store_global(u64 to, T v) { *(T*)__cvta_global_to_generic(to) = v; }
#endif

/* Where a block's record begins, given its length: one warp of each block publishes its own length, then adds up those
 * of the blocks before it until it meets one that knows its end. Bits 30 and 31 of a status say which of the two it is.
 * Only the status word itself is passed on, so relaxed order is enough. */
constexpr u32 kLength = 1u << 30, kEnd = 2u << 30, kStatusValue = kLength - 1;

__device__ __forceinline__ void publish(u32* status, u32 block, u32 chain, u32 length) {
    store_relaxed(status + block, (block == chain ? kEnd : kLength) | length);
}

/* After publishing: the lengths before a block, added up by one warp. Eight groups of 32 are asked for at once. */
__device__ __forceinline__ u32 look_back(u32* status, u32 block, u32 chain, u32 length, int lane) {
    constexpr int kGroups = 8;
    if (block == chain) return 0;
    u32 before = 0;
    bool found = false;
    for (i64 last = (i64)block - 1 - lane; !found; last -= 32 * kGroups) {
        u32 v[kGroups];
#pragma unroll
        for (int k = 0; k < kGroups; k++) v[k] = last - 32 * k >= (i64)chain ? load_relaxed(status + (last - 32 * k)) : kEnd;
#pragma unroll
        for (int k = 0; k < kGroups; k++) {
            if (found) continue;
            while (__any_sync(kAllLanes, v[k] >> 30 == 0))
                if (v[k] >> 30 == 0) v[k] = load_relaxed(status + (last - 32 * k));
            u32 ends = __ballot_sync(kAllLanes, v[k] >> 30 == 2);
            int stop = ends ? __ffs(ends) - 1 : 31;
            before += warp_sum(lane <= stop ? v[k] & kStatusValue : 0);
            found = ends != 0;
        }
    }
    if (lane == 0) store_relaxed(status + block, kEnd | (before + length));
    return before;
}

/* The entry that holds word `index`; entries cover all words */
__device__ __forceinline__ const Entry* find_entry(const Entry* entries, u32 count, u64 index) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (entries[middle].start <= index) low = middle; else high = middle - 1;
    }
    return entries + low;
}

/* Row of a word in its matrix */
__device__ __forceinline__ u32 row_of(const Entry& e, u32 local) {
    return e.cols == 1 ? local : __umulhi(local, e.reciprocal) >> e.shift;
}

/* Exact division of up to 31 bits by cols (see float_make_entry); flat matrices have a single row */
__device__ __forceinline__ void set_division(Entry& e) {
    e.reciprocal = e.shift = 0;
    if (e.cols < 2) return;
    u32 shift = 0;
    while (e.cols > 1u << shift) shift++;
    e.reciprocal = (u32)(((1ull << (shift + 31)) + e.cols - 1) / e.cols);
    e.shift = shift - 1;
}

/* What a row's words lose before the column's offset: see Entry.levels */
__device__ __forceinline__ u32 packed_level(i32 base, i32 row_offset) {
    u32 level = (u32)(base + row_offset - 128 - FLOAT_CENTRE) & 2047;
    return level << 4 | level << 20;
}

/* Whether the word 0, transformed, could have a symbol: then planes are transformed apart (float_transform.cu), and
 * coders need not look for zeros. p lies between base - 128 and base + 382, or is base where flat. */
__device__ __forceinline__ bool zero_has_symbol(i32 base, bool flat) {
    return flat ? base <= FLOAT_CENTRE || base >= 2048 + FLOAT_CENTRE - 255 : base <= FLOAT_CENTRE + 128 || base >= 2048 + FLOAT_CENTRE - 255 - 382;
}

/* A matrix in a stream's header (16.3) */
struct MatrixRecord { u32 rows, cols; u16 base, kind; u32 reserved; };

/* What is known of a stream's matrices */
enum { MATRICES_IN_GROUPS = 1, MATRICES_ZERO_HAS_SYMBOL = 2, MATRICES_ROWCOL = 4 };

/* p - FLOAT_CENTRE modulo 2048, for one word, wherever it lies */
__device__ __forceinline__ i32 prediction_at(const Entry& e, u64 index) {
    u32 local = (u32)(index - e.start), row = row_of(e, local);
    u32 level = ((const u32*)e.levels)[row] >> 20;
    u32 column = e.columns ? ((const u8*)e.columns)[local - row * e.cols] : 128;
    return (i32)(level + column);
}

/* A word and its two parts: the top 16 bits, and whether the rest is zero */
#if WORD == 8
typedef u64 Word;
#elif WORD == 4
typedef u32 Word;
#elif WORD == 2
typedef u16 Word;
#else
typedef u8 Word;
#endif
constexpr int kTopShift = WORD > 1 ? 8 * WORD - 16 : 0;
__device__ __forceinline__ u32 top_of(Word w) { return (u32)(w >> kTopShift) & 0xFFFF; }
__device__ __forceinline__ bool low_is_zero(Word w) { return WORD <= 2 || (w & (Word)(((u64)1 << kTopShift) - 1)) == 0; }
__device__ __forceinline__ Word with_top(Word w, u32 top) {
    return (Word)((w & (Word)(((u64)1 << kTopShift) - 1)) | (Word)((u64)top << kTopShift));
}
__device__ __forceinline__ Word transformed(Word w, i32 prediction) {
    return with_top(w, float_transform(top_of(w), low_is_zero(w), prediction, LAYOUT));
}
__device__ __forceinline__ Word restored(Word w, i32 prediction) {
    return with_top(w, float_untransform(top_of(w), low_is_zero(w), prediction, LAYOUT));
}
__device__ __forceinline__ Word plane_word(const Plane& plane, u64 index) {
    Word w = ((const Word*)plane.words)[index];
    if (!plane.entry_count) return w;
    const Entry* e = find_entry((const Entry*)plane.entries, plane.entry_count, index);
    return transformed(w, prediction_at(*e, index));
}
