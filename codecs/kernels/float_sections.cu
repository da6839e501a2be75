/* What lies around the coded planes: headers, directories, padding (FORMAT.md 16.1 to 16.3, 16.6), and layout 0's planes.
 */
#include "float_device.cuh"

constexpr int kMost = 10; /* coded planes of a stream: 8 bytes of a word, side, bitmap */

__device__ __forceinline__ u64 up16(u64 v) { return (v + 15) & ~15ull; }
__device__ __forceinline__ u64 blocks_of(u64 count) { return (count + FLOAT_BLOCK - 1) / FLOAT_BLOCK; }
__device__ __forceinline__ u64 directory_bytes(u64 count) {
    return count ? up16(4 * (blocks_of(count) + 1 + (count + FLOAT_CHUNK - 1) / FLOAT_CHUNK)) : 0;
}

/* Sizes of the raw planes, in order: mid, sign, nibble, low; 0 where there is none */
__device__ __forceinline__ void raw_sizes(u64 m, u32 word, u32 layout, u32 flags, u64 (&sizes)[4]) {
    sizes[0] = layout == LAYOUT_ROTATED ? m : 0;
    sizes[1] = layout == LAYOUT_LOG && !(flags & FLAG_SIGN_CONSTANT) ? (m + 7) / 8 : 0;
    sizes[2] = layout == LAYOUT_LOG && !(flags & FLAG_NO_NIBBLES) ? (m + 1) / 2 : 0;
    sizes[3] = layout && word > 2 && !(flags & FLAG_NO_LOW) ? m * (word - 2) : 0;
}

/* ---- encoding ---- */

/* A stream whose planes are written; `planes` of the list from `first_plane` are its coded planes, in order */
struct Finish {
    u64 stream, n, m, tail, matrices; /* addresses: of the stream; of the input's tail; of MatrixRecord[] */
    u32 layout, word, flags, tail_size, matrix_count, first_plane, planes, reserved;
};

/* Directories from what the blocks left in `status` and `infos`, then header, padding and end; one thread block each */
extern "C" __global__ void __launch_bounds__(256)
finish_streams(const Finish* streams, const Plane* planes, const u32* status, const u32* infos, u64* sizes) {
    const Finish& s = streams[blockIdx.x];
    u32 tid = threadIdx.x, threads = blockDim.x;
    u64 raw[4], at = s.stream + FLOAT_HEADER_SIZE + 16ull * s.matrix_count;
    for (u64 i = tid; i < 2ull * s.matrix_count; i += threads)
        ((u64*)(s.stream + FLOAT_HEADER_SIZE))[i] = ((const u64*)s.matrices)[i];
    raw_sizes(s.m, s.word, s.layout, s.flags, raw);
    for (int i = 0; i < 4; i++) {
        u64 end = at + raw[i];
        if (tid < up16(end) - end) ((u8*)end)[tid] = 0;
        at = up16(end);
    }
    for (u32 p = 0; p < s.planes; p++) {
        const Plane& plane = planes[s.first_plane + p];
        u32 before = plane.first == plane.chain ? 0 : status[plane.first - 1] & kStatusValue;
        u32 blocks = (u32)blocks_of(plane.count), chunks = (u32)((plane.count + FLOAT_CHUNK - 1) / FLOAT_CHUNK);
        u32* directory = (u32*)at;
        for (u32 i = tid; i < directory_bytes(plane.count) / 4; i += threads) {
            u32 value = 0;
            if (i <= blocks) value = i ? (status[plane.first + i - 1] & kStatusValue) - before : 0;
            else if (i < blocks + 1 + chunks) value = infos[(u64)plane.first * FLOAT_CHUNKS_A_BLOCK + i - blocks - 1];
            directory[i] = value;
        }
        at += directory_bytes(plane.count) + 16ull * ((status[plane.first + blocks - 1] & kStatusValue) - before);
    }
    if (tid < FLOAT_END_SIZE) ((u8*)at)[tid] = 0;
    if (tid == 0) sizes[blockIdx.x] = at + FLOAT_END_SIZE - s.stream;
    if (tid < FLOAT_HEADER_SIZE) {
        u64 n = s.n, m = s.m;
        u32 byte = 0;
        if (tid == 0) byte = FLOAT_VERSION;
        else if (tid == 1) byte = s.layout;
        else if (tid == 2) byte = s.word;
        else if (tid == 3) byte = s.flags;
        else if (tid < 8) byte = s.matrix_count >> 8 * (tid - 4);
        else if (tid < 16) byte = (u32)(n >> 8 * (tid - 8));
        else if (tid < 24) byte = (u32)(m >> 8 * (tid - 16));
        else if (tid == 24) byte = s.tail_size;
        else if (tid >= 32 && tid < 32 + s.tail_size) byte = ((const u8*)s.tail)[tid - 32];
        ((u8*)s.stream)[tid] = (u8)byte;
    }
}

/* ---- decoding ---- */

struct Source { u64 stream, size, original; };

/* What a header says, all of it checked; offsets in bytes from the stream's start. A plane of no symbols has no limit. */
struct Parsed {
    u64 n, m, rows, columns, side;  /* rows and 16-byte aligned columns of all matrices; symbols of the side plane */
    u64 raw[4], directory[kMost], records[kMost], limit[kMost];
    u32 error, layout, word, flags, matrix_count, tail_size, planes, known;
};

enum { PARSE_SHORT = 1, PARSE_HEADER = 2, PARSE_SIZE = 3, PARSE_MATRICES = 4, PARSE_PLANES = 5 };

__device__ u32 parse_header(const Source& source, Parsed& p) {
    if (source.size < FLOAT_HEADER_SIZE + FLOAT_END_SIZE || source.original > 256u << 20) return PARSE_SHORT;
    const u8* h = (const u8*)source.stream;
    p.layout = h[1], p.word = h[2], p.flags = h[3], p.tail_size = h[24];
    p.matrix_count = ((const u32*)h)[1], p.n = ((const u64*)h)[1], p.m = ((const u64*)h)[2];
    u32 w = p.word, rest = 0;
    for (int i = 25; i < 32; i++) rest |= h[i];
    if (h[0] != FLOAT_VERSION || p.layout > 2 || (w != 1 && w != 2 && w != 4 && w != 8) || rest) return PARSE_HEADER;
    if ((p.layout && w == 1) || (p.layout == LAYOUT_ROTATED && w == 8)) return PARSE_HEADER;
    u32 allowed = FLAG_ZEROS_REMOVED | (p.matrix_count ? FLAG_SIDE_PLANE : 0);
    if (p.layout == LAYOUT_LOG) allowed |= FLAG_SIGN_CONSTANT | FLAG_NO_NIBBLES | (p.flags & FLAG_SIGN_CONSTANT ? FLAG_SIGN_VALUE : 0);
    if (p.layout && w > 2) allowed |= FLAG_NO_LOW;
    if (p.flags & ~allowed || (!p.layout && p.matrix_count)) return PARSE_HEADER;
    if (p.tail_size >= w || p.n > source.original || p.n * w + p.tail_size != source.original) return PARSE_SIZE;
    for (u32 i = p.tail_size; i < 16; i++)
        if (h[32 + i]) return PARSE_SIZE;
    if (p.layout == LAYOUT_LOG && p.n && !p.matrix_count) return PARSE_HEADER;
    if (p.m > p.n || (p.m < p.n && !(p.flags & FLAG_ZEROS_REMOVED))) return PARSE_HEADER;
    if (FLOAT_HEADER_SIZE + 16ull * p.matrix_count > source.size) return PARSE_SHORT;
    return 0;
}

/* Places of all sections; the stream must be exactly as long as they are */
__device__ u32 parse_planes(const Source& source, Parsed& p) {
    u64 at = FLOAT_HEADER_SIZE + 16ull * p.matrix_count, sizes[4];
    raw_sizes(p.m, p.word, p.layout, p.flags, sizes);
    for (int i = 0; i < 4; i++) {
        p.raw[i] = at;
        at += up16(sizes[i]);
    }
    u32 main = p.layout ? 1 : p.word;
    p.planes = main + (p.flags & FLAG_SIDE_PLANE ? 1 : 0) + (p.flags & FLAG_ZEROS_REMOVED ? 1 : 0);
    for (u32 i = 0; i < p.planes; i++) {
        u64 count = i < main ? p.m : i == main && p.flags & FLAG_SIDE_PLANE ? p.side : (p.n + 7) / 8;
        p.directory[i] = at, p.records[i] = at, p.limit[i] = 0;
        if (!count) continue;
        p.records[i] = at + directory_bytes(count);
        if (p.records[i] > source.size) return PARSE_PLANES;
        const u32* starts = (const u32*)(source.stream + at);
        p.limit[i] = starts[blocks_of(count)];
        if (starts[0]) return PARSE_PLANES;
        at = p.records[i] + 16 * p.limit[i];
        if (at > source.size) return PARSE_PLANES;
    }
    return at + FLOAT_END_SIZE == source.size ? 0 : PARSE_PLANES;
}

/* One thread block a stream */
extern "C" __global__ void __launch_bounds__(128)
parse_streams(const Source* sources, Parsed* parsed) {
    __shared__ Parsed p;
    __shared__ u64 words, rows, columns, side;
    __shared__ u32 problems;
    const Source& source = sources[blockIdx.x];
    if (threadIdx.x == 0) {
        p.error = parse_header(source, p);
        words = rows = columns = side = 0;
        problems = 0;
    }
    __syncthreads();
    u32 found = MATRICES_IN_GROUPS << 8, entry_count = p.error ? 0 : p.matrix_count, v = 16 / (p.error ? 1 : p.word);
    u64 mine[4] = {0, 0, 0, 0};
    for (u32 i = threadIdx.x; i < entry_count; i += blockDim.x) {
        MatrixRecord m = ((const MatrixRecord*)(source.stream + FLOAT_HEADER_SIZE))[i];
        bool fits = m.rows && (m.cols > 0) == (m.kind == 1) && (!m.kind || p.flags & FLAG_SIDE_PLANE);
        if (m.kind > 1 || m.reserved || !fits) found |= 1;
        u64 size = (u64)m.rows * (m.cols ? m.cols : 1);
        if (size > p.n) found |= 1, size = 0;
        mine[0] += size, mine[1] += m.cols ? m.rows : 1, mine[2] += up16(m.cols), mine[3] += m.cols ? m.rows + (u64)m.cols : 0;
        if (m.cols % v || (size % v && i + 1 < entry_count)) found |= 2;
        if (zero_has_symbol(m.base, !m.cols)) found |= 4;
        if (m.cols) found |= 8;
    }
    atomicAdd(&words, mine[0]), atomicAdd(&rows, mine[1]), atomicAdd(&columns, mine[2]), atomicAdd(&side, mine[3]);
    atomicOr(&problems, found);
    __syncthreads();
    if (threadIdx.x) return;
    if (!p.error) {
        p.rows = rows, p.columns = columns, p.side = side;
        p.known = (problems & 2 ? 0 : MATRICES_IN_GROUPS) | (problems & 4 ? MATRICES_ZERO_HAS_SYMBOL : 0) | (problems & 8 ? MATRICES_ROWCOL : 0);
        if (problems & 1 || (entry_count && words != p.n)) p.error = PARSE_MATRICES;
        else p.error = parse_planes(source, p);
    }
    parsed[blockIdx.x] = p;
}

/* Entries of the streams that have matrices, from their headers and their decoded side planes */
struct Matrices { u64 records, entries, side, levels, columns; u32 count, reserved; };

/* One thread block a stream: where each matrix begins */
extern "C" __global__ void __launch_bounds__(128)
build_entries(const Matrices* all) {
    __shared__ MatrixRecord records[128];
    __shared__ u64 starts[128], levels[128], columns[128], sides[128];
    const Matrices& m = all[blockIdx.x];
    u64 word = 0, row = 0, column = 0, side = 0; /* thread 0's */
    for (u32 from = 0; from < m.count; from += 128) {
        u32 i = from + threadIdx.x;
        if (i < m.count) records[threadIdx.x] = ((const MatrixRecord*)m.records)[i];
        __syncthreads();
        for (u32 k = 0; threadIdx.x == 0 && k < 128 && from + k < m.count; k++) {
            MatrixRecord r = records[k];
            starts[k] = word, levels[k] = row, columns[k] = column, sides[k] = side;
            word += (u64)r.rows * (r.cols ? r.cols : 1), row += r.cols ? r.rows : 1, column += up16(r.cols);
            side += r.cols ? r.rows + (u64)r.cols : 0;
        }
        __syncthreads();
        if (i < m.count) {
            MatrixRecord r = records[threadIdx.x];
            Entry e = {};
            e.start = starts[threadIdx.x], e.count = (u64)r.rows * (r.cols ? r.cols : 1), e.cols = r.cols;
            e.levels = m.levels + 4 * levels[threadIdx.x], e.columns = r.cols ? m.columns + columns[threadIdx.x] : 0;
            e.reserved = (u32)sides[threadIdx.x];
            set_division(e);
            ((Entry*)m.entries)[i] = e;
        }
        __syncthreads();
    }
}

/* One thread block a matrix: {stream, matrix} in `items` */
extern "C" __global__ void __launch_bounds__(1024)
expand_side(const Matrices* all, const uint2* items) {
    const Matrices& m = all[items[blockIdx.x].x];
    const MatrixRecord r = ((const MatrixRecord*)m.records)[items[blockIdx.x].y];
    const Entry& e = ((const Entry*)m.entries)[items[blockIdx.x].y];
    u32* levels = (u32*)e.levels;
    if (!r.cols) {
        if (threadIdx.x == 0) levels[0] = packed_level(r.base, 0);
        return;
    }
    const u8* side = (const u8*)m.side + e.reserved;
    for (u32 i = threadIdx.x; i < r.rows; i += blockDim.x) levels[i] = packed_level(r.base, side[i]);
    for (u32 j = threadIdx.x; j < r.cols; j += blockDim.x) ((u8*)e.columns)[j] = side[r.rows + (u64)j];
}

/* ---- tails, and layout 0 with words of several bytes ---- */

/* Bytes of `word`-byte words, apart: plane j holds byte word - 1 - j of each; `stride` between planes, in bytes */
struct Bytes { u64 words, planes, count, stride; u32 word, first_tile; };
constexpr u32 kByteTile = 4096;

__device__ __forceinline__ const Bytes& bytes_of(const Bytes* all, u32 count, u32 tile) {
    u32 i = 0;
    while (i + 1 < count && all[i + 1].first_tile <= tile) i++;
    return all[i];
}
extern "C" __global__ void __launch_bounds__(256)
part_bytes(const Bytes* all, u32 count) {
    const Bytes& b = bytes_of(all, count, blockIdx.x);
    u64 first = (u64)(blockIdx.x - b.first_tile) * kByteTile;
    for (u32 i = threadIdx.x; i < kByteTile && first + i < b.count; i += blockDim.x)
        for (u32 j = 0; j < b.word; j++)
            ((u8*)b.planes)[j * b.stride + first + i] = ((const u8*)b.words)[(first + i) * b.word + b.word - 1 - j];
}
extern "C" __global__ void __launch_bounds__(256)
join_bytes(const Bytes* all, u32 count) {
    const Bytes& b = bytes_of(all, count, blockIdx.x);
    u64 first = (u64)(blockIdx.x - b.first_tile) * kByteTile;
    for (u32 i = threadIdx.x; i < kByteTile && first + i < b.count; i += blockDim.x)
        for (u32 j = 0; j < b.word; j++)
            ((u8*)b.words)[(first + i) * b.word + b.word - 1 - j] = ((const u8*)b.planes)[j * b.stride + first + i];
}
struct Tail { u64 from, to; u32 size, reserved; };
extern "C" __global__ void __launch_bounds__(32)
copy_tails(const Tail* tails) {
    const Tail& t = tails[blockIdx.x];
    if (threadIdx.x < t.size) ((u8*)t.to)[threadIdx.x] = ((const u8*)t.from)[threadIdx.x];
}
