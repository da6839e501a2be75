/* What is looked at before matrices are fitted for `lowrank`: which rows are not all zero, and samples. */
#include "lowrank_device.cuh"

struct Rows {
    u64 words, out; /* out: a byte for each row, or the words of a sample, row after row */
    u32 rows, cols;
    u32 row_step, col_step; /* of a sample */
};

struct RowItem {
    u32 matrix, part;
};

static __device__ __forceinline__ u32 word_at(u64 words, u64 place) {
    return WORD == 2 ? ((const u16*)words)[place] : ((const u32*)words)[place];
}

/* out[row] = 1 where a word of the row is not zero. A warp a row, 8 rows an item. */
extern "C" __global__ void __launch_bounds__(256) mark_rows(const Rows* matrices, const RowItem* items) {
    const Rows matrix = matrices[items[blockIdx.x].matrix];
    const u64 row = (u64)items[blockIdx.x].part * 8 + threadIdx.x / 32;
    const u32 lane = threadIdx.x % 32;
    u32 found = 0;
    if (row < matrix.rows)
        for (u64 col = lane; col < matrix.cols && !found; col += 32)
            found = word_at(matrix.words, row * matrix.cols + col);
    found = __any_sync(kAllLanes, found != 0);
    if (!lane && row < matrix.rows) ((u8*)matrix.out)[row] = (u8)found;
}

/* Every row_step-th row's every col_step-th word. An item is a row of the sample. */
extern "C" __global__ void __launch_bounds__(128) take_sample(const Rows* matrices, const RowItem* items) {
    const Rows matrix = matrices[items[blockIdx.x].matrix];
    const u64 row = items[blockIdx.x].part, across = (matrix.cols + matrix.col_step - 1) / matrix.col_step;
    for (u64 i = threadIdx.x; i < across; i += blockDim.x) {
        const u32 word = word_at(matrix.words, row * matrix.row_step * matrix.cols + i * matrix.col_step);
        if (WORD == 2)
            ((u16*)matrix.out)[row * across + i] = (u16)word;
        else
            ((u32*)matrix.out)[row * across + i] = word;
    }
}
