#!/bin/bash
# What measured/h200-*.tsv hold, made in one go on a machine with the card: after `make tiles`, from the same checkout.
# usage: measured/h200.sh MODELS OUT STEP...
#
# MODELS is a folder for checkpoints (8 GB), OUT one for the tables. Steps: models, torch, bench, account, sweep, plan, repeat, parity,
# sanitize, busy. Nothing else may use the card during torch, bench, account, sweep and repeat; the last three may share it. What is about the tape is
# made by measured/h200-tape.sh.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 3 ] || {
  sed -n '3s/# //p' "$0" >&2
  exit 2
}
models=$1 out=$2
shift 2
sources=waves
# shellcheck source=measured/lib.sh
. measured/lib.sh

step_torch() {
  limited 150 python3 measured/torch_base.py >"$out/torch.txt" 2>"$out/torch.err"
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

bench_rows() { # bench_rows SHAPE CONTEXTS [TOKENS]
  local tokens=${3:-64}
  bench ./tiles "$1" "$2" "$tokens" "${waves[@]}" |
    awk -F '\t' -v OFS='\t' -v m="$1" -v n="$tokens" '{ print m, $1, n, $6, $7, $8, $9, $10, $11 }'
}
step_bench() {
  {
    head_of "tiles bench DIR --device cuda:0 ${waves[*]} --ctx LIST --runs 5 -n TOKENS (tokens a run; the K/V cache seeded)"
    weights
    printf 'model\tcontext\ttokens\tread_gbs\tfloor_ms\tms\tleast_ms\tmost_ms\tshare_percent\n'
    bench_rows llama-3.2-1b 1,512,4096,16384,32768
    bench_rows qwen2.5-1.5b:f16 1,512,4096
    bench_rows qwen2.5-1.5b:f16 512 255
    bench_rows smollm2-135m 1,512,4096
  } >"$out/h200-bench.tsv"
}

step_account() {
  {
    head_of "tiles trace DIR --device cuda:0 ${waves[*]} --ctx CONTEXT"
    weights
    account waves
  } >"$out/h200-account.tsv"
}

step_sweep() {
  {
    head_of 'tiles probe --device cuda:0 --sweep'
    limited 60 ./tiles probe --device cuda:0 --sweep
  } >"$out/h200-sweep.tsv"
}

step_plan() {
  limited 60 ./tiles probe --device cuda:0 -o "$out/probed.tsv"
  for context in 1 4096; do
    limited 20 ./tiles plan llama-3.2-1b --target "$out/probed.tsv" "${waves[@]}" --context $context --explain
    echo
  done >"$out/plan.txt"
}

step_repeat() {
  {
    repeat_head "${waves[@]}"
    repeat idle "${waves[@]}"
  } >"$out/h200-repeat.tsv"
}
step_busy() { repeat_busy "${waves[@]}" >>"$out/h200-repeat.tsv"; }
step_parity() { parity waves "$shapes" "${waves[@]}" >"$out/h200-parity.tsv"; }
step_sanitize() { sanitize '--ffn split' '--sync barrier --workers 3' >"$out/h200-sanitize.tsv"; }

steps "$@"
