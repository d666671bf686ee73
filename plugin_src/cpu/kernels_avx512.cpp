#include "kernel_table.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "isa_avx512.h"
#include "kernels.h"

static const cpu::Kernels kernels = cpu::kernels_of<cpu::Avx512>(16);

const cpu::Kernels* cpu::avx512_kernels() {
    __builtin_cpu_init();
    bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
    return has ? &kernels : nullptr;
}
#else
const cpu::Kernels* cpu::avx512_kernels() { return nullptr; }
#endif
