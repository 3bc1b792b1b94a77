#!/usr/bin/env bash
# Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer into build/sanitize, and runs the tests
# on it (those that need no downloaded model), in the environment that is active. Arguments go to pytest.
# libllama itself is not instrumented: what is looked for is in specllama._core.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -s)" != Linux ] || ! command -v g++ >/dev/null; then
    echo "sanitize: this needs Linux and g++, whose run time can be preloaded into Python" >&2
    exit 1
fi

build=build/sanitize
overlay=$PWD/$build/overlay

mkdir -p build
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=g++ \
    -DSPECLLAMA_SANITIZE=address,undefined -DSPECLLAMA_TESTS=ON -DPython_EXECUTABLE="$(command -v python)" \
    -Dpybind11_DIR="$(python -m pybind11 --cmakedir)"
cmake --build "$build"
rm -rf "$overlay"
mkdir -p "$overlay"
cp -R specllama "$overlay/"
cmake --install "$build" --prefix "$overlay" >/dev/null

# Python is not instrumented, so the run times must be loaded before it; libstdc++ too, or AddressSanitizer finds no
# __cxa_throw to wrap and the first exception ends the process. None of the leaks that Python leaves at exit are ours.
runtimes=""
for library in libasan.so libubsan.so libstdc++.so; do
    runtimes+="$(g++ -print-file-name=$library) "
done
sanitized() {
    env LD_PRELOAD="$runtimes" PYTHONPATH="$overlay" PYTHONMALLOC=malloc \
        ASAN_OPTIONS=detect_leaks=0:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$@"
}

# A run that finds nothing proves something only if it could have: two planted errors must be found, and the
# extension that the tests import must be the instrumented one.
probe=$build/probe
cat >"$probe.cpp" <<'CPP'
#include <climits>
extern "C" int read_past_the_end(int n) { int * p = new int[4]{}; const int x = p[n]; delete[] p; return x; }
extern "C" int overflow(int n) { return INT_MAX - 4 + n; }
CPP
g++ -g -fsanitize=address,undefined -fno-sanitize-recover=all -shared -fPIC "$probe.cpp" -o "$probe.so"
for planted in "read_past_the_end AddressSanitizer" "overflow runtime.error"; do
    read -r function report <<<"$planted"
    output=$(sanitized python -c "import ctypes; ctypes.CDLL('$probe.so').$function(3)" 2>&1) ||
        { echo "sanitize: a correct call of $function failed: $output" >&2; exit 1; }
    if output=$(sanitized python -c "import ctypes; ctypes.CDLL('$probe.so').$function(5)" 2>&1); then
        echo "sanitize: the planted error of $function was not found" >&2; exit 1
    fi
    grep -q "$report" <<<"$output" || { echo "sanitize: $function ended otherwise: $output" >&2; exit 1; }
done
cat >"$probe.py" <<'PYTHON'
import pathlib, sys
from specllama import _core
path = pathlib.Path(_core.__file__)
assert path.is_relative_to(sys.argv[1]), f"the tests would import {path}"
code = path.read_bytes()
assert b"__asan_report" in code and b"__ubsan_handle" in code, f"{path} is not instrumented"
PYTHON
sanitized python "$probe.py" "$overlay"
echo "sanitize: both planted errors were found; $overlay is instrumented"

# Left out are tests that look at no native code of ours (pages, downloads, reports, what servers refuse, which schemas are
# supported), and those that run it by way of other processes (commands, trials in a child, signals, damaged files): the
# tests that stay run the same code here, and a process takes seconds to start. Those that are marked long are left out,
# too: they run the same code with other numbers. With an empty cache the tests of real models skip themselves: they say
# nothing new here, and would take an hour.
left_out=(abi_headers assertions bench_output bench_summary catalog cmake_args compatibility cost_cache docs fetch hub
    prompts product_trial replay report_prediction server_auth server_hosts server_schemas server_sizes structure tables
    troubleshooting amx batch_continues batch_files bench_against bench_command chat_command cli cli_models cli_usage demo eval_command
    eval_comparison eval_humaneval eval_multiply eval_sandbox faults_cache faults_models faults_signals gbnf_in_time opening quantize
    schema_suite serve_command server_fuzz server_openai trial tune verify_command)
ignored=()
for name in "${left_out[@]}"; do
    [ -f "tests/test_$name.py" ] || { echo "sanitize: there is no tests/test_$name.py to leave out" >&2; exit 1; }
    ignored+=("--ignore=tests/test_$name.py")
done
# pytest's own cache stays that of the plain run.
# Two processes halve the time. One OpenMP thread each: two processes with two threads each would wait for each other.
export SPECLLAMA_CACHE=$PWD/$build/no-models SPECLLAMA_REQUIRE_MODELS=0 OMP_THREAD_LIMIT=1
sanitized pytest -p no:cacheprovider -n 2 --dist worksteal -m "not long" "${ignored[@]}" "$@"
