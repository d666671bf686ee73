// Feeds rows of one token the tokens that the step before has chosen. A row that ends with its token becomes padding.
//
// Grid: rows / THREADS. Macros: THREADS.
#include "common/integers.cuh"
#include "common/launch.cuh"

struct FedRows {
    const uint64_t* source;  // [2]: address of the first token, an int, and the bytes from one token to the next
    const int* stops;        // [rows, stops_per_row]: tokens that end each row; -1: none
    const int* sources;      // [rows]: which token is the row's; -1: the row is not fed
    int64_t* input_ids;      // [rows]
    int* seq_lens;           // [rows]; 0: padding
    int* slot_mapping;       // [rows]
    int* state_indices;      // [rows]
    int rows;
    int stops_per_row;
};

extern "C" __global__ void __launch_bounds__(THREADS) feed_tokens(const __grid_constant__ FedRows params) {
    const int row = blockIdx.x * THREADS + threadIdx.x;
    wait_for_earlier_kernels();
    if (row >= params.rows || params.seq_lens[row] == 0) return;
    const int source = params.sources[row];
    if (source < 0) return;
    const uint64_t address = params.source[0] + source * params.source[1];
    const int token = *reinterpret_cast<const volatile int*>(address);
    bool ends = token < 0;  // its logits were not finite
    for (int i = 0; i < params.stops_per_row; i++) ends |= token == params.stops[row * params.stops_per_row + i];
    params.input_ids[row] = ends ? 0 : token;
    if (ends) {
        params.seq_lens[row] = 0;
        params.slot_mapping[row] = params.state_indices[row] = -1;
    }
}
