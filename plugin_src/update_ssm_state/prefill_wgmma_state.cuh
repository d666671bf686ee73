// The state of one warpgroup, in accumulators. For the macros of prefill_wgmma_task.cuh.
#pragma once

#include "update_ssm_state/prefill_wgmma_task.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Row (column of the slice) and first column (of state_size) of accumulators 4 * n + 2 * half, + 1.
__device__ __forceinline__ int state_row(int half) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8;
}
__device__ __forceinline__ int pair_column(int n) { return n * 8 + threadIdx.x % 4 * 2; }

// Where this lane's row of 8-column tiles n and n + 1 (n even) lies in a tile of 64 rows: pieces() ^ 16 * (n % 8), in
// the panel of tile n.
__device__ __forceinline__ unsigned pieces(const unsigned char* tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    return shared_address(tile) + row * ROW_BYTES + (lane / 16 ^ (row & 7)) * 16;
}

// Eight accumulators, of tiles n and n + 1, rounded to the data type.
__device__ __forceinline__ void store_pieces(unsigned pieces, const float* d, int n) {
    store_matrices((pieces ^ n % 8 * 16) + n / 8 * (CHUNK * ROW_BYTES), Mma<DATA_T>::pack(d[0], d[1]),
                   Mma<DATA_T>::pack(d[2], d[3]), Mma<DATA_T>::pack(d[4], d[5]), Mma<DATA_T>::pack(d[6], d[7]));
}

// Loads and stores of the state [slice][state_size] of one warpgroup.
struct State {
    float value[STATE_REGISTERS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) value[i] = 0.0f;
    }
    __device__ __forceinline__ void load(const STATE_T* state, int columns) {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 2) {
            const int row = state_row(i / 2 % 2), column = pair_column(i / 4);
            Vector<STATE_T, 2> pair = {from_float<STATE_T>(0.0f), from_float<STATE_T>(0.0f)};
            if (row < columns && column < STATE_SIZE) {
                pair = *reinterpret_cast<const Vector<STATE_T, 2>*>(state + row * STATE_SIZE + column);
            }
            value[i] = to_float(pair.data[0]);
            value[i + 1] = to_float(pair.data[1]);
        }
    }
    __device__ __forceinline__ void store(STATE_T* state, int columns) const {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 2) {
            const int row = state_row(i / 2 % 2), column = pair_column(i / 4);
            if (row < columns && column < STATE_SIZE) {
                *reinterpret_cast<Vector<STATE_T, 2>*>(state + row * STATE_SIZE + column) = {
                    from_float<STATE_T>(value[i]), from_float<STATE_T>(value[i + 1])};
            }
        }
    }
    // value = value * factor + other, in the order of registers, in which states lie in scratch.
    __device__ __forceinline__ void fold(const float* other, float factor) {
        const float4* source = reinterpret_cast<const float4*>(other) + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 4) {
            const float4 v = source[i / 4 * 128];
            value[i] = value[i] * factor + v.x;
            value[i + 1] = value[i + 1] * factor + v.y;
            value[i + 2] = value[i + 2] * factor + v.z;
            value[i + 3] = value[i + 3] * factor + v.w;
        }
    }
    __device__ __forceinline__ void keep(float* other) const {
        float4* target = reinterpret_cast<float4*>(other) + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 4) {
            target[i / 4 * 128] = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
        }
    }
    // Rounded to the data type, for the next chunk's C * state^T.
    __device__ __forceinline__ void publish(unsigned tile_pieces) const {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 8) store_pieces(tile_pieces, value + i, i / 4);
        fence_for_wgmma();
    }
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) value[i] *= factor;
    }
    // Starts state += (x o write)^T B; `written` is in use until the products are done.
    __device__ __forceinline__ void start_update(unsigned (&written)[CHUNK / 16][4], const unsigned char* B,
                                                 const unsigned char* x, const ChunkDecay& decay) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
        const int first = panel_unit<CHUNK>(lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {  // x transposed: 16 columns of the slice by 16 tokens
            Mma<DATA_T>::load_transposed(written[k], reinterpret_cast<const DATA_T*>(x), first / 2 + k * 16 * PANEL);
        }
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 s = *reinterpret_cast<const float2*>(decay.write + k * 16 + 2 * t + i * 8);
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float2 v = Mma<DATA_T>::unpack(written[k][2 * i + e]);
                    written[k][2 * i + e] = Mma<DATA_T>::pack(v.x * s.x, v.y * s.y);
                }
            }
        }
        wgmma_fence();
        const unsigned long long tokens = operand(B, CHUNK * ROW_BYTES);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) multiply_columns<DATA_T>(value, written[k], tokens + k * NEXT_16_ROWS);
        wgmma_commit();
    }
};

#endif
