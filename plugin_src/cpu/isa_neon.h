// Vectors of 4 numbers: Arm NEON with the dot product instructions.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "linear.h"

namespace cpu {
namespace {

struct Neon {
    using F = float32x4_t;
    using I = int32x4_t;
    static constexpr int lanes = 4;
    static constexpr int rounded_tile = 8, tile = 12, panel_vectors = 2, dot_rows = 4, dot_inputs = 6;
    static constexpr int offset8 = 0;

    static F zero() { return vdupq_n_f32(0); }
    static F all(float value) { return vdupq_n_f32(value); }
    static F load(const float* p) { return vld1q_f32(p); }
    static F load_part(const float* p, int64_t count) {
        float whole[4] = {};
        std::memcpy(whole, p, sizeof(float) * static_cast<size_t>(count));
        return load(whole);
    }
    static void store(float* p, F a) { vst1q_f32(p, a); }
    static void store_part(float* p, F a, int64_t count) {
        float whole[4];
        store(whole, a);
        std::memcpy(p, whole, sizeof(float) * static_cast<size_t>(count));
    }
    static F fma(F a, F b, F sum) { return vfmaq_f32(sum, a, b); }
    static F mul(F a, F b) { return vmulq_f32(a, b); }
    static F max(F a, F b) { return vmaxq_f32(a, b); }
    static F abs(F a) { return vabsq_f32(a); }
    // Of `most` and |value|, not negative, the one that is larger as an integer: NaN where one is NaN.
    static F larger_magnitude(F most, F value) {
        return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(most), vreinterpretq_s32_f32(abs(value))));
    }
    static F load_int8(const int8_t* p) {
        int8_t eight[8] = {};
        std::memcpy(eight, p, lanes);
        return to_float(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(eight)))));
    }
    // The nearest integers, halfway to even, from -127 to 127; -127 for NaN.
    static void store_int8(int8_t* p, F a) {
        const int16x4_t half = vqmovn_s32(vcvtnq_s32_f32(vmaxnmq_f32(a, all(-127.0f))));
        int8_t eight[8];
        vst1_s8(eight, vqmovn_s16(vcombine_s16(half, half)));
        std::memcpy(p, eight, lanes);
    }
    static float sum(F a) { return vaddvq_f32(a); }
    static float highest(F a) { return vmaxvq_f32(a); }

    static F load16(const uint8_t* p, bool is_bfloat) { return load16_part(p, is_bfloat, 4); }
    static F load16_part(const uint8_t* p, bool is_bfloat, int64_t count) {
        uint16_t raw[4] = {};
        std::memcpy(raw, p, static_cast<size_t>(2 * count));
        uint16x4_t halves = vld1_u16(raw);
        if (is_bfloat) return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
        return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    }

    static I bytes(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
    static I integers(int32_t value) { return vdupq_n_s32(value); }
    static I all_bytes(const int8_t* p) {
        int32_t four;
        std::memcpy(&four, p, sizeof four);
        return vdupq_n_s32(four);
    }
    static F to_float(I a) { return vcvtq_f32_s32(a); }
    static I low_halves(I a) { return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(a), vdupq_n_u8(15))); }
    static I high_halves(I a) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4)); }
    static I weights8(I a) { return a; }
    static I dot8(I sum, I weights, I x) {
        return vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(x));
    }
    static I begin4(I sum) { return sum; }
    static I add4(I narrow, I halves, I x) { return dot8(narrow, halves, x); }
    static I end4(I, I narrow) { return narrow; }
    static F even_bfloats(I a) { return vreinterpretq_f32_s32(vshlq_n_s32(a, 16)); }
    static F odd_bfloats(I a) {
        return vreinterpretq_f32_s32(vandq_s32(a, vdupq_n_s32(static_cast<int32_t>(0xffff0000))));
    }
    static void load_e4m3(const uint8_t* p, F (&out)[2]) {
        uint16x8_t words = vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p))));
        words = vandq_u16(vshlq_n_u16(words, 7), vdupq_n_u16(0xbf80));
        out[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(words)));
        out[1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(words)));
    }
    static I e2m1_numbers(I halves) {
        return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(e2m1_sums), vreinterpretq_u8_s32(halves)));
    }
    static void transpose(F (&rows)[lanes]) {
        const float32x4x2_t a = vtrnq_f32(rows[0], rows[1]), b = vtrnq_f32(rows[2], rows[3]);
        for (int i = 0; i < 2; ++i) {
            rows[i] = vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i]));
            rows[i + 2] = vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i]));
        }
    }

    static void store_rounded(int8_t* p, F a) {
        int32_t words[4];
        vst1q_s32(words, vcvtnq_s32_f32(a));
        for (int i = 0; i < 4; ++i) p[i] = static_cast<int8_t>(words[i]);
    }
};

}  // namespace
}  // namespace cpu
