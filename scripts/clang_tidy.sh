#!/usr/bin/env bash
# Runs clang-tidy over every C++ source with the flags of a real build. Debug: there each source is compiled by itself.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/tidy
mkdir -p build
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DSPECLLAMA_TESTS=ON \
    -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" 2>&1 ||
    { cat "$build.log" >&2; exit 1; }

jobs=$(python -c 'import os; print(os.cpu_count() or 1)')
python -c '
import json, sys
print(*(one["file"] for one in json.load(open(sys.argv[1])) if "/cpp/" in one["file"]), sep="\0", end="")' \
    "$build/compile_commands.json" | xargs -0 -n 1 -P "$jobs" clang-tidy -p "$build" --quiet

# What this processor's build leaves out, for the processor that it is for.
if command -v aarch64-linux-gnu-g++ >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    printf '%s\n' cpp/kernels/neon_*.cpp | xargs -I{} -P "$jobs" clang-tidy --quiet {} -- \
        --target=aarch64-linux-gnu -std=c++17 -Icpp -march=armv8.2-a+dotprod+i8mm
fi
