#!/usr/bin/env bash
# Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer into build/sanitize, and runs the tests
# on it (those that need no downloaded model), in the environment that is active. Arguments go to pytest.
# With SANITIZERS=thread it is ThreadSanitizer, and the tests are those in which threads meet.
# libllama itself is not instrumented: the errors that are looked for are in specllama._core.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -s)" != Linux ] || ! command -v g++ >/dev/null; then
    echo "sanitize: this needs Linux and g++, whose run time can be preloaded into Python" >&2
    exit 1
fi

sanitizers=${SANITIZERS:-address,undefined}
case $sanitizers in
address,undefined)
    build=build/sanitize libraries="libasan.so libubsan.so libstdc++.so"
    planted=("read_past_the_end AddressSanitizer" "overflow runtime.error") marks="__asan_report __ubsan_handle" ;;
thread)
    build=build/sanitize-thread libraries="libtsan.so libstdc++.so"
    planted=("race ThreadSanitizer") marks="__tsan_read" ;;
*)
    echo "sanitize: SANITIZERS=$sanitizers must be address,undefined or thread" >&2
    exit 1 ;;
esac
overlay=$PWD/$build/overlay

mkdir -p build
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=g++ \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DSPECLLAMA_SANITIZE="$sanitizers" -DSPECLLAMA_TESTS=ON -DPython_EXECUTABLE="$(command -v python)" \
    -Dpybind11_DIR="$(python -m pybind11 --cmakedir)"
cmake --build "$build"
rm -rf "$overlay"
mkdir -p "$overlay"
cp -R specllama "$overlay/"
rm -f "$overlay"/specllama/_core*.so  # of a build in place: CMake would take one of the same second for its own
cmake --install "$build" --prefix "$overlay" >/dev/null

# Python is not instrumented, so the run times must be loaded before it; libstdc++ too, or AddressSanitizer finds no
# __cxa_throw to wrap and the first exception ends the process. None of the leaks that Python leaves at exit are ours.
runtimes=""
for library in $libraries; do
    runtimes+="$(g++ -print-file-name=$library) "
done
# Locks that ThreadSanitizer does not see: of the C library, which frees what a thread had, and of llguidance.
printf '%s\n' race:_dl_deallocate_tls race:llguidance >"$build/suppressions"
export TSAN_OPTIONS=suppressions=$PWD/$build/suppressions
sanitized() {
    env LD_PRELOAD="$runtimes" PYTHONPATH="$overlay" PYTHONMALLOC=malloc \
        ASAN_OPTIONS=detect_leaks=0:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$@"
}

# A run that finds nothing proves something only if it could have: planted errors must be found, and the extension that
# the tests import must be the instrumented one.
probe=$build/probe
cat >"$probe.cpp" <<'CPP'
#include <climits>
#include <thread>
extern "C" int read_past_the_end(int n) { int * p = new int[4]{}; const int x = p[n]; delete[] p; return x; }
extern "C" int overflow(int n) { return INT_MAX - 4 + n; }
extern "C" void race(int n) {
    int x[8] = {};
    std::thread one([&x] { x[5] += 1; });
    std::thread other([&x, n] { x[n] += 1; });
    one.join();
    other.join();
}
CPP
g++ -g -fsanitize="$sanitizers" -fno-sanitize-recover=all -shared -fPIC "$probe.cpp" -o "$probe.so"
for one in "${planted[@]}"; do
    read -r function report <<<"$one"
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
assert all(mark.encode() in code for mark in sys.argv[2:]), f"{path} is not instrumented"
PYTHON
sanitized python "$probe.py" "$overlay" $marks
echo "sanitize: what was planted was found; $overlay is instrumented"

# Tests that run no native code of ours are left out (PyTorch, pages, downloads, reports, requests, schemas, reading of
# texts and chats, ggml's structures, time limits of grammars). So are tests that run it in other processes or in the
# server (commands, trials in a child, signals, damaged files): other tests run this code here, and a process takes
# seconds to start. Tests that are marked long or statistics run the code only with other numbers. Forks of a process
# with threads are left out, too: in one of about sixty tests a child waited forever, but never without the sanitizer.
# With an empty cache the tests of real models skip themselves: they show nothing new here, and would take an hour.
left_out=(abi_headers assertions bench_output bench_summary catalog cmake_args compatibility cost_cache docs fetch hub
    prompts product_trial speed_trial replay report_prediction server_auth server_hosts server_schemas server_sizes structure tables
    troubleshooting amx batch_continues batch_files bench_against bench_command chat_command cli cli_models cli_usage demo eval_command
    eval_comparison eval_humaneval eval_multiply eval_sandbox faults_cache faults_models faults_signals opening quantize
    schema_suite serve_command server_fuzz server_openai trial tune verify_command chat_messages chat_templates default_threads defaults
    direct_calls embedding_contexts every_path helper_processes interpreter_end process_streams server_wire training train_draft hub_names
    server_log server_embeddings server_conversations tool_formats reference verify_pair_measures bench compare
    forks chat_arguments server_meanings tool_calls drafts_command automatic_draft loading_options server_images server_api server_responses
    server_messages server_recorded server_parallel batch_command schemas infill arguments auto_options cost_memory cost_curve
    server_paths server_same_requests train_state_heads sibling pard ggml_layout special_names accepted_form
    damaged_files headers folders depth server_streams server_agents long_lists answers_behind_thoughts
    interrupted_commands taken_away)
ignored=(--deselect=tests/drafts/test_heads_hard.py::test_forks)
for name in "${left_out[@]}"; do
    path=$(echo tests/*/"test_$name.py")
    [ -f "$path" ] || { echo "sanitize: there is no $path to leave out" >&2; exit 1; }
    ignored+=("--ignore=$path")
done
# pytest's own cache stays that of the plain run.
# Two processes halve the time. One OpenMP thread each: two processes with two threads each would wait for each other.
export SPECLLAMA_CACHE=$PWD/$build/no-models SPECLLAMA_REQUIRE_MODELS=0 OMP_THREAD_LIMIT=1
# An instrumented kernel is slower than llama.cpp's own, and would not be used if that were measured: it is named here.
SPECLLAMA_KERNELS=$(sanitized python -c 'from specllama import _core; print(_core.instruction_sets()[0])')
export SPECLLAMA_KERNELS
# Without arguments, a test with many cases runs only some of them: the others run this code with other numbers.
[ $# -gt 0 ] || export SPECLLAMA_MOST_CASES=4
if [ "$sanitizers" = thread ] && [ $# = 0 ]; then
    set -- tests/*/test_{closing,interruptions,listed_rows,loading_in_threads,parallel,room,scheduler,shared_draft,views,waiting}.py
fi
# ThreadSanitizer goes on after a finding, and pytest shows nothing of it for tests that pass or run in a worker.
rm -f "$build"/report.*
export TSAN_OPTIONS=$TSAN_OPTIONS:log_path=$PWD/$build/report
status=0
sanitized pytest -p no:cacheprovider -n 2 --dist worksteal -m "not long and not statistics" "${ignored[@]}" "$@" || status=$?
for report in "$build"/report.*; do
    if [ -f "$report" ]; then
        cat "$report"
        status=1
    fi
done
exit "$status"
