// Scalar functions of the operators, in float: each within 1e-5 of its value wherever that is above 1e-30.
#pragma once

// 2^x by one approximate instruction, 2 ulp; 0 where the result is below 2^-126.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log(1 + exp(x)), exact to rounding on both tails.
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(__expf(x)); }

// The same in a third of the instructions and without a branch, for kernels that are limited by them: max(x,
// 0) + log(1 + u) with u = exp(-|x|), where log(1 + u) / u is a polynomial, within 4e-8 on [0, 1].
__device__ __forceinline__ float softplus_polynomial(float x) {
    const float u = exp2_approx(fabsf(x) * -1.44269504f);
    float quotient = 0.00523254042f;
    quotient = fmaf(quotient, u, -0.0295046214f);
    quotient = fmaf(quotient, u, 0.0782249495f);
    quotient = fmaf(quotient, u, -0.136631608f);
    quotient = fmaf(quotient, u, 0.191059664f);
    quotient = fmaf(quotient, u, -0.248429716f);
    quotient = fmaf(quotient, u, 0.333190948f);
    quotient = fmaf(quotient, u, -0.499994934f);
    quotient = fmaf(quotient, u, 0.99999994f);
    return fmaf(quotient, u, fmaxf(x, 0.0f));
}

// Two approximate instructions, 2 ulp each. Where exp(-x) passes 2^126 the result is 0, its limit.
__device__ __forceinline__ float sigmoid(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exp2_approx(x * -1.44269504f)));
    return inverse;
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// x times the normal distribution function at x. 1 + erf(x) would lose all digits from x = -5 on, and the tail of erfc
// falls so steeply that it needs more of its argument than a float holds: `rest` is what `z` leaves out of
// -x / sqrt(2).
__device__ __forceinline__ float gelu(float x) {
    const float z = x * -0.70710678f, rest = fmaf(x, -0.70710678f, -z) - x * 1.2101617e-8f;
    return 0.5f * x * erfcf(z) * (z > 0.0f ? fmaf(-2.0f * z, rest, 1.0f) : 1.0f);
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), which is x * sigmoid(exponent).
__device__ __forceinline__ float gelu_tanh(float x) {
    const double exponent = x * (1.5957691216057308 + 0.07135481282803466 * double(x) * x);
    const float rounded = float(exponent), gate = sigmoid(rounded);
    const float rest = fabsf(rounded) < 128.0f ? float(exponent - rounded) : 0.0f;
    return x * gate * fmaf(rest, 1.0f - gate, 1.0f);
}
