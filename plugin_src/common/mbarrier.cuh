// Barriers in shared memory: some threads, or the copy engine (sm_90 and up), arrive, others wait for the end of a
// phase.
#pragma once

#include "common/async_copy.cuh"
#include "common/integers.cuh"

// A phase ends with the last of `arrivals`.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival of this warp, whose products no longer read what the barrier guards.
__device__ __forceinline__ void barrier_arrive_of_warp(uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// The same after all that its lanes have loaded from there.
__device__ __forceinline__ void barrier_arrive_of_warp_after_loads(uint64_t* barrier) {
    __syncwarp();
    barrier_arrive_of_warp(barrier);
}

// An arrival of this thread once all its asynchronous copies so far have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for the end of the barrier's phase with this parity.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
        "@!done bra again_%=;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

#if __CUDA_ARCH__ >= 900
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barriers_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and lets the phase end only when bulk copies have also transferred `bytes`.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
#endif

// A place in a ring of COUNT whose slots have barriers, and the parity of its current phase.
template <int COUNT>
struct RingPlace {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        slot = slot == COUNT - 1 ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};
