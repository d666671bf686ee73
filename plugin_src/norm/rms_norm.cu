// Root-mean-square norm of rows or of groups of their columns, of a sum with a residual or of a gated input.
//
// Macros: DATA_T; WEIGHT_T; VECTOR (elements of an access); ITEMS (accesses of a thread); THREADS; RESIDUAL; GATED
// (before the norm); GATED_AFTER.
// Grid: x a group of columns, y and z a row (y + z * the size of y, which may be past the last one). A group stays in
// its block's registers: everything is read and written once.
#include "common/element.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "norm/params.cuh"

namespace {

using Access = Vector<DATA_T, VECTOR>;

__device__ __forceinline__ Access load(const void* row, int64_t offset) {
    return *reinterpret_cast<const Access*>(static_cast<const DATA_T*>(row) + offset);
}

__device__ __forceinline__ void store(void* row, int64_t offset, const Access& values) {
    *reinterpret_cast<Access*>(static_cast<DATA_T*>(row) + offset) = values;
}

// The norm's weights of an access, which may be wider than its elements.
struct Weights {
    static constexpr int PIECE = sizeof(WEIGHT_T) * VECTOR > 16 ? 16 / sizeof(WEIGHT_T) : VECTOR;
    Vector<WEIGHT_T, PIECE> pieces[VECTOR / PIECE];

    __device__ __forceinline__ void load(const void* weight, int column) {
        const WEIGHT_T* from = static_cast<const WEIGHT_T*>(weight) + column;
#pragma unroll
        for (int i = 0; i < VECTOR / PIECE; i++)
            pieces[i] = *reinterpret_cast<const Vector<WEIGHT_T, PIECE>*>(from + i * PIECE);
    }
    __device__ __forceinline__ float operator[](int i) const { return to_float(pieces[i / PIECE].data[i % PIECE]); }
};

// The sum of `value` over the block, in a fixed order.
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[THREADS / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) sum += warps[warp];
    return sum;
}

// What is normalised, of one access of a row; the sum with the residual is also written.
__device__ __forceinline__ void prepare(const RmsNorm& params, int64_t row, int column, float (&values)[VECTOR]) {
    const Access x = load(params.x, row * params.x_stride + column);
    Access other = {}, sum;
    if (RESIDUAL) other = load(params.residual, row * params.residual_stride + column);
    if (GATED) other = load(params.gate, row * params.gate_stride + column);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        values[i] = to_float(x.data[i]);
        if (GATED) values[i] *= silu(to_float(other.data[i]));
        if (RESIDUAL) {
            sum.data[i] = from_float<DATA_T>(values[i] + to_float(other.data[i]));
            values[i] = to_float(sum.data[i]);
        }
    }
    if (RESIDUAL) store(params.sum, row * params.sum_stride + column, sum);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ RmsNorm params) {
    const int64_t row = blockIdx.y + int64_t(gridDim.y) * blockIdx.z;
    const int first = blockIdx.x * params.group, end = first + params.group;
    let_later_kernels_start();
    if (row >= params.rows) return;
    Weights weights[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = first + (item * THREADS + threadIdx.x) * VECTOR;
        if (column < end) weights[item].load(params.weight, column);
    }
    wait_for_earlier_kernels();

    float values[ITEMS][VECTOR], squares = 0.0f;
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = first + (item * THREADS + threadIdx.x) * VECTOR;
        if (column < end) {
            prepare(params, row, column, values[item]);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) squares = fmaf(values[item][i], values[item][i], squares);
        }
    }
    const float scale = rsqrtf(block_sum(squares) / params.group + params.epsilon);
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = first + (item * THREADS + threadIdx.x) * VECTOR;
        if (column < end) {
            Access y, gate = {};
            if (GATED_AFTER) gate = load(params.gate, row * params.gate_stride + column);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                float value = values[item][i] * scale * weights[item][i];
                if (GATED_AFTER) value *= silu(to_float(gate.data[i]));
                y.data[i] = from_float<DATA_T>(value);
            }
            store(params.y, row * params.y_stride + column, y);
        }
    }
}
