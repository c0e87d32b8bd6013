#!/bin/bash
# The floor check: is it right, and how near the floor is it? Run it after every change.
# usage: ./check.sh [--json] [--model MODEL] [STAGE]
#
# First the gate: tiny models of every family give the tokens of the CPU's reference plan, and the same logits run after run. Nothing is
# timed unless it holds. Then the floor: ms/token at contexts 1 and 4,096 and its share, and on a GPU a table stage by stage, of STAGE
# alone if one is named (qkv, attend, wo, gate_up, ...). The result is kept for this device; the next run says what moved, and
# by how much beyond its own spread.
set -u
cd "$(dirname "$0")" || exit 1

json=0 model='' stage=''
while [ $# -gt 0 ]; do
  case $1 in
  --json) json=1 ;;
  --model) model=${2-} && shift ;;
  -*)
    sed -n '3s/# //p' "$0" >&2
    exit 2
    ;;
  *) stage=$1 ;;
  esac
  shift
done

make --no-print-directory tiles >build/check.log 2>&1 || {
  tail -n 20 build/check.log >&2
  exit 1
}
work=build/check
mkdir -p "$work"
say() { [ "$json" -eq 1 ] || printf '%s\n' "$*"; }

#> check-device
# A GPU where there is one, and its own name for the kept result.
device=cpu name=cpu
if ./tiles probe --device cuda:0 >"$work/target.tsv" 2>"$work/why"; then
  device=cuda:0
  name=$(sed -n 's/^name\t//p' "$work/target.tsv")
else
  ./tiles probe >"$work/target.tsv" || exit 1
fi
say "device: $name, $(sed -n 's/^workers\t//p' "$work/target.tsv") workers, streaming read $(sed -n 's/^read_gbs\t//p' "$work/target.tsv") GB/s"
#< check-device

#> check-gate
failed=0
gate() { # gate NAME: reads two files of ids
  if [ -s "$work/want" ] && cmp -s "$work/want" "$work/got"; then say "right: $1"; else
    say "WRONG: $1: $(head -c 60 "$work/got") instead of $(head -c 60 "$work/want")"
    failed=$((failed + 1))
  fi
}
for shape in tiny-llama tiny-qwen2 tiny-qwen3; do
  [ -e "$work/$shape/model.safetensors" ] || ./tiles synth "$shape" "$work/$shape" --seed 1 || exit 1
  ids() { ./tiles run "$work/$shape" --ids 1,2,3,4,5 -n 48 "$@" 2>>build/check.log; }
  ids --device cpu --workers 1 >"$work/want"
  for workers in 2 3 ''; do
    ids --device "$device" ${workers:+--workers "$workers"} >"$work/got"
    gate "$shape on $device, ${workers:-all} workers"
  done
  for file in want got got; do
    ./tiles logits "$work/$shape" --ids 1,2,3,4,5,6,7 --all --device "$device" 2>>build/check.log | sha256sum >"$work/$file"
  done
  gate "$shape: the same bits again"
done
if [ "$failed" -gt 0 ]; then
  say "the gate is shut: $failed wrong, nothing timed"
  exit 1
fi
#< check-gate

#> check-floor
if [ -z "$model" ]; then
  shape=smollm2-135m
  [ "$device" = cpu ] || shape=llama-3.2-1b
  model=$work/$shape
  [ -e "$model/model.safetensors" ] || ./tiles synth "$shape" "$model" --seed 7 || exit 1
fi
source=$(cat ./*.c ./*.h ./*.cu ./*.cuh | sha256sum | cut -c 1-16)
new=$work/$name.new kept=$work/$name.tsv
./tiles bench "$model" --device "$device" --ctx 1,4096 --runs 5 --tsv >"$new" || exit 1
if [ "$json" -eq 1 ]; then
  awk -F '\t' -v device="$name" -v source="$source" 'BEGIN { printf "{\"device\":\"%s\",\"source\":\"%s\",\"right\":true,\"floor\":[", device, source }
    NR > 1 { printf "%s{\"context\":%s,\"state\":\"%s\",\"read_gbs\":%s,\"floor_ms\":%s,\"ms\":%s,\"share_percent\":%s}", (NR > 2 ? "," : ""), $1, $3, $6, $7, $8, $11 }
    END { print "]}" }' "$new"
else
  awk -F '\t' 'NR > 1 { printf "context %s (%s): %s ms/token, %s to %s; floor %s ms at %s GB/s: %s%%\n", $1, $3, $8, $9, $10, $7, $6, $11 }' "$new"
fi
#< check-floor

#> check-stages
if [ "$device" != cpu ] && [ "$json" -eq 0 ]; then
  for context in 1 4096; do
    say "stages at context $context:"
    ./tiles trace "$model" --device "$device" --ctx "$context" |
      awk -F '\t' -v only="$stage" 'NR == 1 || only == "" || $1 == only { printf "%-18s %6s %12s %9s %9s %6s %10s\n", $1, $2, $3, $4, $5, $6, $7 }'
  done
fi
#< check-stages

#> check-moved
if [ -e "$kept" ] && [ "$json" -eq 0 ]; then
  say "since $(sed -n 's/^# //p' "$kept"):"
  awk -F '\t' 'FNR == 1 { file++ } /^#/ || $1 == "context" { next }
    file == 1 { ms[$1 $3] = $8; low[$1 $3] = $9; high[$1 $3] = $10; next }
    ($1 $3) in ms {
      was = ms[$1 $3]; moved = $8 - was; spread = (high[$1 $3] - low[$1 $3] + $10 - $9) / 2
      word = moved < 0 ? "faster" : "slower"; size = moved < 0 ? -moved : moved
      if (size <= spread) printf "context %s (%s): within the spread of %.4f ms\n", $1, $3, spread
      else printf "context %s (%s): %s by %.4f ms, %.1f%%, %.4f ms beyond the spread\n", $1, $3, word, size, 100 * size / was, size - spread
    }' "$kept" "$new"
fi
{
  echo "# source $source, $(date +%F)"
  cat "$new"
} >"$kept"
#< check-moved
