#!/usr/bin/env bash
# Decodes tiny models with our kernels where we have no machine: on Windows, by Wine, and on ARM, by an emulator. The
# program is tests/decode_bits.cpp, over a llama.cpp that is compiled for each. It ends with 1 if a bit differs:
# - in batches of other sizes, or with other threads;
# - on Windows from Linux, where no sine of the system's is in the numbers;
# - with the instructions of an ARM processor from plain C++.
# It takes a quarter of an hour on two cores.
#
# usage: bash scripts/other_systems.sh LLAMA_CPP     the folder of llama.cpp in a source archive of llama-cpp-python
# Debian: apt-get install g++-mingw-w64-x86-64-posix wine64 g++-aarch64-linux-gnu qemu-user
#
# OPENMP=OFF: llama.cpp's own threads. MODELS: kinds of weights. SYSTEMS: windows, arm.
set -euo pipefail
source=$(realpath "$1")
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
export WINEPREFIX=$work/wine WINEDEBUG=-all
PATH=$PATH:/usr/lib/wine
trap 'wineserver64 -k 2>/dev/null || true; rm -rf "$work"' EXIT
read -ra systems <<<"${SYSTEMS:-windows arm}"
read -ra kinds <<<"${MODELS:-Q4_K_M Q4_0 Q8_0 Q2_K Q6_K IQ4_XS IQ3_S IQ2_XXS TQ1_0 F16 BF16}"

python=python
[ ! -x .venv/bin/python ] || python=.venv/bin/python
PYTHONPATH=$root:tests/helpers "$python" - "$work" "${kinds[@]}" <<'PYTHON'
import sys
from pathlib import Path

from quantized import quantized_mixture, quantized_model

folder, *kinds = sys.argv[1:]
for kind in kinds:
    quantized_model(Path(folder), kind)
quantized_mixture(Path(folder), "Q4_K_M")
PYTHON

declare -A prefix=([linux]="" [windows]=x86_64-w64-mingw32- [arm]=aarch64-linux-gnu-)
declare -A suffix=([linux]="" [windows]=-posix [arm]="")
declare -A flags=(
    [linux]=""
    # GCC takes Windows' stack to be aligned for AVX, which it is not (GCC bug 54412). Debian's headers lack some names of
    # newer versions.
    [windows]="-Wa,-muse-unaligned-vector-move -D_WIN32_WINNT=0x0601"
    [arm]="-march=armv8.2-a+dotprod+fp16"
)

# llama_cpp SYSTEM: llama.cpp, with the same instructions on Linux and on Windows.
llama_cpp() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF "-DGGML_OPENMP=${OPENMP:-ON}"
        -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF "-DCMAKE_C_FLAGS=${flags[$1]}" "-DCMAKE_CXX_FLAGS=${flags[$1]}"
        "-DCMAKE_C_COMPILER=${prefix[$1]}gcc${suffix[$1]}" "-DCMAKE_CXX_COMPILER=${prefix[$1]}g++${suffix[$1]}")
    [ "$1" = arm ] || for set in SSE42 AVX AVX2 BMI2 FMA F16C; do options+=("-DGGML_$set=ON"); done
    [ "$1" != windows ] || options+=(-DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=x86_64 -DGGML_WIN_VER=0x0601)
    [ "$1" != arm ] || options+=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64)
    cmake -S "$source" -B "$work/$1" "${options[@]}" >"$work/$1.log" 2>&1 &&
        cmake --build "$work/$1" --target llama -j "$(nproc)" >>"$work/$1.log" 2>&1 || { tail -30 "$work/$1.log" && exit 1; }
}

# program SYSTEM: our kernels, their place in ggml, and the program, beside the libraries.
program() {
    local compiler=${prefix[$1]}g++${suffix[$1]} bin=$work/$1/bin objects=$work/$1/ours
    local avx2="-mavx2 -mfma -mf16c" options=(-std=c++17 -O2 -ffp-contract=off "-I$root/cpp")
    options+=("-DSPECLLAMA_$([ "$1" = arm ] && echo ARM || echo X86)_KERNELS")
    [ "$1" != windows ] || options+=(${flags[$1]} -static-libgcc -static-libstdc++)
    mkdir "$objects"
    for file in cpp/kernels/*.cpp cpp/ggml/*.cpp cpp/ggml_plugin/*.cpp; do
        local own=""
        case $1:$file in
            arm:*avx* | linux:*neon* | windows:*neon*) continue ;;
            *avx2.cpp) own=$avx2 ;;
            *avx_vnni.cpp) own="$avx2 -mavxvnni" ;;
            *avx512_vnni.cpp) own="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni" ;;
            *neon_dotprod.cpp) own=-march=armv8.2-a+dotprod ;;
            *neon_i8mm.cpp) own=-march=armv8.2-a+dotprod+i8mm ;;
        esac
        # shellcheck disable=SC2086  # several options
        "$compiler" "${options[@]}" $own -c "$file" -o "$objects/$(basename "$file").o"
    done
    "$compiler" "${options[@]}" "-I$source/include" "-I$source/ggml/include" tests/decode_bits.cpp "$objects"/*.o \
        "-L$bin" "-L$work/$1/src" "-L$work/$1/ggml/src" -lllama -lggml -lggml-cpu -lggml-base "-Wl,-rpath,$bin" \
        -o "$bin/decode_bits.exe"
    [ "$1" != windows ] || for library in libgomp-1 libgcc_s_seh-1 libstdc++-6 libwinpthread-1; do
        find /usr/lib/gcc/x86_64-w64-mingw32/*-posix /usr/x86_64-w64-mingw32 -name "$library.dll" -exec cp {} "$bin" \;
    done
}

builds=("${systems[@]}")
[[ " ${systems[*]} " != *" windows "* ]] || builds+=(linux)
for system in "${builds[@]}"; do
    llama_cpp "$system"
    program "$system"
done

failed=0
# compare NAME OURS THEIRS: the last lines, which have no sine of the system's.
compare() {
    local same="the same bits"
    [ "$(tail -1 <<<"$2")" = "$(tail -1 <<<"$3")" ] || { same="OTHER BITS" && failed=1; }
    echo "$1, $(sed -n 1,2p <<<"$2" | paste -sd ' '): $same"
}
# decoded COMMAND...: what the program prints, which ends with 1 if batches differ.
decoded() { "$@" | tr -d '\r' || { echo "failed: $*" >&2 && "$@" >&2; exit 1; }; }

for model in "$work"/*-*.gguf; do
    name=$(basename "$model")
    for system in "${systems[@]}"; do
        bits=$work/$system/bin/decode_bits.exe
        if [ "$system" = windows ]; then
            compare "$name on Windows" "$(decoded wine64 "$bits" "$model")" "$(decoded "$work/linux/bin/decode_bits.exe" "$model")"
        else
            for processor in max neoverse-n1; do
                emulated=(qemu-aarch64 -cpu "$processor" -L /usr/aarch64-linux-gnu "$bits" "$model")
                compare "$name on $processor" "$(decoded "${emulated[@]}")" "$(decoded "${emulated[@]}" plain)"
            done
        fi
    done
done
exit $failed
