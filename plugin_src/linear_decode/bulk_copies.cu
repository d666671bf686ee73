// A matrix product with few rows of x, bound by reading the weights once: weights by bulk copies (sm_90 and up).
//
// One block per multiprocessor. A block takes 8 * GROUPS weight rows at a time (a pass), next to those of its
// neighbours. The inputs are cut into phases; a warp has INPUTS neighbouring ones of each phase, and keeps them in
// registers while the pass lasts, or for good where there is one phase. Its piece of 8 weight rows is a stage: 8 bulk
// copies of up to 2 * INPUTS bytes, a request size that reaches the memory's bandwidth where 16-byte copies of threads
// do not. STAGES pieces of every warp are in flight; a warp waits for its own copies only, and they start before the
// kernels ahead have finished: weights are constant.
//
// The products run on tensor cores with x as the operand of 16 rows. A lane's inputs are the 8 consecutive ones from
// 8 * (lane % 4) on, for x and weights alike: not the hardware's order, which does not matter for a sum.
// pass_end.cuh writes the outputs.
#include "common/bulk_copy.cuh"
#include "linear_decode/pass_end.cuh"

constexpr int INPUTS = 256;
constexpr int PARTS = NORM || ROW_BLOCKS == 2 ? 4 : 1;  // which leave registers for both x and the weights
#include "linear_decode/phases.cuh"

#if __CUDA_ARCH__ >= 900

namespace {

// Bytes from a weight row to the next in shared memory: an odd multiple of 64, so that two rows cover all banks.
constexpr int PITCH = 2 * INPUTS + 64;

struct Shared {
    unsigned char ring[WARPS][STAGES][8 * PITCH];
    PassEnd pass_end;
    uint64_t arrived[WARPS][STAGES];
    uint64_t released[WARPS];
};

// A warp's next copy.
struct Stream : Piece {
    int stage;
    int releases;  // parity

    // Copies into the stage that the warp has just read. The copy engine keeps no order with a warp's loads: they are
    // known to be over once every lane's arrival after its own is seen.
    __device__ __forceinline__ void refill(const LinearDecode& params, const Span& span, const Split& split,
                                           Shared& shared) {
        uint64_t* released = &shared.released[threadIdx.x / 32];
        barrier_arrive(released);
        barrier_wait(released, releases);
        releases ^= 1;
        copy(params, span, split, shared);
    }

    __device__ __forceinline__ void copy(const LinearDecode& params, const Span& span, const Split& split,
                                         Shared& shared) {
        if (pass >= span.passes()) return;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int row = 8 * (span.group(pass) + q / MATRICES);
        const int input = split.first(phase, warp);
        const int bytes = 2 * max(0, min(split.inputs, params.inputs - input));
        const int rows = min(8, params.outputs - row);
        uint64_t* arrived = &shared.arrived[warp][stage];
        if (lane == 0) barrier_arrive_expecting(arrived, rows * bytes);
        __syncwarp();
        if (lane < rows && bytes > 0) {
            const void* matrix = q % MATRICES ? params.up_weight : params.weight;
            const DATA_T* from = static_cast<const DATA_T*>(matrix) + (row + lane) * params.weight_stride + input;
            copy_bulk(&shared.ring[warp][stage][lane * PITCH], from, bytes, arrived);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        advance(span, split);
    }
};

// Part `part` of a stage: what the lane needs of it.
__device__ __forceinline__ void load_weights(uint4 (&weights)[PART], const Phase& phase, const unsigned char* stage,
                                             int part) {
    const int lane = threadIdx.x % 32;
    const unsigned char* at = stage + lane / 4 * PITCH + lane % 4 * 16 + part * PART * 64;
#pragma unroll
    for (int c = 0; c < PART; c++) {
        weights[c] = make_uint4(0, 0, 0, 0);
        if (32 * (part * PART + c) < phase.valid) weights[c] = *reinterpret_cast<const uint4*>(at + 64 * c);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_decode(const __grid_constant__ LinearDecode params) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        for (int stage = 0; stage < STAGES; stage++) barrier_init(&shared.arrived[warp][stage], 1);
        barrier_init(&shared.released[warp], 32);
        barriers_publish();
    }
    shared.pass_end.init();
    __syncwarp();
    const Span span(params.outputs);
    const Split split(params.inputs);
    Stream stream = {{0, 0, 0}, 0, 0};
    for (int stage = 0; stage < STAGES; stage++) stream.copy(params, span, split, shared);
    __syncthreads();  // the barriers of the products are there
    wait_for_earlier_kernels();

    Phase phase;
    phase.valid = 0;
    int stage = 0, parity = 0;
    for (int pass = 0; pass < span.passes(); pass++) {
        const int stages = MATRICES * span.groups(pass);
        float sums[GROUPS][4] = {}, squares[ROW_BLOCKS] = {};
        const bool reload = pass == 0 || split.phases > 1;
        for (int p = 0; p < split.phases; p++) {
            if (reload) phase.load(params, split, p, squares);
#pragma unroll
            for (int q = 0; q < GROUPS; q++) {
                if (q >= stages) break;
                barrier_wait(&shared.arrived[warp][stage], parity);
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    uint4 weights[PART];
                    load_weights(weights, phase, shared.ring[warp][stage], part);
                    if (part == PARTS - 1) stream.refill(params, span, split, shared);
                    phase.multiply_weights(sums[q], weights, part);
                }
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                parity ^= stage == 0;
            }
        }
        store_products(shared.pass_end.buffer(pass), sums);
        if (NORM && pass == 0) store_squares(shared.pass_end.squares, squares);
        shared.pass_end.finish(params, span, pass);
    }
}

#else

// Never chosen before sm_90; present so that the file compiles for every architecture.
extern "C" __global__ void linear_decode(const __grid_constant__ LinearDecode params) {}

#endif
