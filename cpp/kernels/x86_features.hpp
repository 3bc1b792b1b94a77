// What this processor and operating system can do, of what the kernels use.
#pragma once

namespace specllama::kernels {

struct X86Features {
    bool avx2 = false;         // with FMA and F16C
    bool avx_vnni = false;     // dot products of bytes on 256 bits
    bool avx512_vnni = false;  // the same on 512 bits, with F, BW, VL and DQ

    static X86Features here();
};

}  // namespace specllama::kernels
