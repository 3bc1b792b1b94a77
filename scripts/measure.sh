#!/bin/bash
# Measures the figures of README and docs/: bash scripts/measure.sh [PART ...]. All parts take two hours on two cores.
# A part makes the file docs/data/PART.json in less than 5 minutes. Run python scripts/tables.py afterwards.
# MACHINE names a folder of docs/data/ for another machine's figures, such as avx-512-vnni.
#
#   costs-TYPE              T(n) and prompts, llama.cpp's kernels and ours by turns; TYPE is q4_k_m or q8_0
#   costs-SET-TYPE          T(n) with one instruction set of the kernels: SET is avx-512-vnni, avx-vnni or avx2.
#                           Only by name: a processor may lack it
#   costs-SHAPES-TYPE, rounds-SHAPES-TYPE, texts-SHAPES-TYPE  T(n), whole rounds and several texts of a model with random
#                           weights in the SHAPES of a real one (scripts/random_model.py says which); TYPE is q4_k or mxfp4
#   costs-2000-TYPE, costs-2000-flash-TYPE  T(n) behind 2,000 tokens, without flash attention and with it
#   long-contexts-TYPE      T(1), T(8) and prompts behind 128 to 16,000 tokens; only by name
#   kinds-TYPE-WAY          specllama bench, eight kinds of text; WAY is ours or theirs, whose kernels run (f16: theirs only)
#   whole-humaneval-TYPE    whole calls, prompts included, against llama_cpp.Llama; TYPE may be 7b, too: the file DEEPENED
#   whole-spec-bench-TYPE   (scripts/deepen.py makes it; 7b takes 10 minutes), and is measured only by name
#   types                   products of every type of weights, llama.cpp's kernels and ours by turns
#   limits                  the memory's speed and the processor's; needs a C compiler
#   humaneval-TYPE-WAY      specllama bench, HumanEval; PROMPTS is the folder of humaneval*.jsonl and spec_bench*.jsonl
#   spec-bench-TYPE-WAY     specllama bench, Spec-Bench
#   method-NAME-humaneval-TYPE, method-NAME-spec-bench-TYPE  whole calls with one kind of draft;
#                           NAME is lookup, lookahead, model (the draft) or staged (the draft with lookup of its own).
#                           Only by name: foreign (SmolLM2-135M, of another tokenizer), auto (-md auto), both (the draft
#                           and a head), and head, eagle3, hydra, medusa, blockwise, sibling or pard, which train-draft
#                           has made. HEAD names its file, in the folder of the prompts. TYPE may be 7b, too, only by name
#   ceiling-TYPE-WAY        the largest possible speedup (scripts/ceiling.py)
#   loading-TYPE            memory and time of loading
#   overhead, lookup-cost   what specllama itself costs
#   many-texts-q4_k_m       several texts at once; these take longer
#   many-texts-humaneval-q4_k_m
#   many-texts-spec-bench-q4_k_m  64 texts of 128 tokens: half an hour, and only by name
#   json-schemas-TYPE       answers in JSON; f16 too
#   llama-server-q4_k_m     several texts at once, against llama.cpp's server; LLAMA_SERVER names the folder that has it.
#                           Only by name: it has to be built (scripts/llama_server.py says how)
#   agent-prompts-q4_k_m    an agent's prompts with restarts (an hour), and what is put back after a restart (half an
#   after-restart-q4_k_m    hour); LLAMA_SERVER as above. Only by name
#   keeping-cost            what keeping short calls in a folder costs (the draft's model alone)
#   learning-cost           what keeping costs that a draft can learn from
#   tools-q4_k_m            llama.cpp's own tools; LLAMA_TOOLS names the folder that has them. Only by name
#   These need no quiet machine:
#   training-smollm2        recipes of train-draft on SmolLM2-135M (half an hour; only by name)
#   training-siblings       losses of train-draft --kind sibling (half an hour; only by name)
#   training-kinds          drafts of all kinds of train-draft, in the folder KINDS (hours; only by name)
#   arm-estimate            products on ARM processors, by llvm-mca; LLAMA_CPP names the folder of llama.cpp's source (ten
#                           minutes; only by name)
#   accuracy, perplexity-TYPE, splits-TYPE-WAY, text-memory, earlier-texts
set -eu -o pipefail
cd "$(dirname "$0")/.."
scripts=$PWD/scripts
target=${TARGET:-qwen2.5-coder-1.5b}
draft=${DRAFT:-qwen2.5-coder-0.5b:Q4_0}
humaneval_tasks=8

parts() {
    local type way kind
    for type in q4_k_m q8_0; do
        echo "costs-$type"
        for kind in humaneval spec-bench; do echo "whole-$kind-$type"; done
        for way in ours theirs; do
            for kind in kinds humaneval spec-bench ceiling; do echo "$kind-$type-$way"; done
        done
        echo "loading-$type"
        echo "json-schemas-$type"
    done
    for way in lookup lookahead model staged; do
        for kind in humaneval spec-bench; do echo "method-$way-$kind-q4_k_m"; done
    done
    for kind in qwen3-4b-q4_k gemma-3-4b-q4_k qwen3.5-4b-q4_k lfm2-2.6b-q4_k granite-4.0-h-micro-q4_k qwen3-30b-a3b-q4_k \
        qwen3-30b-a3b-mxfp4 qwen3.5-35b-a3b-q4_k gpt-oss-20b-mxfp4; do
        for way in costs rounds texts; do echo "$way-$kind"; done
    done
    echo costs-2000-q4_k_m
    echo costs-2000-flash-q4_k_m
    for kind in kinds humaneval spec-bench; do echo "$kind-f16-theirs"; done
    echo limits
    echo overhead
    echo lookup-cost
    echo keeping-cost
    echo learning-cost
    echo many-texts-q4_k_m
    echo many-texts-humaneval-q4_k_m
    echo text-memory
    echo earlier-texts
    echo types
    echo accuracy
    for type in q4_k_m q8_0; do
        echo "perplexity-$type"
        for way in ours theirs; do echo "splits-$type-$way"; done
    done
}

# The name of a part has the type of the weights and whose kernels run.
model() {
    case $1 in
        *q4_k_m*) echo "$target:Q4_K_M" ;;
        *q8_0*) echo "$target:Q8_0" ;;
        *f16*) echo "$target:F16" ;;
        *-7b) echo "${DEEPENED:?names a file of scripts/deepen.py, in the folder of the prompts}" ;;
    esac
}
kernels() {
    case $1 in
        *-theirs) echo off ;;
        *) echo auto ;;
    esac
}

# It runs in the folder of the prompts, so that a result names files without folders.
bench() {
    local part=$1 folder=$2
    shift 2
    (cd "$folder" && specllama bench -m "$(model "$part")" -md "$draft" --kernels "$(kernels "$part")" -o json "$@") |
        python "$scripts/recorded.py" "$part"
}
prompts() {
    local found
    found=$(cd "$PROMPTS" && ls "$1"*.jsonl)
    echo "${found%%$'\n'*}"
}

measure() {
    local part=$1
    case $part in
        *humaneval-* | *spec-bench-* | ceiling-* | tools-*) : "${PROMPTS:?names the folder of HumanEval and Spec-Bench}" ;;
    esac
    case $part in
        whole-humaneval-*)
            bench "$part" "$PROMPTS" --prompts "$(prompts humaneval)" --limit "$humaneval_tasks" --max-tokens 64 \
                --against llama_cpp
            ;;
        whole-spec-bench-*)
            bench "$part" "$PROMPTS" --prompts "$(prompts spec_bench)" --limit 1 --max-tokens 64 --against llama_cpp
            ;;
        method-*)
            case $part in
                method-lookup-* | method-lookahead-* | method-auto-*) draft=$(cut -d- -f2 <<<"$part") ;;
                method-foreign-*) draft=smollm2-135m ;;
                method-staged-*) inner="-mdd lookup" ;;
                method-both-*) inner="-md ${HEAD:?names a file of train-draft, in the folder of the prompts}" ;;
                method-model-*) ;;
                *) draft=${HEAD:?names a file of train-draft, in the folder of the prompts} ;;
            esac
            case $part in
                *-humaneval-*) set -- humaneval "$humaneval_tasks" ;;
                *) set -- spec_bench 1 ;;
            esac
            # shellcheck disable=SC2086  # two words
            bench "$part" "$PROMPTS" ${inner:-} --prompts "$(prompts "$1")" --limit "$2" --max-tokens 64 --modes plain,auto
            ;;
        types) python "$scripts/types_of_weights.py" --record "$part" ;;
        arm-estimate) python "$scripts/arm_estimate.py" "${LLAMA_CPP:?names the folder of llama.cpp}" --record "$part" ;;
        limits) python "$scripts/limits.py" "$target:Q4_K_M" "$target:Q8_0" --record "$part" ;;
        tools-*)
            : "${LLAMA_TOOLS:?names the folder of llama-speculative-simple and llama-lookup}"
            python "$scripts/llama_cpp_tools.py" "$LLAMA_TOOLS" "$(model "$part")" "$draft" --max-tokens 64 \
                --prompts "$PROMPTS/$(prompts humaneval)" --prompts "$PROMPTS/$(prompts spec_bench)" --record "$part"
            ;;
        costs-2000-flash-*)
            python "$scripts/batch_costs.py" "$(model "$part")" --behind 2000 --flash-attn --repeats 5 --record "$part"
            ;;
        costs-2000-*)
            python "$scripts/batch_costs.py" "$(model "$part")" --behind 2000 --no-flash-attn --repeats 5 --record "$part"
            ;;
        long-contexts-*) python "$scripts/long_contexts.py" "$(model "$part")" --record "$part" ;;
        *-q4_k | *-mxfp4)
            what=${part%%-*} type=${part##*-} kind=${part#*-}
            model=$(mktemp -d)/$kind.gguf
            python "$scripts/random_model.py" "$model" "${kind%-*}" --type "${type^^}" --tokenizer "$(specllama pull "$target")"
            case $what in
                costs) python "$scripts/batch_costs.py" "$model" --repeats 5 --record "$part" ;;
                rounds) python "$scripts/rounds.py" "$model" --repeats 3 --record "$part" ;;
                texts) python "$scripts/many_texts.py" "$model" --parallel 1 8 --record "$part" ;;
            esac
            rm -r "$(dirname "$model")"
            ;;
        costs-avx*)
            case $part in
                costs-avx-512-vnni-*) set="AVX-512 VNNI" ;;
                costs-avx-vnni-*) set="AVX-VNNI" ;;
                *) set="AVX2" ;;
            esac
            SPECLLAMA_KERNELS=$set python "$scripts/batch_costs.py" "$(model "$part")" --repeats 5 --record "$part"
            ;;
        costs-*) python "$scripts/batch_costs.py" "$(model "$part")" --record "$part" ;;
        kinds-*) bench "$part" . --limit 1 --max-tokens 96 ;;
        humaneval-*) bench "$part" "$PROMPTS" --prompts "$(prompts humaneval)" --limit "$humaneval_tasks" --max-tokens 96 ;;
        spec-bench-*) bench "$part" "$PROMPTS" --prompts "$(prompts spec_bench)" --limit 1 --max-tokens 64 ;;
        ceiling-*)
            python "$scripts/ceiling.py" "$(model "$part")" "$draft" --kernels "$(kernels "$part")" --max-tokens 64 \
                --prompts "$PROMPTS/$(prompts humaneval)" --prompts "$PROMPTS/$(prompts spec_bench)" --record "$part"
            ;;
        loading-*) python "$scripts/loading.py" "$(model "$part")" --record "$part" ;;
        json-schemas-*) python "$scripts/json_schemas.py" "$(model "$part")" "$draft" --record "$part" ;;
        overhead) python "$scripts/overhead.py" --record "$part" ;;
        earlier-texts)
            : "${PROMPTS:?names the folder of HumanEval and Spec-Bench}"
            python "$scripts/earlier_texts.py" "$target:Q4_K_M" "$draft" --prompts "$PROMPTS/$(prompts humaneval)" --record "$part"
            ;;
        lookup-cost) python "$scripts/lookup_cost.py" --record "$part" ;;
        many-texts-humaneval-*)
            python "$scripts/many_texts.py" "$(model "$part")" "$draft" --prompts "$PROMPTS/$(prompts humaneval)" --record "$part"
            ;;
        many-texts-spec-bench-*)
            python "$scripts/many_texts.py" "$(model "$part")" "$draft" --prompts "$PROMPTS/$(prompts spec_bench)" \
                --texts 64 --max-tokens 128 --record "$part"
            ;;
        llama-server-*)
            : "${LLAMA_SERVER:?names the folder of llama-server}"
            python "$scripts/llama_server.py" "$LLAMA_SERVER" "$(model "$part")" "$draft" --parallel 1 8 --record "$part"
            ;;
        agent-prompts-*)
            : "${LLAMA_SERVER:?names the folder of llama-server}"
            python "$scripts/agent_prompts.py" "$(model "$part")" --draft "$draft" --server "$LLAMA_SERVER" --record "$part"
            ;;
        after-restart-*)
            : "${LLAMA_SERVER:?names the folder of llama-server}"
            python "$scripts/after_restart.py" "$(model "$part")" --server "$LLAMA_SERVER" --record "$part"
            ;;
        learning-cost) python "$scripts/keeping_cost.py" "$target" --learn --repeats 16 --record "$part" ;;
        keeping-cost) python "$scripts/keeping_cost.py" "${draft%:*}" --record "$part" ;;
        many-texts-*) python "$scripts/many_texts.py" "$(model "$part")" "$draft" --record "$part" ;;
        text-memory) python "$scripts/text_memory.py" "$target:Q4_K_M" "$draft" --record "$part" ;;
        training-smollm2) python "$scripts/train_experiments.py" smollm2-135m --record "$part" ;;
        training-siblings) python "$scripts/train_experiments.py" "$target" --draft "${draft%:*}" --record "$part" ;;
        training-kinds)
            python "$scripts/train_experiments.py" "$target" --draft "${draft%:*}" --tokens 59216 \
                --kinds eagle3,hydra,medusa,blockwise,sibling,pard \
                --files "${KINDS:?names a folder for the drafts}" --record "$part"
            ;;
        accuracy) python "$scripts/accuracy.py" --record "$part" ;;
        perplexity-*) python "$scripts/perplexity.py" "$(model "$part")" --record "$part" ;;
        splits-*) python "$scripts/splits.py" "$(model "$part")" "$draft" --kernels "$(kernels "$part")" --record "$part" ;;
        *)
            echo "$part is no part: see the head of scripts/measure.sh" >&2
            return 2
            ;;
    esac
}

if [ $# -eq 0 ]; then mapfile -t wanted < <(parts); else wanted=("$@"); fi
for part in "${wanted[@]}"; do
    echo "== $part, $(date +%H:%M:%S)" >&2
    (measure "$part") # in a process of its own: a part may choose another draft
done
