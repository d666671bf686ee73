// Scalar functions of the operators, in float.
#pragma once

// log(1 + exp(x)), exact to rounding on both tails.
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(__expf(x)); }

// Two approximate instructions, 2 ulp each. Where exp(-x) passes 2^126 the result is 0, its limit.
__device__ __forceinline__ float sigmoid(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return inverse;
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
