// The lengths of the rings after a step: the kernels that read a ring have many blocks, none of which may change its
// length.
//
// One thread a row. Macros: THREADS; RING.
#include "common/launch.cuh"
#include "common/ring.cuh"
#include "common/rows.cuh"

struct RingLengths {
    Rows rows;
    int* lengths;    // [slots]: tokens in the ring
    int most_added;  // rows of at most so many tokens add them to their rings; those of more empty theirs
};

extern "C" __global__ void __launch_bounds__(THREADS) count_ring_tokens(const __grid_constant__ RingLengths params) {
    const int row = blockIdx.x * THREADS + threadIdx.x;
    wait_for_earlier_kernels();
    if (row >= params.rows.rows) return;
    const RowView view = row_view(params.rows, row);
    if (view.slot < 0 || view.length == 0) return;
    const int stored = stored_tokens(params.lengths, view.slot, RING);
    params.lengths[view.slot] = view.length <= params.most_added && stored < RING - 1 ? stored + 1 : 0;
    if (!params.rows.num_accepted || view.length > params.rows.draft_slots) return;
    for (int token = 0; token < view.length; ++token) {
        const int slot = draft_slot(params.rows, row, token);
        if (slot >= 0) params.lengths[slot] = 0;
    }
}
