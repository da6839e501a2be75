/* Copies and comparisons of many ranges of device memory in one launch: extents gathered into blocks and scattered
 * back, chunks of streams laid one after the other, decoded bytes held against the original.
 *
 * A thread block takes one part of kPart bytes of one range. Not tuned: a few of these launches serve a whole batch.
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Piece {
    u64 source, target, size; /* addresses of any alignment, bytes */
};

struct Item {
    u32 piece, part;
};

constexpr u64 kPart = 65536;

/* Bytes up to which `target` is not yet aligned to 16. */
static __device__ u64 to_alignment(u64 target, u64 size) {
    u64 head = (16 - (target & 15)) & 15;
    return head < size ? head : size;
}

extern "C" __global__ void __launch_bounds__(256) copy_pieces(const Piece *pieces, const Item *items, u32 *unused) {
    const Piece piece = pieces[items[blockIdx.x].piece];
    const u64 begin = items[blockIdx.x].part * kPart;
    const u64 size = piece.size - begin < kPart ? piece.size - begin : kPart;
    const u8 *source = (const u8 *)piece.source + begin;
    u8 *target = (u8 *)piece.target + begin;
    const u64 head = to_alignment((u64)target, size);
    const u64 wide = ((u64)source ^ (u64)target) & 15 ? 0 : (size - head) / 16;
    const u64 words = wide || ((u64)source ^ (u64)target) & 3 ? 0 : (size - head) / 4;
    const u64 done = head + 16 * wide + 4 * words;
    for (u64 i = threadIdx.x; i < head; i += blockDim.x) target[i] = source[i];
    for (u64 i = threadIdx.x; i < wide; i += blockDim.x)
        ((uint4 *)(target + head))[i] = ((const uint4 *)(source + head))[i];
    for (u64 i = threadIdx.x; i < words; i += blockDim.x)
        ((u32 *)(target + head))[i] = ((const u32 *)(source + head))[i];
    for (u64 i = done + threadIdx.x; i < size; i += blockDim.x) target[i] = source[i];
}

/* different[piece] becomes nonzero where a byte differs. */
extern "C" __global__ void __launch_bounds__(256)
compare_pieces(const Piece *pieces, const Item *items, u32 *different) {
    const u32 number = items[blockIdx.x].piece;
    const Piece piece = pieces[number];
    const u64 begin = items[blockIdx.x].part * kPart;
    const u64 size = piece.size - begin < kPart ? piece.size - begin : kPart;
    const u8 *source = (const u8 *)piece.source + begin;
    const u8 *target = (const u8 *)piece.target + begin;
    const u64 head = to_alignment((u64)target, size);
    const u64 wide = ((u64)source ^ (u64)target) & 15 ? 0 : (size - head) / 16;
    u32 found = 0;
    for (u64 i = threadIdx.x; i < head; i += blockDim.x) found |= target[i] ^ source[i];
    for (u64 i = threadIdx.x; i < wide; i += blockDim.x) {
        const uint4 a = ((const uint4 *)(source + head))[i], b = ((const uint4 *)(target + head))[i];
        found |= (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
    }
    for (u64 i = head + 16 * wide + threadIdx.x; i < size; i += blockDim.x) found |= target[i] ^ source[i];
    if (found) different[number] = 1;
}
