// y[i] = table[indices[i]]: the embeddings of tokens.
//
// Grid: x an index, THREADS threads. Macros: INDEX_T; THREADS.
#include "common/integers.cuh"
#include "common/launch.cuh"

struct GatherRows {
    const void* table;    // [rows][row_bytes]
    const void* indices;  // [count]
    void* y;              // [count][row_bytes]
    int64_t row_bytes;    // multiple of 16
};

extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(const __grid_constant__ GatherRows params) {
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const int64_t row = static_cast<const INDEX_T*>(params.indices)[blockIdx.x], words = params.row_bytes / 16;
    const uint4* from = static_cast<const uint4*>(params.table) + row * words;
    uint4* to = static_cast<uint4*>(params.y) + blockIdx.x * words;
    for (int i = threadIdx.x; i < words; i += THREADS) to[i] = from[i];
}
