#include "isa_portable.h"
#include "kernels.h"

static const cpu::Kernels kernels = cpu::kernels_of<cpu::Portable>(16);

const cpu::Kernels* cpu::portable_kernels() { return &kernels; }

const cpu::Kernels* cpu::chosen_kernels(int64_t choice) {
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
