// Vectors of 8 numbers: AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear.h"

namespace cpu {
namespace {

struct Avx2 {
    using F = __m256;
    using I = __m256i;
    static constexpr int lanes = 8;
    static constexpr int rounded_tile = 4, tile = 6, panel_vectors = 2, dot_rows = 2, dot_inputs = 6;
    static constexpr int offset8 = 0;

    static F zero() { return _mm256_setzero_ps(); }
    static F all(float value) { return _mm256_set1_ps(value); }
    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static F load_part(const float* p, int64_t count) { return _mm256_maskload_ps(p, mask(count)); }
    static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
    static void store_part(float* p, F a, int64_t count) { _mm256_maskstore_ps(p, mask(count), a); }
    static F fma(F a, F b, F sum) { return _mm256_fmadd_ps(a, b, sum); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    // Of `most` and |value|, not negative, the one that is larger as an integer: NaN where one is NaN.
    static F larger_magnitude(F most, F value) {
        return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(most), _mm256_castps_si256(abs(value))));
    }
    static F load_int8(const int8_t* p) {
        return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    // The nearest integers, halfway to even, from -127 to 127; -127 for NaN.
    static void store_int8(int8_t* p, F a) {
        const __m256i whole = _mm256_cvtps_epi32(_mm256_max_ps(a, all(-127.0f)));
        const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(half, half));
    }
    static float sum(F a) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
    static float highest(F a) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    }

    static F load16(const uint8_t* p, bool is_bfloat) {
        __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return is_bfloat ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16))
                         : _mm256_cvtph_ps(raw);
    }
    static F load16_part(const uint8_t* p, bool is_bfloat, int64_t count) {
        uint8_t whole[16] = {};
        std::memcpy(whole, p, static_cast<size_t>(2 * count));
        return load16(whole, is_bfloat);
    }

    static I bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static I integers(int32_t value) { return _mm256_set1_epi32(value); }
    static I all_bytes(const int8_t* p) {
        int32_t four;
        std::memcpy(&four, p, sizeof four);
        return _mm256_set1_epi32(four);
    }
    static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
    static I low_halves(I a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
    static I high_halves(I a) { return low_halves(_mm256_srli_epi16(a, 4)); }
    static I weights8(I a) { return a; }
    // Sums of two products of absolute weights (0 to 128) and inputs (-127 to 127) with the weights' signs fit into 16
    // bits, and so do those of 16 products of halves (0 to 15), or 8 of e2m1_sums (0 to 24), and inputs.
    static I dot8(I sum, I weights, I x) {
        return end4(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights)));
    }
    static I begin4(I) { return _mm256_setzero_si256(); }
    static I add4(I narrow, I halves, I x) { return _mm256_add_epi16(narrow, _mm256_maddubs_epi16(halves, x)); }
    static I end4(I sum, I narrow) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
    }
    static F even_bfloats(I a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
    static F odd_bfloats(I a) {
        return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
    }
    static void load_e4m3(const uint8_t* p, F (&out)[2]) {
        __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        words = _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(static_cast<short>(0xbf80)));
        out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
        out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
    }
    static I e2m1_numbers(I halves) {
        const __m128i sums = _mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_sums));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sums), halves);
    }
    static void transpose(F (&rows)[lanes]) {
        F pairs[8], fours[8];
        for (int i = 0; i < 8; i += 2) {
            pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        }
        for (int i = 0; i < 8; ++i) {
            const F a = pairs[i / 4 * 4 + i % 4 / 2], b = pairs[i / 4 * 4 + 2 + i % 4 / 2];
            fours[i] = i % 2 ? _mm256_shuffle_ps(a, b, 0xee) : _mm256_shuffle_ps(a, b, 0x44);
        }
        for (int i = 0; i < 4; ++i) {
            rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
            rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
        }
    }

    static void store_rounded(int8_t* p, F a) {
        __m256i words = _mm256_cvtps_epi32(a);
        __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
    }

  private:
    static __m256i mask(int64_t count) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    }
};

}  // namespace
}  // namespace cpu
