// Feeds rows of one token the tokens that the step before has chosen. A row that ends with its token becomes padding.
// Before that it copies the step's inputs from host memory, where they are few.
//
// Grid: one block. Macros: THREADS; STOPS (a multiple of 4).
#include "common/integers.cuh"
#include "common/launch.cuh"

struct FedRows {
    const uint64_t* source;  // [2]: address of the first token, an int, and the bytes from one token to the next
    const int* stops;        // [rows, STOPS], at a multiple of 16: tokens that end each row; -1: none
    const int* sources;      // [rows]: which token is the row's; -1: the row is not fed
    const void* copied;      // [bytes] on the host, or null
    void* copy;              // [bytes]: has the four that follow
    int64_t* input_ids;      // [rows]
    int* seq_lens;           // [rows]; 0: padding
    int* slot_mapping;       // [rows]
    int* state_indices;      // [rows]
    int rows;
    int bytes;               // multiple of 16
};

namespace {

// What is read for a row, over the bus: all that depends on nothing at the same time.
struct Fed {
    int source = -1, stops[STOPS] = {};
    uint64_t first = 0, stride = 0;

    __device__ __forceinline__ void load(const FedRows& params, int row) {
        first = params.source[0];
        stride = params.source[1];
        source = params.sources[row];
#pragma unroll
        for (int i = 0; i < STOPS; i += 4)
            *reinterpret_cast<int4*>(stops + i) = *reinterpret_cast<const int4*>(params.stops + row * STOPS + i);
    }
    __device__ __forceinline__ int token() const {
        return source < 0 ? 0 : *reinterpret_cast<const volatile int*>(first + source * stride);
    }
    __device__ __forceinline__ void store(const FedRows& params, int row, int token) const {
        if (source < 0 || params.seq_lens[row] == 0) return;
        bool ends = token < 0;  // its logits were not finite
#pragma unroll
        for (int i = 0; i < STOPS; i++) ends |= token == stops[i];
        params.input_ids[row] = ends ? 0 : token;
        if (!ends) return;
        params.seq_lens[row] = 0;
        params.slot_mapping[row] = params.state_indices[row] = -1;
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) feed_tokens(const __grid_constant__ FedRows params) {
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const uint4* copied = static_cast<const uint4*>(params.copied);
    uint4* copy = static_cast<uint4*>(params.copy);
    const int words = params.bytes / 16;
    // Each thread's first words and row, before anything is stored.
    uint4 word = {};
    Fed fed;
    if (threadIdx.x < words) word = __ldcv(copied + threadIdx.x);
    if (threadIdx.x < params.rows) fed.load(params, threadIdx.x);
    int token = fed.token();
    if (threadIdx.x < words) copy[threadIdx.x] = word;
    for (int i = threadIdx.x + THREADS; i < words; i += THREADS) copy[i] = __ldcv(copied + i);
    __syncthreads();  // what was copied is there
    for (int row = threadIdx.x; row < params.rows; row += THREADS) {
        if (row >= THREADS) {
            fed.load(params, row);
            token = fed.token();
        }
        fed.store(params, row, token);
    }
}
