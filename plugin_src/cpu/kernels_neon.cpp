#include "kernel_table.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__linux__)
#include <sys/auxv.h>

#include "isa_neon.h"
#include "kernels.h"

static const cpu::Kernels kernels = cpu::kernels_of<cpu::Neon>(16);

const cpu::Kernels* cpu::neon_kernels() {
    constexpr unsigned long has_dot_products = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & has_dot_products ? &kernels : nullptr;
}
#else
const cpu::Kernels* cpu::neon_kernels() { return nullptr; }
#endif
