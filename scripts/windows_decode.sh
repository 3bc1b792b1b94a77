#!/usr/bin/env bash
# Compares decodes of tiny models on Windows with those on Linux, to the last bit: tests/decode_bits.cpp over a llama.cpp
# that is compiled for both, run here and by Wine. It takes ten minutes
# on two cores.
#
# usage: bash scripts/windows_decode.sh LLAMA_CPP     the folder of llama.cpp in a source archive of llama-cpp-python
# Debian: apt-get install g++-mingw-w64-x86-64-posix wine64
#
# OPENMP=OFF: llama.cpp's own threads. MODELS: kinds of weights.
set -euo pipefail
source=$(realpath "$1")
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
export WINEPREFIX=$work/wine WINEDEBUG=-all
PATH=$PATH:/usr/lib/wine
trap 'wineserver64 -k || true; rm -rf "$work"' EXIT
gcc=x86_64-w64-mingw32-gcc-posix
gxx=x86_64-w64-mingw32-g++-posix
# GCC takes Windows' stack to be aligned for AVX, which it is not (GCC bug 54412).
unaligned=-Wa,-muse-unaligned-vector-move
old=-D_WIN32_WINNT=0x0601 # Debian's headers lack some names of newer versions

# llama.cpp, with the same instructions on both.
common=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF -DGGML_OPENMP="${OPENMP:-ON}"
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF)
for set in SSE42 AVX AVX2 BMI2 FMA F16C; do common+=("-DGGML_$set=ON"); done
windows=(-DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=x86_64 -DCMAKE_C_COMPILER=$gcc -DCMAKE_CXX_COMPILER=$gxx
    "-DCMAKE_C_FLAGS=$unaligned $old" "-DCMAKE_CXX_FLAGS=$unaligned $old" -DGGML_WIN_VER=0x0601)
cmake -S "$source" -B "$work/linux" "${common[@]}" >/dev/null
cmake -S "$source" -B "$work/windows" "${common[@]}" "${windows[@]}" >/dev/null
for system in linux windows; do cmake --build "$work/$system" --target llama -j "$(nproc)" >/dev/null 2>&1; done

# program COMPILER SYSTEM FLAG...: our kernels, their place in ggml, and the program, beside the libraries.
program() {
    local compiler=$1 bin=$work/$2/bin objects=$work/$2/ours
    local flags=(-std=c++17 -O2 -ffp-contract=off -DSPECLLAMA_X86_KERNELS "-I$root/cpp" "${@:3}")
    local avx2=(-mavx2 -mfma -mf16c)
    local avx512=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
    mkdir "$objects"
    for file in "$root"/cpp/kernels/*.cpp "$root"/cpp/ggml/*.cpp "$root"/cpp/ggml_plugin/*.cpp; do
        local own=()
        case $file in
            *neon*) continue ;;
            *avx2.cpp) own=("${avx2[@]}") ;;
            *avx_vnni.cpp) own=("${avx2[@]}" -mavxvnni) ;;
            *avx512_vnni.cpp) own=("${avx2[@]}" "${avx512[@]}") ;;
        esac
        "$compiler" "${flags[@]}" "${own[@]}" -c "$file" -o "$objects/$(basename "$file").o"
    done
    "$compiler" "${flags[@]}" "-I$source/include" "-I$source/ggml/include" tests/decode_bits.cpp "$objects"/*.o \
        -L"$bin" -L"$work/$2/src" -L"$work/$2/ggml/src" -lllama -lggml -lggml-cpu -lggml-base -Wl,-rpath,"$bin" \
        -o "$bin/decode_bits.exe"
}
program g++ linux
program $gxx windows $unaligned -static-libgcc -static-libstdc++
for library in libgomp-1 libgcc_s_seh-1 libstdc++-6 libwinpthread-1; do
    cp "$(find /usr/lib/gcc/x86_64-w64-mingw32/*-posix /usr/x86_64-w64-mingw32 -name "$library.dll" | head -1)" "$work/windows/bin/"
done

python=python
[ ! -x .venv/bin/python ] || python=.venv/bin/python
wanted=(${MODELS:-Q4_K_M Q4_0 Q8_0 Q2_K Q6_K IQ4_XS IQ3_S IQ2_XXS TQ1_0 F16 BF16})
PYTHONPATH=$root:tests/helpers "$python" - "$work" "${wanted[@]}" <<'PYTHON'
import sys
from pathlib import Path

from quantized import quantized_mixture, quantized_model

folder, *kinds = sys.argv[1:]
for kind in kinds:
    quantized_model(Path(folder), kind)
quantized_mixture(Path(folder), "Q4_K_M")
PYTHON

failed=0
for model in "$work"/*-*.gguf; do
    here=$("$work/linux/bin/decode_bits.exe" "$model") || { echo "$here" && exit 1; }
    there=$(wine64 "$work/windows/bin/decode_bits.exe" "$model" | tr -d '\r') || { echo "$there" && exit 1; }
    # The last line is of logits that take no sine of the system's.
    same="the same bits"
    [ "$(tail -1 <<<"$here")" = "$(tail -1 <<<"$there")" ] || { same="OTHER BITS" && failed=1; }
    echo "$(basename "$model"): $(sed -n 1,2p <<<"$there" | paste -sd ' '): $same"
done
exit $failed
