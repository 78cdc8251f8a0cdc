#!/usr/bin/env bash
# All figures of one H200 in one go, at most ten minutes: rows come as they are measured, a part that fails or takes
# too long does not stop the next.
#
# OUT_FOLDER gets rows.jsonl, rows.servers.log and run.log.
#
# usage: [BENCH_COMMIT=HASH] [BENCH_SECONDS=570] bench/engine/h200.sh OUT_FOLDER [PART...] [-- ENGINE_FLAG...]
#
# PARTs, in this order by default: online-8b busy-8b offline-8b offline-06b online-06b static-8b; also cache-8b,
# memory-8b, decode-8b, decode-06b, and long-8b (outputs of 1,024 tokens, three minutes). Needs python3 with torch and
# transformers, and the engine's other packages on PYTHONPATH (bench/engine/pack.sh); nothing is installed. The first
# server of a fresh machine is its cold start.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/crds:$PWD/engine_image:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
out=${1:?the first argument is the folder for the results}
shift
parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do parts+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#parts[@]} -gt 0 ] || parts=(online-8b busy-8b offline-8b offline-06b online-06b static-8b)
flags=("$@")
mkdir -p "$out"
exec > >(tee -a "$out/run.log") 2>&1
deadline=$((SECONDS + ${BENCH_SECONDS:-570}))
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv,noheader 2>&1
python3 -m compileall -q -j 0 crds engine_image bench >/dev/null 2>&1

# part NAME SECONDS_AT_MOST ARGUMENT...
part() {
    local name=$1 most=$2 left=$((deadline - SECONDS)) began=$SECONDS status
    shift 2
    # flags follow two dashes, which come once
    [ ${#flags[@]} -eq 0 ] || [[ " $* " == *" -- "* ]] || set -- "$@" --
    if [ "$left" -lt 25 ]; then echo "== $name: skipped, $left s are left"; return; fi
    echo "== $name (at most $((left < most ? left : most)) s)"
    timeout --kill-after=15 $((left < most ? left : most)) \
        python3 -m bench.engine --json "$out/rows.jsonl" "$@" "${flags[@]}"
    status=$?
    echo "== $name: status $status after $((SECONDS - began)) s"
}

decodes=(decode-b1 decode-b8 decode-b64 decode-b256)
for name in "${parts[@]}"; do
    case $name in
        offline-8b) part "$name" 240 --model llama-8b-shape --suite offline ;;
        offline-06b) part "$name" 150 --model qwen3-0.6b-shape --suite offline ;;
        online-8b) part "$name" 280 --model llama-8b-shape --work start online-c1-1024x128 online-c64-1024x128 \
            long-prompt-itl-p99 prefix-ttft-drop prefix-at-once ;;
        # most clients at once: with the default goal of 50 ms they would have less, and wait longer for the first token
        busy-8b) part "$name" 90 --model llama-8b-shape --work online-c256-1024x128 -- --itl-goal-ms 75 ;;
        online-06b) part "$name" 120 --model qwen3-0.6b-shape --work start online-c64-1024x128 online-c256-1024x128 ;;
        static-8b) part "$name" 180 --model llama-8b-shape --work decode-b1 continuous-against-static \
            decode-b1-without-graphs decode-b1-transformers graphs-drop ;;
        cache-8b) part "$name" 200 --model llama-8b-shape --suite cache ;;
        long-8b) part "$name" 300 --model llama-8b-shape --work online-c64-1024x1024 online-c256-1024x1024 ;;
        memory-8b) part "$name" 120 --model llama-8b-shape --work kv-tokens memory-stress ;;
        decode-8b) part "$name" 200 --model llama-8b-shape --work "${decodes[@]}" ;;
        decode-06b) part "$name" 120 --model qwen3-0.6b-shape --work "${decodes[@]}" ;;
        try) part "$name" 120 --model tiny-shape --suite offline --scale small ;;
        *) echo "== $name: no such part" ;;
    esac
done
echo "== done after $SECONDS s"
