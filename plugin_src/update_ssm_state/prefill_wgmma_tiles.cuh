// Tiles of a chunk from and to memory, and the weights of its tokens. For the macros of prefill_wgmma_task.cuh.
#pragma once

#include "common/mbarrier.cuh"
#include "update_ssm_state/prefill_gate.cuh"
#include "update_ssm_state/prefill_wgmma_state.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// `valid` rows of a [CHUNK][COLUMNS] tile, of which `columns` are read, zeros elsewhere.
template <int COLUMNS>
__device__ __forceinline__ void load_tile(unsigned char* tile, const DATA_T* source, int64_t row_stride, int columns,
                                          int valid) {
    constexpr int UNITS_OF_ROW = COLUMNS / 8, ROWS = 128 / UNITS_OF_ROW;
    const int first = threadIdx.x / UNITS_OF_ROW, unit = threadIdx.x % UNITS_OF_ROW;
    const DATA_T* from = source + first * row_stride + unit * 8;
#pragma unroll
    for (int i = 0; i < CHUNK / ROWS; ++i) {
        const int row = first + i * ROWS;
        const bool inside = row < valid && unit * 8 < columns;
        copy_async_16(tile + panel_unit<CHUNK>(row, unit), inside ? from : source, inside);
        from += ROWS * row_stride;
    }
}

// The weight of x[j] in y[i] from scores: decays and the time step of j, with D on the diagonal. For the 16 tokens of
// warp WARP, which is a constant here so that later tokens cost nothing.
template <int WARP>
__device__ __forceinline__ void weights_of_warp(unsigned (&weights)[CHUNK / 16][4], float (&scores)[32],
                                                const ChunkDecay& decay, const BlockDecay& blocks, float skip) {
    const int i[2] = {state_row(0), state_row(1)};
    const float since[2] = {blocks.since_block[i[0]], blocks.since_block[i[1]]};
    const float until[2] = {decay.log_decay[i[0]], decay.log_decay[i[1]]};
    float2 factor[2 * WARP + 2], step[2];
#pragma unroll
    for (int n = 0; n < 2 * WARP + 2; ++n) {
        const float* source = n < 2 * WARP ? blocks.until_block[WARP > 0 ? WARP - 1 : 0] : decay.log_decay;
        factor[n] = *reinterpret_cast<const float2*>(source + pair_column(n));
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) step[n] = *reinterpret_cast<const float2*>(decay.step + pair_column(2 * WARP + n));
#pragma unroll
    for (int n = 0; n < CHUNK / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float first = 0.0f, second = 0.0f;
            if (n < 2 * WARP) {
                first = scores[4 * n + 2 * half] * since[half] * factor[n].x;
                second = scores[4 * n + 2 * half + 1] * since[half] * factor[n].y;
            } else if (n < 2 * WARP + 2) {
                const int j = pair_column(n);
                first = scores[4 * n + 2 * half] * exp2_approx(until[half] - factor[n].x) * step[n - 2 * WARP].x;
                second = scores[4 * n + 2 * half + 1] * exp2_approx(until[half] - factor[n].y) * step[n - 2 * WARP].y;
                first = j < i[half] ? first : (j == i[half] ? first + skip : 0.0f);
                second = j + 1 < i[half] ? second : (j + 1 == i[half] ? second + skip : 0.0f);
            }
            weights[n / 2][n % 2 * 2 + half] = Mma<DATA_T>::pack(first, second);
        }
    }
}

__device__ __forceinline__ void weights_from_scores(unsigned (&weights)[CHUNK / 16][4], float (&scores)[32],
                                                    const ChunkDecay& decay, const BlockDecay& blocks, float skip) {
    switch (threadIdx.x / 32 % 4) {
        case 0: return weights_of_warp<0>(weights, scores, decay, blocks, skip);
        case 1: return weights_of_warp<1>(weights, scores, decay, blocks, skip);
        case 2: return weights_of_warp<2>(weights, scores, decay, blocks, skip);
        default: return weights_of_warp<3>(weights, scores, decay, blocks, skip);
    }
}

// The gates of the pieces of y that this lane stores, loaded ahead. `source` as the target of store_output. Where
// nothing is stored, a gate of another place is loaded: branches would take registers.
struct OutputGates {
    Gate<8> pieces[4];

    __device__ __forceinline__ void load(const DATA_T* source, int64_t token_stride, int columns, int valid) {
        const int first = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 8, column = threadIdx.x % 8 * 8;
        const DATA_T* from = source + (column < columns ? column : 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) pieces[i].load(from + min(first + 4 * i, valid - 1) * token_stride);
    }
};

// y of one chunk through the memory of a tile that is no longer read, so that rows leave in 16-byte pieces.
__device__ __forceinline__ void store_output(const float (&y)[32], const OutputGates& gates, unsigned char* staging,
                                             DATA_T* target, int64_t token_stride, int columns, int valid) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const unsigned staging_pieces = pieces(staging);
#pragma unroll
    for (int i = 0; i < 32; i += 8) store_pieces(staging_pieces, y + i, i / 4);
    __syncwarp();
    const int first = warp * 16 + lane / 8, unit = lane % 8;
    DATA_T* to = target + first * token_stride + unit * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (first + 4 * i < valid && unit * 8 < columns) {
            uint4 piece = *reinterpret_cast<const uint4*>(staging + panel_unit<CHUNK>(first + 4 * i, unit));
            if constexpr (GATED) {
                Access<DATA_T, 8> outputs = {piece};
                float values[8];
                outputs.unpack(values);
                gates.pieces[i].multiply(values);
                outputs.pack(values);
                piece = outputs.word;
            }
            *reinterpret_cast<uint4*>(to) = piece;
        }
        to += 4 * token_stride;
    }
}

// Outputs of padding tokens, and the state of a row without tokens; by one warpgroup.
__device__ __forceinline__ void finish_padding(const Tensors& in, const PrefillParams& p, const Task& task) {
    const int thread = threadIdx.x % 128, tokens = task.row.written - task.row.length;
    for (int i = task.segment * 128 + thread; i < tokens * task.columns; i += p.segments * 128) {
        const int64_t token = task.row.length + i / task.columns;
        in.y[token * p.y_token + i % task.columns] = from_float<DATA_T>(0.0f);
    }
    if (task.row.length == 0 && task.segment == 0 && in.state != in.state_out) {
        for (int i = thread; i < task.columns * STATE_SIZE; i += 128) in.state_out[i] = in.state[i];
    }
}

#endif
