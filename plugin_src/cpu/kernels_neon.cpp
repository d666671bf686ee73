#include "linear.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__linux__)
#include <sys/auxv.h>

#include "isa_neon.h"
#include "kernels.h"

static const linear::Kernels kernels = linear::kernels_of<linear::Neon>(16);

const linear::Kernels* linear::neon_kernels() {
    constexpr unsigned long has_dot_products = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & has_dot_products ? &kernels : nullptr;
}
#else
const linear::Kernels* linear::neon_kernels() { return nullptr; }
#endif
