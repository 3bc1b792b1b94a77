#include "kernels/instruction_set.hpp"

#include "kernels/x86_features.hpp"

namespace specllama::kernels {

#ifdef SPECLLAMA_X86_KERNELS
extern const InstructionSet kAvx2;
extern const InstructionSet kAvxVnni;
extern const InstructionSet kAvx512Vnni;
#endif

int usable_sets(const InstructionSet ** sets) {
    int count = 0;
#ifdef SPECLLAMA_X86_KERNELS
    const X86Features features = X86Features::here();
    if (features.avx512_vnni) {
        sets[count++] = &kAvx512Vnni;
    }
    if (features.avx_vnni) {
        sets[count++] = &kAvxVnni;
    }
    if (features.avx2) {
        sets[count++] = &kAvx2;
    }
#endif
    sets[count++] = &plain_set();
    return count;
}

}  // namespace specllama::kernels
