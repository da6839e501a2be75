/* Checksums of many ranges of device memory at once: XXH3's long hash, whose accumulators a range is folded into, and
 * CRC-32. What they hash never leaves the device.
 *
 * XXH3 adds up the 16 stripes of 64 bytes of a block of 1 KiB, in any order, and then scrambles: so the sums of all
 * blocks are made in parallel (1/16 of the bytes), and one chain of eight lanes a range goes through them.
 * CRC-32 is linear: each warp takes a part, in 128 interleaved words of which each skips the others' bytes by one
 * look-up in four tables, and the host puts the parts together.
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Range {
    u64 address; /* for XXH3 a multiple of 8, for CRC-32 of 16 */
    u64 size;
    u64 first; /* index of its first block's sums, or of its first part */
};

struct Item {
    u32 range, part;
};

constexpr u32 kBlocksAnItem = 64;
constexpr u64 kPrime32 = 0x9E3779B1ull;

/* The default secret, as words from every byte offset that is a multiple of 8; and from 121, for the last stripe. */
static __device__ const u64 kSecret[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull};

static __device__ __forceinline__ u64 secret_at(u32 byte) {
    const u32 word = byte / 8, bits = byte % 8 * 8;
    return bits ? kSecret[word] >> bits | kSecret[word + 1] << (64 - bits) : kSecret[word];
}

static __device__ __forceinline__ u64 product(u64 key) { return (u64)(u32)key * (key >> 32); }

static __device__ __forceinline__ u64 shuffled_xor(u64 value, int distance) {
    const u32 low = __shfl_xor_sync(~0u, (u32)value, distance);
    const u32 high = __shfl_xor_sync(~0u, (u32)(value >> 32), distance);
    return (u64)high << 32 | low;
}

/* sums[8 x (range.first + block) + lane]: what the 16 stripes of each whole block add to the accumulators. */
extern "C" __global__ void __launch_bounds__(256) block_sums(const Range *ranges, const Item *items, u64 *sums) {
    const Range range = ranges[items[blockIdx.x].range];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u64 blocks = range.size / 1024;
    for (u32 i = warp; i < kBlocksAnItem; i += warps) {
        const u64 block = (u64)items[blockIdx.x].part * kBlocksAnItem + i;
        if (block >= blocks) break;
        const u64 *words = (const u64 *)(range.address + block * 1024);
        u64 own = 0, other = 0; /* what goes to accumulator lane % 8, and to its neighbour */
        for (u32 k = 0; k < 4; k++) {
            const u64 word = words[32 * k + lane];
            own += product(word ^ kSecret[4 * k + lane / 8 + lane % 8]);
            other += word;
        }
        own += shuffled_xor(other, 1);
        own += shuffled_xor(own, 8);
        own += shuffled_xor(own, 16);
        if (lane < 8) sums[8 * (range.first + block) + lane] = own;
    }
}

/* accumulators[8 x range + lane] go through the sums of `counts[range]` blocks; lanes from 8 on only keep the warp whole. */
extern "C" __global__ void __launch_bounds__(32)
chain_blocks(const Range *ranges, const u64 *counts, const u64 *sums, u64 *accumulators) {
    if (threadIdx.x >= 8) return;
    const u64 count = counts[blockIdx.x];
    const u64 *next = sums + 8 * ranges[blockIdx.x].first + threadIdx.x;
    const u64 key = kSecret[16 + threadIdx.x];
    u64 value = accumulators[8 * blockIdx.x + threadIdx.x];
    u64 block = 0;
    /* Loads of a few blocks are under way together; only the scramble is a chain. */
    for (; block + 8 <= count; block += 8) {
        u64 ahead[8];
        for (u32 k = 0; k < 8; k++) ahead[k] = next[8 * (block + k)];
        for (u32 k = 0; k < 8; k++) {
            value += ahead[k];
            value = (value ^ value >> 47 ^ key) * kPrime32;
        }
    }
    for (; block < count; block++) {
        value += next[8 * block];
        value = (value ^ value >> 47 ^ key) * kPrime32;
    }
    accumulators[8 * blockIdx.x + threadIdx.x] = value;
}

static __device__ u64 word_at(u64 address) {
    u64 word = 0;
    for (u32 i = 0; i < 8; i++) word |= (u64)((const u8 *)address)[i] << 8 * i;
    return word;
}

/* The stripes behind the last scramble, of ranges of more than 240 bytes whose blocks were chained but for these. */
extern "C" __global__ void __launch_bounds__(32) last_stripes(const Range *ranges, u64 *accumulators) {
    if (threadIdx.x >= 8) return;
    const Range range = ranges[blockIdx.x];
    const u32 lane = threadIdx.x;
    const u64 begin = (range.size - 1) / 1024 * 1024;
    const u32 stripes = (u32)((range.size - 1 - begin) / 64);
    u64 value = accumulators[8 * blockIdx.x + lane];
    for (u32 s = 0; s < stripes; s++) {
        const u64 *words = (const u64 *)(range.address + begin + 64 * s);
        value += words[lane ^ 1] + product(words[lane] ^ kSecret[s + lane]);
    }
    const u64 last = range.address + range.size - 64;
    value += word_at(last + 8 * (lane ^ 1)) + product(word_at(last + 8 * lane) ^ secret_at(121 + 8 * lane));
    accumulators[8 * blockIdx.x + lane] = value;
}

/* Multiply two polynomials of 32 bits modulo the CRC's, the highest power in the lowest bit. */
static __device__ u32 multiply(u32 a, u32 b) {
    u32 result = 0;
    for (int bit = 31; bit >= 0; bit--) {
        if (a >> bit & 1) result ^= b;
        b = b >> 1 ^ (b & 1 ? 0xEDB88320u : 0);
    }
    return result;
}

/* parts[range.first + part]: the CRC of a part of `part_size` bytes, begun with 0 and not inverted at the end.
 * tables: 4 x 256 words that skip 512 bytes, 256 that skip one; powers: 128 words that move word i to its row's end. */
extern "C" __global__ void __launch_bounds__(128)
crc_parts(const Range *ranges, const Item *items, const u32 *tables, const u32 *powers, u32 *parts, u32 part_size) {
    __shared__ u32 table[5 * 256];
    for (u32 i = threadIdx.x; i < 5 * 256; i += blockDim.x) table[i] = tables[i];
    __syncthreads();
    const u32 lane = threadIdx.x % 32, number = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const Item item = items[number];
    const Range range = ranges[item.range];
    const u64 begin = (u64)item.part * part_size;
    const u64 left = range.size - begin;
    const u32 size = left < part_size ? (u32)left : part_size;
    const u8 *data = (const u8 *)(range.address + begin);
    const u32 rows = size / 512;
    u32 crc[4] = {0, 0, 0, 0};
    for (u32 row = 0; row < rows; row++) {
        const uint4 words = ((const uint4 *)data)[32 * row + lane];
        crc[0] ^= words.x, crc[1] ^= words.y, crc[2] ^= words.z, crc[3] ^= words.w;
        if (row + 1 == rows) break;
        for (u32 j = 0; j < 4; j++) {
            const u32 x = crc[j];
            crc[j] = table[x & 255] ^ table[256 + (x >> 8 & 255)] ^ table[512 + (x >> 16 & 255)] ^ table[768 + (x >> 24)];
        }
    }
    u32 whole = 0;
    for (u32 j = 0; j < 4; j++) whole ^= multiply(powers[4 * lane + j], crc[j]);
    for (int distance = 16; distance; distance /= 2) whole ^= __shfl_xor_sync(~0u, whole, distance);
    if (lane) return;
    for (u32 i = rows * 512; i < size; i++) whole = table[1024 + ((whole ^ data[i]) & 255)] ^ whole >> 8;
    parts[range.first + item.part] = whole;
}
