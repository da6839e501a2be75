/* What a decoding thread block reads: the table of its block, and each warp's words, backwards through a ring in shared
 * memory (FORMAT.md 16.6 and 16.7). Nothing read is trusted: table slots and ring places are masked.
 */
#pragma once
#include "float_words.cuh"

constexpr int kRing = 2048, kPiece = 512; /* bytes; the top piece is kept a second time below the ring */
constexpr int kSlots = FLOAT_PROBABILITY_SUM, kMisc = 16;
constexpr int kRingWords = (kRing + kPiece) / 4;
enum { MISC_SUM = 0, MISC_USED = 4, MISC_ONLY = 5 };

/* ---- table ---- */

/* Reads a block's frequencies: thread t has symbols 2 t and 2 t + 1. Returns the table's size in bytes, 0 if it is none.
 * Fills `slots` with frequency << 20 | symbol << 12 | slot - start, unless a single symbol has all slots. */
__device__ u32 read_table(const u8* record, u32 size, u32* slots, u32* scratch, u32* misc) {
    u32 *starts_in = scratch, *ranks = scratch + 128, *ranked = scratch + 256; /* by 32 slots; by 32 slots; by rank */
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    if (size < 32) return 0;
    u32 bitmap = ((const u32*)record)[lane % 8]; /* every warp looks at the whole bitmap */
    u32 counts = warp_scan(lane < 8 ? __popc(bitmap) : 0, lane), used = __shfl_sync(kAllLanes, counts, 31);
    u32 bytes = align16(32 + (used * 12 + 7) / 8);
    if (!used || bytes > size) return 0;
    u32 word = __shfl_sync(kAllLanes, bitmap, tid / 16), before = __shfl_sync(kAllLanes, counts, tid / 16);
    u32 pair = word >> tid % 16 * 2 & 3;
    u32 rank = before - __popc(word) + __popc(word & ((1u << tid % 16 * 2) - 1));
    u32 f[2] = {0, 0};
    for (int i = 0, r = rank; i < 2; i++) {
        if (!(pair >> i & 1)) continue;
        u32 at = 32 + r / 2 * 3 + r % 2, two = record[at] | (u32)record[at + 1] << 8;
        f[i] = (r % 2 ? two >> 4 : two & 4095) + 1;
        r++;
    }
    u32 mine = f[0] + f[1], scan = warp_scan(mine, lane);
    starts_in[tid] = 0;
    if (lane == 31) misc[MISC_SUM + warp] = scan;
    __syncthreads();
    u32 start = scan - mine, sum = 0;
    for (int w = 0; w < kWarps; w++) {
        if (w < warp) start += misc[MISC_SUM + w];
        sum += misc[MISC_SUM + w];
    }
    if (sum != kSlots) return 0;
    if (tid == 0) misc[MISC_USED] = used;
    for (int i = 0; i < 2; i++) {
        if (!f[i]) continue;
        atomicOr(starts_in + start / 32, 1u << start % 32);
        ranked[rank] = (f[i] & 4095) << 20 | (u32)(2 * tid + i) << 12 | start;
        if (f[i] == kSlots) misc[MISC_ONLY] = 2 * tid + i;
        start += f[i], rank++;
    }
    __syncthreads();
    u32 inside = __popc(starts_in[tid]), sums = warp_scan(inside, lane);
    if (lane == 31) misc[MISC_SUM + warp] = sums;
    __syncthreads();
    sums -= inside;
    for (int w = 0; w < warp; w++) sums += misc[MISC_SUM + w];
    ranks[tid] = sums;
    __syncthreads();
    for (int slot = tid; slot < kSlots; slot += kThreads) {
        u32 r = ranks[slot / 32] + __popc(starts_in[slot / 32] & (2u << slot % 32) - 1) - 1;
        u32 e = ranked[r];
        slots[slot] = e + (slot - 2 * (e & 4095)); /* its low 12 bits become slot - start */
    }
    __syncthreads();
    return bytes;
}

/* ---- words ---- */

/* A warp's decoder. Words are read downwards from `at`, which stays within the ring at each refill. */
struct Decoder {
    u32 x, below;
    SharedAddress at, ring, slots;
    int piece, next; /* the ring's piece that `at` is in; the number of the piece to load next */
    const u8* words;
    u32 bytes;

    __device__ __forceinline__ void load_piece(int lane) {
        int number = next--, place = number & 3;
        u32 offset = number * kPiece + lane * 16;
        if (number >= 0 && offset < bytes) {
            copy16_async(ring + place * kPiece + lane * 16, words + offset);
            if (place == 3) copy16_async(ring - kPiece + lane * 16, words + offset);
        }
        commit_copies();
    }
    __device__ __forceinline__ void begin(const u8* record, u32 count, u32* memory, int lane) {
        int last = 2 * (int)count - 1;
        words = record, bytes = 2 * count, ring = shared_address(memory) + kPiece;
        at = ring + (last & (kRing - 1)) + 1, piece = (last & (kRing - 1)) / kPiece, next = last >> 9;
        for (int i = 0; i < kRing / kPiece; i++) load_piece(lane);
        wait_copies<2>();
        __syncwarp();
    }
    /* To be called before at most 256 words are taken */
    __device__ __forceinline__ void refill(int lane) {
        int last = (int)(at - ring) - 1;
        if (last < 0) at += kRing, last += kRing;
        if (last >> 9 == piece) return;
        piece = last >> 9;
        __syncwarp();
        load_piece(lane);
        wait_copies<2>();
        __syncwarp();
    }
    /* 0 when all words were taken, and no more */
    __device__ __forceinline__ int left(int lane) {
        refill(lane);
        return (next + kRing / kPiece) * kPiece + (((int)(at - ring) - 1) & (kPiece - 1)) + 1;
    }
    /* One symbol of each lane, as its slot's entry */
    template <bool FULL> __device__ __forceinline__ u32 get(bool valid) {
        u32 e = load_shared32(shared_item(slots, x & (kSlots - 1), 4));
        u32 y = (e >> 20) * (x >> FLOAT_PROBABILITY_BITS) + (e & 4095);
#ifndef NVCKPT_EMULATED
        if (FULL) {
            asm volatile(
                "{\n\t.reg .pred p; .reg .b32 m, r, a, w;\n\tsetp.lt.u32 p, %0, 0x8000;\n\tvote.sync.ballot.b32 m, p, 0xffffffff;\n\t"
                "popc.b32 w, m;\n\tmad.lo.s32 %1, w, -2, %1;\n\tand.b32 r, m, %2;\n\tpopc.b32 r, r;\n\tmad.lo.u32 a, r, 2, %1;\n\t"
                "@p ld.shared.u16 w, [a];\n\t@p mad.lo.u32 %0, %0, 65536, w;\n\t}"
                : "+r"(y), "+r"(at) : "r"(below) : "memory");
            x = y;
            return e;
        }
#endif
        bool takes = valid && y < FLOAT_STATE_LOW;
        u32 all = __ballot_sync(kAllLanes, takes);
        at -= 2 * __popc(all);
        if (valid) x = y;
        if (takes) x = x << 16 | load_shared16(at + 2 * __popc(all & below));
        return e;
    }
};
