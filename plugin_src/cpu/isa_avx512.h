// Vectors of 16 numbers: AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear.h"

namespace cpu {
namespace {

struct Avx512 {
    using F = __m512;
    using I = __m512i;
    static constexpr int lanes = 16;
    // Inputs per tile of the kernels for many inputs, with and without rounding; vectors of rows of a panel; rows and
    // inputs that are multiplied at once where inputs are few.
    static constexpr int rounded_tile = 12, tile = 8, panel_vectors = 2, dot_rows = 4, dot_inputs = 6;
    // Offset that makes 8-bit weights unsigned for `dot8`.
    static constexpr int offset8 = 128;

    static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }

    static F zero() { return _mm512_setzero_ps(); }
    static F all(float value) { return _mm512_set1_ps(value); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static F load_part(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(first(count), p); }
    static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
    static void store_part(float* p, F a, int64_t count) { _mm512_mask_storeu_ps(p, first(count), a); }
    static F fma(F a, F b, F sum) { return _mm512_fmadd_ps(a, b, sum); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F abs(F a) { return _mm512_abs_ps(a); }
    // Of `most` and |value|, not negative, the one that is larger as an integer: NaN where one is NaN.
    static F larger_magnitude(F most, F value) {
        return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(most), _mm512_castps_si512(abs(value))));
    }
    static F load_int8(const int8_t* p) {
        return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    // The nearest integers, halfway to even, from -127 to 127; -127 for NaN.
    static void store_int8(int8_t* p, F a) {
        const __m512i whole = _mm512_cvtps_epi32(_mm512_max_ps(a, all(-127.0f)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(whole));
    }
    static float sum(F a) { return _mm512_reduce_add_ps(a); }
    static float highest(F a) { return _mm512_reduce_max_ps(a); }

    static F load16(const uint8_t* p, bool is_bfloat) {
        __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return is_bfloat ? widened_bfloat(raw) : _mm512_cvtph_ps(raw);
    }
    static F load16_part(const uint8_t* p, bool is_bfloat, int64_t count) {
        __m256i raw = _mm256_maskz_loadu_epi16(first(count), p);
        return is_bfloat ? widened_bfloat(raw) : _mm512_cvtph_ps(raw);
    }

    static I bytes(const void* p) { return _mm512_loadu_si512(p); }
    static I integers(int32_t value) { return _mm512_set1_epi32(value); }
    // Four bytes, in all lanes.
    static I all_bytes(const int8_t* p) {
        int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return _mm512_set1_epi32(four);
    }
    static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
    // The low or the high half of each byte, as a number from 0 to 15.
    static I low_halves(I a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
    static I high_halves(I a) { return low_halves(_mm512_srli_epi16(a, 4)); }
    // The 8-bit weights as `dot8` reads them.
    static I weights8(I a) { return _mm512_xor_si512(a, _mm512_set1_epi8(static_cast<char>(0x80))); }
    // sum plus the products of each four neighbouring bytes of `weights8` and of signed inputs.
    static I dot8(I sum, I weights, I x) { return _mm512_dpbusd_epi32(sum, weights, x); }
    // The same of halves, for at most 8 additions between begin4 and end4.
    static I begin4(I sum) { return sum; }
    static I add4(I narrow, I halves, I x) { return _mm512_dpbusd_epi32(narrow, halves, x); }
    static I end4(I, I narrow) { return narrow; }
    // Lane i is the bfloat16 number 2 i, or 2 i + 1, of 32.
    static F even_bfloats(I a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
    static F odd_bfloats(I a) {
        return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    }
    // 32 e4m3 numbers divided by e4m3_unit, by way of float16; NaN is not preserved.
    static void load_e4m3(const uint8_t* p, F (&out)[2]) {
        __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        words = _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(static_cast<short>(0xbf80)));
        out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(words));
        out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1));
    }
    // e2m1_sums of halves.
    static I e2m1_numbers(I halves) {
        const __m128i sums = _mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_sums));
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sums), halves);
    }
    // Row i of the transposed matrix has lane i of each of `rows`.
    static void transpose(F (&rows)[lanes]) {
        F pairs[16], fours[16];
        for (int i = 0; i < 16; i += 2) {
            pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
        }
        for (int i = 0; i < 16; ++i) {
            const F a = pairs[i / 4 * 4 + i % 4 / 2], b = pairs[i / 4 * 4 + 2 + i % 4 / 2];
            fours[i] = i % 2 ? _mm512_shuffle_ps(a, b, 0xee) : _mm512_shuffle_ps(a, b, 0x44);
        }
        // Quarter q of fours[4 * j + i] has lane 4 * q + i of rows 4 * j to 4 * j + 3.
        for (int i = 0; i < 4; ++i) {
            const F low = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0x44);
            const F high = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0xee);
            const F low2 = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0x44);
            const F high2 = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0xee);
            rows[i] = _mm512_shuffle_f32x4(low, low2, 0x88), rows[4 + i] = _mm512_shuffle_f32x4(low, low2, 0xdd);
            rows[8 + i] = _mm512_shuffle_f32x4(high, high2, 0x88);
            rows[12 + i] = _mm512_shuffle_f32x4(high, high2, 0xdd);
        }
    }

    // The nearest integers of a as 8-bit numbers.
    static void store_rounded(int8_t* p, F a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
    }

  private:
    static F widened_bfloat(__m256i raw) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
    }
};

}  // namespace
}  // namespace cpu
