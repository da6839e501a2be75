/* What the encoder decides at levels default and max: matrices, zeros, layout, planes left out (decisions 4 to 10).
 *
 * All sums are of integers, so their order does not matter. A flat matrix is a single row here, with more runs.
 */
#include "float_device.cuh"

constexpr int kFitThreads = 256, kFitWarps = kFitThreads / 32, kFitRows = 4; /* rows a warp */
constexpr u32 kRunWords = FLOAT_RUN_BYTES / WORD;

/* A matrix of a tensor's shape, and what becomes of it */
struct Candidate {
    u64 words, columns;          /* addresses: of the first word; of u8[cols] */
    u64 flat_cost, fitted_cost;  /* sums of decision 7, without the 1 */
    u32 rows, cols, flat;
    u32 first_row;               /* in the arrays of all rows */
    u32 first_strip;             /* in the list of strips of kRunWords columns */
    i32 base, flat_base;
    u32 rowcol;                  /* chosen */
};

/* A stream's part in fitting */
struct FitStream {
    u64 words, count, entries, matrices, side; /* side: address of the bytes R and C of its rowcol matrices */
    u32 entry_count, first_candidate;
    u32 side_count, known;       /* known: MATRICES_... */
};

/* V words at once where they are aligned and all wanted */
__device__ __forceinline__ void load_words(const Word* from, int wanted, Word (&out)[V]) {
    if (wanted == V && ((u64)from & 15) == 0) {
        uint4 v = load_global<uint4>((u64)from);
        u32 parts[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (WORD == 8) out[i] = (Word)((u64)parts[(2 * i + 1) % 4] << 32 | parts[2 * i % 4]);
            else if (WORD == 4) out[i] = (Word)parts[i % 4];
            else out[i] = (Word)(parts[i / 2 % 4] >> i % 2 * 16);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = i < wanted ? from[i] : 0;
}
__device__ __forceinline__ int wanted_of(u64 at, u64 length) { return at >= length ? 0 : length - at < V ? (int)(length - at) : V; }
__device__ __forceinline__ i32 quantum_of(Word w) { return (i32)float_quantum(top_of(w), LAYOUT); }

/* The candidate whose `first_row` (or `first_strip`) covers an index */
__device__ __forceinline__ const Candidate& candidate_of_row(const Candidate* all, u32 count, u32 row) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (all[middle].first_row <= row) low = middle; else high = middle - 1;
    }
    return all[low];
}
__device__ __forceinline__ u32 candidate_of_strip(const Candidate* all, u32 count, u32 strip) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (all[middle].first_strip <= strip) low = middle; else high = middle - 1;
    }
    return low;
}

__device__ __forceinline__ void add_quanta(const Word (&w)[V], u32& sum, u32& present) {
#pragma unroll
    for (int i = 0; i < V; i++) sum += w[i] ? quantum_of(w[i]) : 0, present += w[i] != 0;
}

__device__ __forceinline__ void put_mean(i32* mean, u32 sum, u32 present, u32 lane) {
    sum = warp_sum(sum), present = warp_sum(present);
    if (lane == 0) *mean = present ? (i32)float_mean(sum, present) : -1;
}

/* Decision 4: mean quantum of each row, -1 where the sample has zeros only. Some rows a warp, all asked for at once. */
extern "C" __global__ void __launch_bounds__(kFitThreads)
fit_rows(const Candidate* all, u32 count, u32 rows, i32* means) {
    static_assert(FLOAT_ROW_RUNS == 1, "a row is sampled by one load of each lane");
    u32 first = (blockIdx.x * kFitWarps + threadIdx.x / 32) * kFitRows, lane = threadIdx.x % 32;
    if (first >= rows) return;
    const Candidate* c = &candidate_of_row(all, count, first);
    if (!c->flat && first - c->first_row + kFitRows <= c->rows) {
        const Word* words = (const Word*)c->words + (u64)(first - c->first_row) * c->cols + lane * V;
        int wanted = wanted_of(lane * V, c->cols);
        Word w[kFitRows][V];
#pragma unroll
        for (int k = 0; k < kFitRows; k++) load_words(words + (u64)k * c->cols, wanted, w[k]);
#pragma unroll
        for (int k = 0; k < kFitRows; k++) {
            u32 sum = 0, present = 0;
            add_quanta(w[k], sum, present);
            put_mean(means + first + k, sum, present, lane);
        }
        return;
    }
    for (u32 row = first; row < rows && row < first + kFitRows; row++) {
        c = &candidate_of_row(all, count, row);
        u32 most = c->flat ? FLOAT_FLAT_RUNS : FLOAT_ROW_RUNS, sum = 0, present = 0;
        u32 runs = (u32)(((u64)c->cols + kRunWords - 1) / kRunWords), taken = runs < most ? runs : most;
        const Word* words = (const Word*)c->words + (u64)(row - c->first_row) * c->cols;
#pragma unroll 4
        for (u32 t = 0; t < taken; t++) {
            u64 at = (u64)float_spread(t, runs, most) * kRunWords + lane * V;
            Word w[V];
            load_words(words + at, wanted_of(at, c->cols), w);
            add_quanta(w, sum, present);
        }
        put_mean(means + row, sum, present, lane);
    }
}

/* Decisions 4 and 6: base and flat base of each matrix. One thread block a matrix. */
extern "C" __global__ void __launch_bounds__(kFitThreads)
fit_bases(Candidate* all, const i32* means) {
    __shared__ u32 least[kFitWarps];
    __shared__ u64 sums[kFitWarps], counts[kFitWarps];
    Candidate& c = all[blockIdx.x];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, complement = 0;
    u64 sum = 0, known = 0;
    for (u32 row = threadIdx.x; row < c.rows; row += kFitThreads) {
        i32 mean = means[c.first_row + row];
        if (mean < 0) continue;
        sum += mean, known++;
        complement = 4096u - mean > complement ? 4096u - mean : complement;
    }
    sum = warp_sum64(sum), known = warp_sum64(known), complement = warp_max(complement);
    if (lane == 0) least[warp] = complement, sums[warp] = sum, counts[warp] = known;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < kFitWarps; w++) {
        sum += sums[w], known += counts[w];
        complement = least[w] > complement ? least[w] : complement;
    }
    c.base = known ? (i32)(4096 - complement) : 0;
    c.flat_base = known ? (i32)float_mean((i64)sum, (i64)known) : 0;
    c.flat_cost = c.fitted_cost = 0;
}

__device__ __forceinline__ i32 row_offset(const Candidate& c, const i32* means, u32 row) {
    i32 mean = means[c.first_row + row];
    if (mean < 0) return 0;
    return mean - c.base < 255 ? mean - c.base : 255;
}

/* Decisions 5 and 7: column offsets and costs, a strip of columns a thread block, rows spread over its warps */
extern "C" __global__ void __launch_bounds__(kFitThreads)
fit_columns(Candidate* all, u32 count, const i32* means) {
    __shared__ i32 sums[32 * V];
    __shared__ u32 counts[32 * V];
    Candidate& c = all[candidate_of_strip(all, count, blockIdx.x)];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 column = (blockIdx.x - c.first_strip) * kRunWords + lane * V;
    int wanted = wanted_of(column, c.cols);
    const Word* words = (const Word*)c.words + column;
    for (u32 i = threadIdx.x; i < 32 * V; i += kFitThreads) sums[i] = 0, counts[i] = 0;
    i32 sum[V] = {};
    u32 present[V] = {};
    u32 rows = c.rows < FLOAT_COLUMN_SAMPLE ? c.rows : FLOAT_COLUMN_SAMPLE;
#pragma unroll 4
    for (u32 t = warp; t < rows; t += kFitWarps) {
        u32 row = float_spread(t, c.rows, FLOAT_COLUMN_SAMPLE);
        i32 level = c.base + row_offset(c, means, row);
        Word w[V];
        load_words(words + (u64)row * c.cols, wanted, w);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += w[i] ? quantum_of(w[i]) - level : 0, present[i] += w[i] != 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++) {
        atomicAdd(sums + lane * V + i, sum[i]);
        atomicAdd(counts + lane * V + i, present[i]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 32 * V; i += kFitThreads) {
        i32 mean = counts[i] ? (i32)float_mean(sums[i], counts[i]) : 0;
        mean = mean < -128 ? -128 : mean > 127 ? 127 : mean;
        sums[i] = mean;
        u32 j = (blockIdx.x - c.first_strip) * kRunWords + i;
        if (j < c.cols) ((u8*)c.columns)[j] = (u8)(mean + 128);
    }
    __syncthreads();
    u32 flat = 0, fitted = 0;
    rows = c.rows < FLOAT_COST_SAMPLE ? c.rows : FLOAT_COST_SAMPLE;
    for (u32 t = warp; t < rows; t += kFitWarps) {
        u32 row = float_spread(t, c.rows, FLOAT_COST_SAMPLE);
        i32 level = c.base + row_offset(c, means, row);
        Word w[V];
        load_words(words + (u64)row * c.cols, wanted, w);
#pragma unroll
        for (int i = 0; i < V; i++) {
            i32 q = quantum_of(w[i]), a = q - c.flat_base, b = q - level - sums[lane * V + i];
            flat += w[i] ? (u32)(a < 0 ? -a : a) : 0, fitted += w[i] ? (u32)(b < 0 ? -b : b) : 0;
        }
    }
    u64 flat_sum = warp_sum64(flat), fitted_sum = warp_sum64(fitted);
    if (lane == 0) atomicAdd(&c.flat_cost, flat_sum), atomicAdd(&c.fitted_cost, fitted_sum);
}

/* Decision 7, and the entries, header records and side offsets of a stream's matrices. One warp a stream. */
extern "C" __global__ void __launch_bounds__(32)
fit_choose(FitStream* streams, Candidate* all, u64 levels) {
    FitStream& s = streams[blockIdx.x];
    int lane = threadIdx.x;
    u32 side = 0, known = MATRICES_IN_GROUPS;
    for (u32 from = 0; from < s.entry_count; from += 32) {
        bool mine = from + lane < s.entry_count;
        Candidate& c = all[s.first_candidate + (mine ? from + lane : 0)];
        i64 size = (i64)c.rows * c.cols;
        i64 gain = size * ((i64)float_log256(1 + c.flat_cost) - (i64)float_log256(1 + c.fitted_cost));
        bool rowcol = mine && !c.flat && gain > 2048ll * ((i64)c.rows + c.cols) + 5 * size;
        u32 bytes = rowcol ? c.rows + c.cols : 0, scan = warp_scan(bytes, lane);
        if (mine) {
            Entry e = {};
            e.start = (c.words - s.words) / WORD, e.count = size;
            e.levels = levels + 4ull * c.first_row, e.columns = rowcol ? c.columns : 0, e.cols = rowcol ? c.cols : 0;
            set_division(e);
            i32 base = rowcol ? c.base : c.flat_base;
            MatrixRecord m = {rowcol ? c.rows : (u32)size, e.cols, (u16)base, (u16)rowcol, 0};
            e.reserved = side + scan - bytes; /* where its side bytes begin */
            ((Entry*)s.entries)[from + lane] = e;
            ((MatrixRecord*)s.matrices)[from + lane] = m;
            c.rowcol = rowcol;
            if (e.start % V || (rowcol && c.cols % V)) known &= ~(u32)MATRICES_IN_GROUPS;
            if (zero_has_symbol(base, !rowcol)) known |= MATRICES_ZERO_HAS_SYMBOL;
            if (rowcol) known |= MATRICES_ROWCOL;
        }
        side += __shfl_sync(kAllLanes, scan, 31);
    }
    u32 some = warp_or(known), all_of = ~warp_or(~known);
    if (lane == 0) s.side_count = side, s.known = (some & ~(u32)MATRICES_IN_GROUPS) | (all_of & MATRICES_IN_GROUPS);
}

/* The levels that coders read, and the side plane's bytes. One thread block a matrix; `stream_of` names its stream. */
extern "C" __global__ void __launch_bounds__(1024)
fit_write(const FitStream* streams, const Candidate* all, const u32* stream_of, const i32* means, u32* levels) {
    const Candidate& c = all[blockIdx.x];
    const FitStream& s = streams[stream_of[blockIdx.x]];
    if (!c.rowcol) {
        if (threadIdx.x == 0) levels[c.first_row] = packed_level(c.flat_base, 0);
        return;
    }
    u8* side = (u8*)s.side + ((const Entry*)s.entries)[blockIdx.x - s.first_candidate].reserved;
    for (u32 row = threadIdx.x; row < c.rows; row += blockDim.x) {
        i32 offset = row_offset(c, means, row);
        levels[c.first_row + row] = packed_level(c.base, offset);
        side[row] = (u8)offset;
    }
    for (u32 j = threadIdx.x; j < c.cols; j += blockDim.x) side[c.rows + j] = ((const u8*)c.columns)[j];
}

/* What a warp looks at: runs first, first + stride, ... of a stream */
struct Sample { u32 stream, first, count, stride; };

/* Per stream: words that are 0; others that would be exceptions (decision 9); what words, and what words that are not
 * 0, have been seen to hold: 1 a sign, 2 no sign, 4 a nibble, 8 low bits */
struct Seen { u32 zeros, exceptions, all, nonzero; };

extern "C" __global__ void __launch_bounds__(kFitThreads)
sample_words(const FitStream* streams, const Sample* samples, u32 count, Seen* seen) {
    u32 number = blockIdx.x * kFitWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (number >= count) return;
    Sample sample = samples[number];
    const FitStream& s = streams[sample.stream];
    u32 zeros = 0, exceptions = 0, all = 0, nonzero = 0;
    constexpr u32 kFlight = 4;
    Word flight[kFlight][V];
    const Entry* known = 0;
    for (u32 k = 0; k < sample.count; k++) {
        if (k % kFlight == 0) {
#pragma unroll
            for (u32 u = 0; u < kFlight; u++) {
                u64 at = (u64)(sample.first + (k + u) * sample.stride) * kRunWords + lane * V;
                load_words((const Word*)s.words + at, k + u < sample.count ? wanted_of(at, s.count) : 0, flight[u]);
            }
        }
        u64 at = (u64)(sample.first + k * sample.stride) * kRunWords + lane * V;
        int wanted = wanted_of(at, s.count);
        if (!wanted) continue;
        Word w[V];
#pragma unroll
        for (u32 u = 0; u < kFlight; u++)
#pragma unroll
            for (int i = 0; i < V; i++)
                if (k % kFlight == u) w[i] = flight[u][i];
        const Entry* e = 0;
        bool whole = false; /* the lane's words share a row */
        i32 level = 0;
        u8 columns[V];
        if (kLog && s.entry_count) {
            if (!known || at < known->start || at >= known->start + known->count)
                known = find_entry((const Entry*)s.entries, s.entry_count, at);
            e = known;
            u32 local = (u32)(at - e->start), row = row_of(*e, local), column = local - row * e->cols;
            whole = e->columns ? column + V <= e->cols : local + V <= e->count;
            level = (i32)(((const u32*)e->levels)[row] >> 20);
#pragma unroll
            for (int i = 0; i < V; i++) columns[i] = whole && e->columns ? ((const u8*)e->columns)[column + i] : 128;
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (i >= wanted) continue;
            u32 top = top_of(w[i]), bits = top >> 15 ? 1 : 2;
            bits |= (top & 15 ? 4 : 0) | (low_is_zero(w[i]) ? 0 : 8);
            all |= bits;
            zeros += w[i] == 0;
            if (w[i] == 0) continue;
            nonzero |= bits;
            if (!e) continue;
            i32 prediction = level + (i32)columns[i];
            if (!whole) {
                while (at + i >= e->start + e->count) e++;
                prediction = prediction_at(*e, at + i);
            }
            u32 q = ((u32)quantum_of(w[i]) - (u32)prediction) & 2047;
            exceptions += q == 0 || q > 255;
        }
    }
    zeros = warp_sum(zeros), exceptions = warp_sum(exceptions), all = warp_or(all), nonzero = warp_or(nonzero);
    if (lane) return;
    Seen* to = seen + sample.stream;
    if (zeros) atomicAdd(&to->zeros, zeros);
    if (exceptions) atomicAdd(&to->exceptions, exceptions);
    atomicOr(&to->all, all);
    atomicOr(&to->nonzero, nonzero);
}
