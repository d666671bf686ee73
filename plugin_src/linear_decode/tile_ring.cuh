// A warp's copies of tiles into shared memory: bulk copies where BULK_COPIES is 1 (sm_90 on), else 16 bytes of each
// lane.
#pragma once

#include "common/bulk_copy.cuh"

// DEPTH stages of SIZE bytes. Waiting for a stage and letting it be filled again concern the warp alone.
template <int DEPTH, int SIZE>
struct alignas(16) TileRing {
    unsigned char stages[DEPTH][SIZE];
    uint64_t arrived[DEPTH];
    uint64_t released;
    // Of the warp: `stage` is the next to be read, and `parity` that of its barrier.
    struct Place {
        int stage, parity, releases;
    };

#if BULK_COPIES && __CUDA_ARCH__ >= 900
    __device__ __forceinline__ void init() {
        if (threadIdx.x % 32 == 0) {
            for (int stage = 0; stage < DEPTH; stage++) barrier_init(&arrived[stage], 1);
            barrier_init(&released, 32);
            barriers_publish();
        }
        __syncwarp();
    }
    // Starts a fill of `stage` by PIECES pieces of `bytes`, `apart` bytes from each other in the stage.
    template <int PIECES>
    __device__ __forceinline__ void fill(int stage, const unsigned char* const (&from)[PIECES], int bytes, int apart) {
        if (threadIdx.x % 32 == 0) {
            barrier_arrive_expecting(&arrived[stage], PIECES * bytes);
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                copy_bulk_once(&stages[stage][i * apart], from[i], bytes, &arrived[stage]);
        }
    }
    __device__ __forceinline__ void fill_nothing() {}
    __device__ __forceinline__ void wait(const Place& place) { barrier_wait(&arrived[place.stage], place.parity); }
    // The copy engine keeps no order with a warp's loads: they are over once every lane's arrival after its own is
    // seen.
    __device__ __forceinline__ void release(Place& place) {
        barrier_arrive(&released);
        barrier_wait(&released, place.releases);
        place.releases ^= 1;
    }
#else
    __device__ __forceinline__ void init() {}
    template <int PIECES>
    __device__ __forceinline__ void fill(int stage, const unsigned char* const (&from)[PIECES], int bytes, int apart) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
                copy_async_16(&stages[stage][i * apart + at], from[i] + at, true);
        }
        commit_copies();
    }
    __device__ __forceinline__ void fill_nothing() { commit_copies(); }
    __device__ __forceinline__ void wait(const Place&) {
        wait_copies<DEPTH - 1>();
        __syncwarp();
    }
    __device__ __forceinline__ void release(Place&) { __syncwarp(); }
#endif

    __device__ __forceinline__ static void advance(Place& place) {
        place.stage = place.stage + 1 == DEPTH ? 0 : place.stage + 1;
        place.parity ^= place.stage == 0;
    }
};
