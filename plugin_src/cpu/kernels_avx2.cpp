#include "linear.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "isa_avx2.h"
#include "kernels.h"

static const linear::Kernels kernels = linear::kernels_of<linear::Avx2>(16);

const linear::Kernels* linear::avx2_kernels() {
    __builtin_cpu_init();
    // Every processor with AVX2 has F16C.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}
#else
const linear::Kernels* linear::avx2_kernels() { return nullptr; }
#endif
