/* Transformed words apart from the coder: where zeros are removed, and where matrices do not lie as the coder's walk
 * needs them (FORMAT.md 16.3 and 16.4). A tile of words a thread block; with removal, tiles learn their places by
 * look-back, taken by ticket so that a tile's predecessors have always begun. */
#include "float_device.cuh"

constexpr int kTileThreads = 256, kTileRounds = 16, kTile = kTileThreads * kTileRounds;
constexpr int kTileWarps = kTileThreads / 32, kTileGroups = kTile / 32;

/* One stream's words; `bitmap` is 0 where zeros stay */
struct Transform {
    u64 words, count, coded, bitmap; /* addresses; bitmap: u32s, a bit a word */
    u64 entries, coded_count;
    u32 entry_count, first_tile, stream, reserved;
};
enum { ERROR_BITMAP = 128 };

__device__ __forceinline__ const Transform& transform_of(const Transform* all, u32 count, u32 tile) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (all[middle].first_tile <= tile) low = middle; else high = middle - 1;
    }
    return all[low];
}
/* Predictions of ascending words, which mostly lie in one matrix */
struct Predictor {
    Entry entry;
    u64 end;
    __device__ __forceinline__ Predictor() : end(0) {}
    __device__ __forceinline__ i32 at(const Transform& t, u64 index) {
        if (index >= end) {
            entry = *find_entry((const Entry*)t.entries, t.entry_count, index);
            end = entry.start + entry.count;
        }
        return prediction_at(entry, index);
    }
};

/* Turns counts of groups of 32 words into their places in the coded words. Warp 0 does so, while the others go on until
 * the next barrier. */
__device__ __forceinline__ void place_groups(u32* groups, u32* before, u32* status, u32 tile, u32 chain) {
    int lane = threadIdx.x % 32;
    __syncthreads();
    if (threadIdx.x < 32) {
        constexpr int kMine = kTileGroups / 32;
        u32 sum = 0;
        for (int i = 0; i < kMine; i++) sum += groups[kMine * lane + i];
        u32 scan = warp_scan(sum, lane), total = __shfl_sync(kAllLanes, scan, 31), place_in = scan - sum;
        for (int i = 0; i < kMine; i++) {
            u32 count = groups[kMine * lane + i];
            groups[kMine * lane + i] = place_in;
            place_in += count;
        }
        if (lane == 0) publish(status, tile, chain, total);
        u32 place = look_back(status, tile, chain, total, lane);
        if (lane == 0) before[0] = place, before[1] = total;
    }
}

extern "C" __global__ void __launch_bounds__(kTileThreads, 4)
transform_words(const Transform* all, u32 count, u32* ticket, u32* status) {
    __shared__ u32 groups[kTileGroups], before[2], taken;
    if (threadIdx.x == 0) taken = atomicAdd(ticket, 1u);
    __syncthreads();
    const Transform t = transform_of(all, count, taken);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 first = (u64)(taken - t.first_tile) * kTile;
    Word w[kTileRounds];
    u32 bits[kTileRounds];
#pragma unroll
    for (int k = 0; k < kTileRounds; k++) {
        u64 at = first + k * kTileThreads + threadIdx.x;
        w[k] = at < t.count ? ((const Word*)t.words)[at] : 0;
        bits[k] = __ballot_sync(kAllLanes, w[k] != 0);
        if (lane == 0) groups[k * kTileWarps + warp] = __popc(bits[k]);
        if (t.bitmap && lane == 0 && at < t.count) ((u32*)t.bitmap)[at / 32] = bits[k];
    }
    if (t.bitmap) place_groups(groups, before, status, taken, t.first_tile);
    Predictor predictor;
#pragma unroll
    for (int k = 0; k < kTileRounds; k++) {
        u64 at = first + k * kTileThreads + threadIdx.x;
        bool coded = at < t.count && (w[k] || !t.bitmap);
        if (coded && t.entry_count) w[k] = transformed(w[k], predictor.at(t, at));
    }
    if (t.bitmap) __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileRounds; k++) {
        u64 at = first + k * kTileThreads + threadIdx.x, to = at;
        if (at >= t.count || (t.bitmap && !(bits[k] >> lane & 1))) continue;
        if (t.bitmap) to = before[0] + groups[k * kTileWarps + warp] + __popc(bits[k] & ((1u << lane) - 1));
        ((Word*)t.coded)[to] = w[k];
    }
}

extern "C" __global__ void __launch_bounds__(kTileThreads)
restore_words(const Transform* all, u32 count, u32* ticket, u32* status, u32* errors) {
    __shared__ u32 groups[kTileGroups], before[2], taken;
    if (threadIdx.x == 0) taken = atomicAdd(ticket, 1u);
    __syncthreads();
    const Transform t = transform_of(all, count, taken);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 first = (u64)(taken - t.first_tile) * kTile;
    u32 bits[kTileRounds];
    bool wrong = false;
#pragma unroll
    for (int k = 0; k < kTileRounds; k++) {
        u64 group = first + k * kTileThreads + warp * 32;
        bits[k] = 0;
        if (t.bitmap && group < t.count) {
            bits[k] = ((const u32*)t.bitmap)[group / 32];
            u32 rest = t.count - group < 32 ? (u32)(t.count - group) : 32;
            if (rest < 32) { /* bits past the end in its byte must be 0; whole bytes past it are nobody's */
                wrong |= (bits[k] & ((1ull << (rest + 7) / 8 * 8) - 1)) >> rest != 0;
                bits[k] &= (1u << rest) - 1;
            }
        }
        if (lane == 0) groups[k * kTileWarps + warp] = __popc(bits[k]);
    }
    if (t.bitmap) place_groups(groups, before, status, taken, t.first_tile);
    if (t.bitmap) {
        __syncthreads();
        bool last = first + kTile >= t.count;
        wrong |= last && before[0] + before[1] != t.coded_count;
    }
    Predictor predictor;
#pragma unroll
    for (int k = 0; k < kTileRounds; k++) {
        u64 at = first + k * kTileThreads + threadIdx.x, from = at;
        if (at >= t.count) continue;
        bool present = true;
        if (t.bitmap) {
            present = bits[k] >> lane & 1;
            from = before[0] + groups[k * kTileWarps + warp] + __popc(bits[k] & ((1u << lane) - 1));
            if (present && from >= t.coded_count) wrong = true, present = false;
        }
        Word w = present ? ((const Word*)t.coded)[from] : 0;
        ((Word*)t.words)[at] = present && t.entry_count ? restored(w, predictor.at(t, at)) : w;
    }
    if (wrong) atomicOr(errors + t.stream, (u32)ERROR_BITMAP);
}
