/* Encoder of a coded plane: four warps a block of symbols, one chunk a warp (FORMAT.md 16.6, 16.7, decisions 11 to 13).
 *
 * Resident thread blocks take blocks of symbols by ticket, in order. Each counts a sample of its rows, makes the table,
 * codes its chunks backwards and publishes its record's length. Words are staged in shared memory and move to an area in
 * global memory, which is used again and again and so stays in the L2 cache. The record goes to its place after the next
 * block was coded: by then the lengths before it are known, and no warp waits for other blocks.
 *
 * Versions on an H200, 1 GiB of random weights, GB/s of this kernel alone: BF16 fast / FP32 fast / FP32 default
 *   1  a record is placed at once, all warps wait for its place; descriptor read anew after each store  1060 / 1180 /  593
 *   2  descriptor in registers, sampled rows loaded ahead                                               1108 / 1245 /  637
 *   3  placed after the next block; what only rare symbols need lives in shared memory, so fewer spills  1247 / 1544 /  850
 *   4  rare symbols looked at one by one; levels loaded without a condition; copies 8 deep              1362 / 1558 /  968
 *   5  the warp that is done first finds the place; 7, 6 and 6 blocks a multiprocessor                  1386 / 1614 /  979
 * With 4 GiB, all kernels of a call: 1520 / 1634 to 1750 / 887 to 961.
 *   6  predictors fitted from fewer words; symbols that the table lacks need no look at the word; BF16 default with one
 *      row in flight (550 before, 681 now): 1517 / 1732 to 1771 / 1007 to 1043
 */
#include "float_coder.cuh"

#ifndef ENCODE_BLOCKS
#define ENCODE_BLOCKS 8
#endif

constexpr u32 kTableBytes = 4 * kTableWords, kAreaBytes = kWarps * kSlotBytes + 512;

/* A block whose record waits in an area for its place */
struct Pending {
    const Plane* plane;
    u32 block, table_bytes, sizes[kWarps], raw[kWarps];
};

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
        uint4 row = load_row(plane.words + first * WORD, at, V);
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

/* Completes the record in the warp's slot: states, the last words, exceptions */
__device__ __forceinline__ void finish_record(const Shared& shared, const Coder& coder, u64 first, int lane, int warp) {
    u8* slot = shared.misc->area + warp * kSlotBytes;
    if (!shared.misc->one_symbol) {
        u32* staging = staging_of(shared, warp);
        ((u32*)slot)[lane] = coder.x;
        u32 staged = (u32)(coder.end - shared_address(staging)), padded = align16(staged);
        if (lane < (int)(padded - staged) / 2) ((u16*)staging)[staged / 2 + lane] = 0;
        slot += kStateBytes + coder.moved;
        __syncwarp();
        for (u32 i = lane; i < padded / 16; i += 32) ((uint4*)slot)[i] = ((const uint4*)staging)[i];
        slot += padded;
    }
    const u16* noted = (const u16*)(shared.exceptions + warp * kExceptionWords);
    if (coder.exceptions) write_exceptions(shared.misc->plane, noted, coder.exceptions, slot, first, lane);
}

/* Finds where a block's record belongs; one warp */
__device__ __noinline__ void find_place(const Pending* pending, u32* status) {
    DYNAMIC_SHARED(base);
    const Shared shared(base);
    u32 total = pending->table_bytes, lane = threadIdx.x % 32;
    for (int w = 0; w < kWarps; w++) total += pending->sizes[w];
    u32 before = look_back(status, pending->plane->first + pending->block, pending->plane->chain, total / 16, lane);
    if (lane == 0) shared.misc->place = before;
}

/* Copies a block's record to its place; all threads take part. A warp wrote its slot itself, and warp 0 the table's. */
__device__ __noinline__ void place_record(const Pending* pending, const u8* area) {
    DYNAMIC_SHARED(base);
    const Shared shared(base);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Plane& plane = *pending->plane;
    u32 place = pending->table_bytes;
    for (int w = 0; w < warp; w++) place += pending->sizes[w];
    u8* record = (u8*)plane.coded + plane.records + 16ull * shared.misc->place;
    if (warp == 0 && lane < (int)pending->table_bytes / 16)
        ((uint4*)record)[lane] = ((const uint4*)(area + kWarps * kSlotBytes))[lane];
    const uint4* from = (const uint4*)(area + warp * kSlotBytes);
    u32 size = pending->sizes[warp];
    if (pending->raw[warp]) {
        u64 first = (u64)pending->block * FLOAT_BLOCK + warp * FLOAT_CHUNK, length = plane.count - first;
        write_raw_chunk(&plane, record + place, first, length < FLOAT_CHUNK ? (u32)length : FLOAT_CHUNK, lane);
        return;
    }
    u32 i = lane;
    for (; i + 7 * 32 < size / 16; i += 8 * 32) {
        uint4 part[8];
#pragma unroll
        for (int k = 0; k < 8; k++) part[k] = from[i + 32 * k];
#pragma unroll
        for (int k = 0; k < 8; k++) ((uint4*)(record + place))[i + 32 * k] = part[k];
    }
    for (; i < size / 16; i += 32) ((uint4*)(record + place))[i] = from[i];
}

/* Codes a block into its area, publishes its length, and notes in `pending` what is to be placed. The warp that is done
 * first finds the place of the block before, `waiting`, if there is one. */
template <bool PREDICT>
__device__ __forceinline__ void encode_block(const Plane& plane, const Shared& shared, Pending* pending, const Pending* waiting,
                                             u32* status, u32* infos, u32* reports) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 block = shared.misc->block;
    u64 start = (u64)block * FLOAT_BLOCK;
    u32 block_length = plane.count - start < FLOAT_BLOCK ? (u32)(plane.count - start) : FLOAT_BLOCK;
    for (u32 i = threadIdx.x; i < 256 * kCopies; i += kThreads) shared.staging[i] = 0;
    __syncthreads();
    count_sample<PREDICT>(plane, shared.staging, start, block_length, block_length > FLOAT_CHUNK ? plane.sampling : 1, warp, lane);
    __syncthreads();
    if (warp == 0) {
        make_table(shared, lane);
        if (lane < (int)kTableBytes / 16)
            ((uint4*)(shared.misc->area + kWarps * kSlotBytes))[lane] = ((const uint4*)shared.table)[lane];
    }
    __syncthreads();

    u32 offset = warp * FLOAT_CHUNK, length = offset >= block_length ? 0 : block_length - offset;
    if (length > FLOAT_CHUNK) length = FLOAT_CHUNK;
    u64 first = start + offset;
    u32 size = 0, info = 0;
    bool raw = false;
    if (length) {
        Coder coder;
        coder.x = FLOAT_STATE_LOW, coder.exceptions = coder.moved = 0, coder.below = (1u << lane) - 1;
        coder.end = shared_address(staging_of(shared, warp)), coder.entries = shared_address(shared.entries);
        const Plane chunk = plane_from(plane, first);
        u32 broken = length == FLOAT_CHUNK ? encode_chunk<true, PREDICT>(chunk, coder, first, length, lane)
                                           : encode_chunk<false, PREDICT>(chunk, coder, first, length, lane);
        if (__any_sync(kAllLanes, broken)) {
            broken = warp_or(broken);
            if (lane == 0) atomicOr(reports + shared.misc->plane->stream, broken);
        }
        u32 words = (coder.moved + (u32)(coder.end - shared_address(staging_of(shared, warp)))) / 2;
        size = coded_size(words, coder.exceptions, shared.misc->one_symbol);
        raw = coder.exceptions > FLOAT_MAX_EXCEPTIONS || size >= align16(length * kValue);
        info = raw ? FLOAT_CHUNK_RAW : words | coder.exceptions << 16;
        if (raw) size = align16(length * kValue);
        else finish_record(shared, coder, first, lane, warp);
    }
    if (lane == 0) {
        pending->sizes[warp] = size, pending->raw[warp] = raw;
        infos[((u64)shared.misc->plane->first + block) * FLOAT_CHUNKS_A_BLOCK + warp] = info;
    }
    u32 order = lane == 0 ? atomicAdd(&shared.misc->done, 1u) : 0;
    if (__shfl_sync(kAllLanes, order, 0) == 0 && waiting) find_place(waiting, status);
    __syncthreads();
    if (threadIdx.x) return;
    const Plane* listed = shared.misc->plane;
    u32 total = shared.misc->table_bytes;
    for (int w = 0; w < kWarps; w++) total += pending->sizes[w];
    publish(status, listed->first + block, listed->chain, total / 16);
    pending->plane = listed, pending->block = block, pending->table_bytes = shared.misc->table_bytes;
}

/* items[i] = {plane, block}, in the order of their status indexes within each stream; capacity in bytes a warp */
extern "C" __global__ void __launch_bounds__(kThreads, ENCODE_BLOCKS)
encode_planes(const Plane* planes, const uint2* items, u32 count, u32* ticket, u32* status, u32* infos, u32* reports,
              u8* areas, u32 capacity) {
    DYNAMIC_SHARED(base);
    __shared__ Pending pending[2];
    const Shared shared(base);
    for (u32 turn = 0;; turn++) {
        u8* area = areas + (2 * (u64)blockIdx.x + turn % 2) * kAreaBytes;
        u8* other = areas + (2 * (u64)blockIdx.x + (turn + 1) % 2) * kAreaBytes;
        if (threadIdx.x == 0) {
            u32 taken = atomicAdd(ticket, 1u);
            uint2 item = items[taken < count ? taken : 0];
            shared.misc->ticket = taken, shared.misc->plane = planes + item.x, shared.misc->block = item.y;
            shared.misc->area = area, shared.misc->capacity = capacity, shared.misc->done = 0;
        }
        __syncthreads();
        bool more = shared.misc->ticket < count;
        const Pending* waiting = turn ? pending + (turn + 1) % 2 : 0;
        if (more) {
            const Plane plane = *shared.misc->plane; /* a copy: stores would make the compiler read it anew */
#if LAYOUT == 2
            if (plane.entry_count) encode_block<true>(plane, shared, pending + turn % 2, waiting, status, infos, reports);
            else
#endif
                encode_block<false>(plane, shared, pending + turn % 2, waiting, status, infos, reports);
        }
        if (!more && waiting) {
            if (threadIdx.x < 32) find_place(waiting, status);
            __syncthreads();
        }
        if (waiting) place_record(waiting, other);
        if (!more) return;
        __syncthreads();
    }
}
