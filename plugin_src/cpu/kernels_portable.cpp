#include "isa_portable.h"
#include "kernels.h"

static const linear::Kernels kernels = linear::kernels_of<linear::Portable>(16);

const linear::Kernels* linear::portable_kernels() { return &kernels; }

const linear::Kernels* linear::chosen_kernels(int64_t choice) {
    switch (choice) {
        case portable: return portable_kernels();
        case avx2: return avx2_kernels();
        case avx512: return avx512_kernels();
        case neon: return neon_kernels();
        case best: break;
        default: return nullptr;
    }
    const Kernels* widest = avx512_kernels() ? avx512_kernels() : avx2_kernels();
    if (!widest) widest = neon_kernels();
    return widest ? widest : portable_kernels();
}
