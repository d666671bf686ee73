// Barriers in shared memory between the producing and the consuming warps of a block (sm_90 and up).
#pragma once

#include "common/async_copy.cuh"

__device__ __forceinline__ void barrier_init(unsigned long long* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned long long* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// An arrival of this thread once all its asynchronous copies so far have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for the end of the barrier's phase with this parity.
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished_%=;\nbra again_%=;\nfinished_%=:\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}
