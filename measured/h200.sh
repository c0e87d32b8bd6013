#!/bin/bash
# What measured/h200-*.tsv hold, made in one go on a machine with the card: after `make tiles`, from the same checkout.
# usage: measured/h200.sh MODELS OUT STEP...
#
# MODELS is a folder for checkpoints (8 GB), OUT one for the tables. Steps: models, torch, bench, account, sweep, plan, repeat, parity,
# sanitize, busy. Nothing else may use the card during torch, bench, account, sweep and repeat; the last three may share it.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 3 ] || {
  sed -n '3s/# //p' "$0" >&2
  exit 2
}
models=$1 out=$2
shift 2
mkdir -p "$models" "$out"
T=$'\t'
gpu=(--device cuda:0 --ffn split --sync barrier)

head_of() { # head_of COMMAND: what every table begins with
  local card
  card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sed 's/, /, driver /')
  printf '# device\t%s, CUDA %s\n' "$card" "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
  printf '# date\t%s\n# command\t%s\n' "$(date +%F)" "$1"
  printf '# source\t%s\n' "$(cat ./*.c ./*.h ./*.cu ./*.cuh | sha256sum | cut -c 1-16)"
}
weights() { printf '# weights\t%s\n' 'tiles synth SHAPE DIR --seed 7 (llama-3.2-1b), --seed 3 (the others)'; }
folder() { # folder SHAPE, or real: SmolLM2's own weights, made by measured/gguf_folder.py
  case $1 in l*) echo "$models/l1b" ;; q*) echo "$models/q15" ;; s*) echo "$models/s135" ;; real) echo "$models/real" ;; esac
}
shapes='llama-3.2-1b qwen2.5-1.5b:f16 smollm2-135m'
ids=$(seq -s , 11 97 6200) # 64

step_models() {
  local shape seed pids=()
  for shape in $shapes; do
    seed=3
    [ "$shape" != llama-3.2-1b ] || seed=7
    [ -e "$(folder "$shape")/model.safetensors" ] || "${TILES:-./tiles}" synth "$shape" "$(folder "$shape")" --seed $seed &
    pids+=($!)
  done
  wait "${pids[@]}"
}

step_torch() {
  timeout 150 python3 measured/torch_base.py >"$out/torch.txt" 2>"$out/torch.err"
  {
    head_of 'python3 measured/torch_base.py' | grep -v '^# source'
    printf '# left out\t%s\n' 'random weights of the real shapes; graphs by CUDA events, so no id goes to the host or back; a static cache under a mask, so the context is its whole length; the wall-clock arm is bound by the host'
    printf 'model\tcontext\tarm\tms\n'
    sed -nE -e "s/^(\S+) S=([0-9]+) weights .* plain-torch eager (\S+) ms/\1$T\2${T}plain eager$T\3/p" \
      -e "s/^(\S+) S=([0-9]+) plain-torch graph (\S+) ms/\1$T\2${T}plain, CUDA graph$T\3/p" \
      -e "s/^(\S+) S=([0-9]+) compiled\+graph (\S+) ms.*/\1$T\2${T}inductor, CUDA graph$T\3/p" \
      -e "s/^(\S+) HF (\S+) eager: prefill ([0-9]+) tok .* decode (\S+) ms.*/\1$T\3${T}Transformers \2 eager, wall clock$T\4/p" \
      -e "s/^(\S+) HF eager: ([0-9]+) device events\S* (\S+) ms.*/\1$T${T}Transformers eager, device time of \2 events$T\3/p" "$out/torch.txt" |
      tac | awk -F '\t' '!seen[$1, $2, $3]++' | tac # of Transformers' three rounds the last
  } >"$out/h200-torch.tsv"
}

bench() { # bench SHAPE CONTEXTS [TOKENS]
  timeout 60 ./tiles bench "$(folder "$1")" "${gpu[@]}" --ctx "$2" --runs 5 -n "${3:-64}" --tsv |
    awk -F '\t' -v OFS='\t' -v m="$1" -v n="${3:-64}" 'NR > 1 { print m, $1, n, $6, $7, $8, $9, $10, $11 }'
}
step_bench() {
  {
    head_of 'tiles bench DIR --device cuda:0 --ffn split --sync barrier --ctx LIST --runs 5 -n TOKENS (tokens a run; the K/V cache seeded)'
    weights
    printf 'model\tcontext\ttokens\tread_gbs\tfloor_ms\tms\tleast_ms\tmost_ms\tshare_percent\n'
    bench llama-3.2-1b 1,512,4096,16384,32768
    bench qwen2.5-1.5b:f16 1,512,4096
    bench qwen2.5-1.5b:f16 512 255
    bench smollm2-135m 1,512,4096
  } >"$out/h200-bench.tsv"
}

step_account() {
  local context
  {
    head_of 'tiles trace DIR --device cuda:0 --ffn split --sync barrier --ctx CONTEXT'
    weights
    printf 'context\tpart\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\n'
    for context in 1 4096; do
      timeout 60 ./tiles trace "$models/l1b" "${gpu[@]}" --ctx $context | sed 1d | sed "s/^/$context$T/"
    done
  } >"$out/h200-account.tsv"
}

step_sweep() {
  {
    head_of 'tiles probe --device cuda:0 --sweep'
    timeout 60 ./tiles probe --device cuda:0 --sweep
  } >"$out/h200-sweep.tsv"
}

step_plan() {
  timeout 60 ./tiles probe --device cuda:0 -o "$out/probed.tsv"
  for context in 1 4096; do
    timeout 20 ./tiles plan llama-3.2-1b --target "$out/probed.tsv" --ffn split --sync barrier --context $context --explain
    echo
  done >"$out/plan.txt"
}

# 50 runs a process, so that a time limit leaves a count; all hashes must be one.
repeat() { # repeat NAME
  local begin=$SECONDS
  for _ in 1 2 3 4; do
    timeout 60 ./tiles logits "$models/l1b" "${gpu[@]}" --ids "$ids" --runs 50 2>&1
  done >"$out/repeat-$1.txt"
  awk -v OFS='\t' -v name="$1" -v took=$((SECONDS - begin)) '$2 == "runs" { runs += $1; if (!seen[$NF]++) { hashes++; hash = hash " " $NF } }
    END { print name, runs + 0, hashes + 0, substr(hash, 2), took }' "$out/repeat-$1.txt"
}
repeat_head() {
  head_of 'tiles logits DIR --device cuda:0 --ffn split --sync barrier --ids LIST --runs 50, four processes; LIST: 64 ids'
  weights
  printf '# a run\t%s\n' "64 launches of a token and one of 64; the hash is over all logits and the decoded ids"
  printf 'card\truns\thashes\thash\tseconds\n'
}
step_repeat() {
  {
    repeat_head
    repeat idle
  } >"$out/h200-repeat.tsv"
}
step_busy() {
  (while :; do timeout 60 ./tiles bench "$models/l1b" "${gpu[@]}" --ctx 512 --runs 200 >>"$out/busy-bench.txt" 2>&1; done) &
  local loop=$!
  sleep 2
  repeat busy >>"$out/h200-repeat.tsv"
  kill $loop
  wait $loop 2>/dev/null
}

step_parity() {
  local shape pids=()
  printf '#!/bin/sh\nexec ./tiles "$@" --ffn split --sync barrier\n' >"$out/tiles-split" && chmod +x "$out/tiles-split"
  rm -f "$out/parity-"*
  for shape in $shapes; do
    timeout 200 python3 tests/gpu_parity.py "$out/tiles-split" "$(folder "${shape/smollm2-135m/real}")" 1 384 385 4096 >"$out/parity-$shape.tsv" 2>"$out/parity-$shape.err" &
    pids+=($!)
  done
  wait "${pids[@]}"
  {
    head_of 'python3 tests/gpu_parity.py TILES DIR 1 384 385 4096, TILES with --ffn split --sync barrier'
    printf '# versions\t%s\n' "$(python3 -c 'import torch, transformers; print("torch %s, transformers %s" % (torch.__version__, transformers.__version__))')"
    weights | sed 's/$/; smollm2-135m: its own weights, SmolLM2-135M-Instruct.Q4_1.gguf through measured\/gguf_folder.py/'
    for shape in $shapes; do sed -n "s/^# greedy$T/# greedy$T$shape: /p" "$out/parity-$shape.tsv"; done
    printf 'model\tcontext\ttiles_error\ttransformers_error\n'
    for shape in $shapes; do grep '^[0-9]' "$out/parity-$shape.tsv" | cut -f 1-3 | sed "s/^/$shape$T/"; done
  } >"$out/h200-parity.tsv"
}

sanitize() { # sanitize TOOL SHAPE OPTIONS
  local got log
  log=$out/sanitize-$1-$2-${3// /}.txt
  # shellcheck disable=SC2086 # options are words
  got=$(timeout 100 compute-sanitizer --tool "$1" --log-file "$log" ./tiles run "$models/$2" --device cuda:0 --ids 1,2,3,4,5 -n 20 $3 2>"$log.err")
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$(sed -n 's/.*ERROR SUMMARY: //p; s/.*RACECHECK SUMMARY: //p' "$log" | tail -n 1)" \
    "$([ "$got" = "$(./tiles run "$models/$2" --device cpu --workers 1 --ids 1,2,3,4,5 -n 20 2>/dev/null)" ] && echo yes || echo NO)"
}
step_sanitize() {
  local shape tool options pids
  for shape in tiny-llama tiny-qwen2; do [ -e "$models/$shape" ] || ./tiles synth $shape "$models/$shape" --seed 1; done
  {
    head_of 'compute-sanitizer --tool TOOL tiles run DIR --device cuda:0 --ids 1,2,3,4,5 -n 20 OPTIONS (without --ffn the FFN is fused)'
    printf '# weights\ttiles synth SHAPE DIR --seed 1\ntool\tmodel\toptions\tsummary\treference_tokens\n'
    for tool in memcheck racecheck initcheck synccheck; do
      pids=()
      for shape in tiny-llama tiny-qwen2; do
        for options in '--ffn split' '--sync barrier --workers 3'; do
          sanitize $tool $shape "$options" &
          pids+=($!)
        done
      done
      wait "${pids[@]}"
    done
  } >"$out/h200-sanitize.tsv"
}

for step; do
  echo "$step: from $SECONDS s" >&2
  "step_$step"
done
