#include "kernel_table.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "isa_avx2.h"
#include "kernels.h"

static const cpu::Kernels kernels = cpu::kernels_of<cpu::Avx2>(16);

const cpu::Kernels* cpu::avx2_kernels() {
    __builtin_cpu_init();
    // Every processor with AVX2 has F16C.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}
#else
const cpu::Kernels* cpu::avx2_kernels() { return nullptr; }
#endif
