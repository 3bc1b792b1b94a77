#!/usr/bin/env bash
# Runs clang-tidy over every C++ source with the flags of a real build. Debug: GCC's flags for link-time
# optimisation, which a Release build has, mean nothing to clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/tidy
mkdir -p build
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DSPECLLAMA_TESTS=ON \
    -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" 2>&1 ||
    { cat "$build.log" >&2; exit 1; }

jobs=$(python -c 'import os; print(os.cpu_count() or 1)')
find cpp -name '*.cpp' -print0 | xargs -0 -n 1 -P "$jobs" clang-tidy -p "$build" --quiet
