// The end of a pass: the warps store their sums in shared memory; four warps add them and write the outputs.
//
// No barrier stops all threads: a warp that is ahead continues, with a second buffer for the sums of its next pass. The
// writers, different warps in each pass, first finish their part of the next pass: by then slower warps have arrived.
#pragma once

#include "common/mbarrier.cuh"
#include "linear_decode/outputs.cuh"

constexpr int WRITERS = 4;  // warps that write the outputs of a pass
constexpr int BUFFERS = 2;

struct PassEnd {
    Products products[BUFFERS];
    Squares squares;
    uint64_t written[BUFFERS], read[BUFFERS];  // products

    // Called by all threads before the block's first barrier.
    __device__ __forceinline__ void init() {
        if (threadIdx.x >= BUFFERS) return;
        barrier_init(&written[threadIdx.x], THREADS);
        barrier_init(&read[threadIdx.x], 32 * WRITERS);
    }

    // The buffer for the caller's sums of `pass`; waits until its previous contents have been read.
    __device__ __forceinline__ Products& buffer(int pass) {
        const int turn = pass / BUFFERS;
        if (turn > 0) barrier_wait(&read[pass % BUFFERS], (turn - 1) % 2);
        return products[pass % BUFFERS];
    }

    // Called after the caller has stored its sums there, and its squares in pass 0.
    __device__ __forceinline__ void finish(const LinearDecode& params, const Span& span, int pass) {
        barrier_arrive(&written[pass % BUFFERS]);
        if (pass > 0) write(params, span, pass - 1);
        if (pass == span.passes() - 1) write(params, span, pass);
    }

    // Sums are added in the order of the warps.
    __device__ __forceinline__ void write(const LinearDecode& params, const Span& span, int pass) {
        if (threadIdx.x / 32 / WRITERS != pass % (WARPS / WRITERS)) return;
        const int place = pass % BUFFERS;
        barrier_wait(&written[place], pass / BUFFERS % 2);
        write_outputs(params, products[place], squares, span.group(pass), span.groups(pass),
                      threadIdx.x % (32 * WRITERS), 32 * WRITERS);
        barrier_arrive(&read[place]);
    }
};
