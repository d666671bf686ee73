// What the blocks and warpgroups of prefill_wgmma.cu and prefill_wgmma_segments.cu work on. For their macros and
// UNITS_OF_BLOCK: slices of heads of one group that a block computes.
#pragma once

#include "common/mma.cuh"
#include "common/wgmma.cuh"
#include "update_ssm_state/prefill_decay.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int WIDTH = 64;                              // columns of a slice in shared memory
constexpr int STATE_COLUMNS = STATE_SIZE > 64 ? 128 : 64;  // of B, C and the state in shared memory
constexpr int STATE_REGISTERS = STATE_COLUMNS / 2;
constexpr int UNIT_STATE = STATE_REGISTERS * 128;  // numbers of it in scratch memory
constexpr int TILE_BYTES = CHUNK * STATE_COLUMNS * 2;
constexpr int SLICE_BYTES = CHUNK * WIDTH * 2;

#include "update_ssm_state/prefill_task.cuh"

#endif
