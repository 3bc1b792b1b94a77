#include "kernels/instruction_set.hpp"

#include <cstdint>

#if defined(SPECLLAMA_X86_KERNELS)
#include <cpuid.h>
#elif defined(SPECLLAMA_ARM_KERNELS) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(SPECLLAMA_ARM_KERNELS)
#include <sys/auxv.h>
#endif

namespace specllama::kernels {

#ifdef SPECLLAMA_X86_KERNELS
extern const InstructionSet kAvx2;
extern const InstructionSet kAvxVnni;
extern const InstructionSet kAvx512Vnni;

namespace {

// The features that the kernels use: whether this processor and this operating system have them.
struct X86Features {
    bool avx2 = false;         // with FMA and F16C
    bool avx_vnni = false;     // dot products of bytes on 256 bits
    bool avx512_vnni = false;  // dot products of bytes on 512 bits, with F, BW, VL and DQ
};

struct Registers {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
};

Registers ask(unsigned leaf, unsigned subleaf) {
    Registers found;
    __get_cpuid_count(leaf, subleaf, &found.a, &found.b, &found.c, &found.d);
    return found;
}

bool bit(unsigned value, int index) { return ((value >> index) & 1U) != 0; }

// The registers that the operating system saves, as the bits of XCR0.
uint64_t saved_registers() {
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

// The bits are those of Intel's manual, volume 2, CPUID.
X86Features features_here() {
    X86Features features;
    const Registers basic = ask(1, 0);
    constexpr int kOsxsave = 27;
    if (!bit(basic.c, kOsxsave)) {
        return features;
    }
    const uint64_t saved = saved_registers();
    constexpr uint64_t kYmm = 0x6;
#ifdef __APPLE__
    constexpr uint64_t kZmm = kYmm;  // macOS saves the other registers, and says so, from their first use on
#else
    constexpr uint64_t kZmm = 0xE6;
#endif
    const Registers extended = ask(7, 0);
    const Registers more = ask(7, 1);
    const bool fma = bit(basic.c, 12);
    const bool f16c = bit(basic.c, 29);
    features.avx2 = (saved & kYmm) == kYmm && fma && f16c && bit(extended.b, 5);
    features.avx_vnni = features.avx2 && bit(more.a, 4);
    const bool f_dq_bw_vl = bit(extended.b, 16) && bit(extended.b, 17) && bit(extended.b, 30) && bit(extended.b, 31);
    features.avx512_vnni = features.avx2 && (saved & kZmm) == kZmm && f_dq_bw_vl && bit(extended.c, 11);
    return features;
}

}  // namespace
#endif

#ifdef SPECLLAMA_ARM_KERNELS
extern const InstructionSet kNeonDotProd;
extern const InstructionSet kNeonI8mm;

namespace {

#ifdef __APPLE__
bool has_feature(const char * name) {
    int has = 0;
    std::size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has != 0;
}
bool has_dot_products() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_matrix_products() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
constexpr unsigned long kDotProducts = 1UL << 20;     // HWCAP_ASIMDDP
constexpr unsigned long kMatrixProducts = 1UL << 13;  // HWCAP2_I8MM
bool has_dot_products() { return (getauxval(AT_HWCAP) & kDotProducts) != 0; }
bool has_matrix_products() { return (getauxval(AT_HWCAP2) & kMatrixProducts) != 0; }
#endif

}  // namespace
#endif

int usable_sets(const InstructionSet ** sets) {
    int count = 0;
#ifdef SPECLLAMA_X86_KERNELS
    const X86Features features = features_here();
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
#ifdef SPECLLAMA_ARM_KERNELS
    // By the estimate of scripts/arm_estimate.py products of matrices take longer: they want eight values of a row side
    // by side, and panels have four.
    if (has_dot_products()) {
        sets[count++] = &kNeonDotProd;
    }
    if (has_dot_products() && has_matrix_products()) {
        sets[count++] = &kNeonI8mm;
    }
#endif
    sets[count++] = &plain_set();
    return count;
}

}  // namespace specllama::kernels
