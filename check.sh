#!/bin/bash
# The floor check: is it right, and how near the floor is it? Run it after every change.
# usage: ./check.sh [--json] [--model MODEL] [STAGE|chNN] [-- PLAN OPTIONS]
#
# First the gate: tiny models of every family give the tokens of the CPU's reference plan, MODEL gives its logits, and the same work gives
# the same bits run after run. Nothing is timed unless it holds. Then the floor: ms/token at contexts 1 and 4,096 and its share, and on a
# GPU a table stage by stage, of STAGE alone if one is named (qkv, attend, wo, gate_up, ...). The result is kept for this device, model and
# these plan options (--ffn split, --workers 64, ...); the next run says what moved, and by how much beyond its own spread.
# With chNN (ch05) it is that chapter's decoder that is built and judged, and its own line is printed.
set -u
cd "$(dirname "$0")" || exit 1

json=0 model='' stage=''
while [ $# -gt 0 ]; do
  case $1 in
  --json) json=1 ;;
  --model) model=${2-} && shift ;;
  --) break ;;
  -*)
    sed -n '3s/# //p' "$0" >&2
    exit 2
    ;;
  *) stage=$1 ;;
  esac
  shift
done
[ $# -eq 0 ] || shift # what is left are the plan's options

work=build/check log=build/check/log
mkdir -p "$work"
make --no-print-directory tiles >"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  exit 1
}
say() { [ "$json" -eq 1 ] || printf '%s\n' "$*"; }
json_rows() { # json_rows FILE: a table with a head as an array of objects
  awk -F '\t' 'NR == 1 { n = split($0, key); printf "["; next }
    { printf "%s", (NR > 2 ? ",{" : "{")
      for (i = 1; i <= n; i++)
        printf "%s\"%s\":%s", (i > 1 ? "," : ""), key[i], ($i == "" ? "null" : $i ~ /^(-?[0-9]+(\.[0-9]+)?|true|false)$/ ? $i : "\"" $i "\"")
      printf "}" }
    END { printf "]" }' "$1"
}

#> check-device
# A GPU where there is one, and its own name for the kept result.
device=cpu name=cpu
if ./tiles probe --device cuda:0 >"$work/target.tsv" 2>>"$log"; then
  device=cuda:0
  name=$(sed -n 's/^name\t//p' "$work/target.tsv")
else
  ./tiles probe >"$work/target.tsv" || exit 1
fi
target() { sed -n "s/^$1\t//p" "$work/target.tsv"; }
say "device: $name, $(target workers) workers, streaming read $(target read_gbs) GB/s"
if [ "$device" = cpu ] && ! [[ $stage =~ ^ch[0-9][0-9]$ ]]; then
  say "no card: the CPU's workers are checked; ${stage:+the stage $stage and }the kernels are not (./check.sh chNN runs them as fibers)"
fi
if [ -z "$model" ]; then
  shape=smollm2-135m
  [ "$device" = cpu ] || shape=llama-3.2-1b
  model=$work/$shape
  [ -e "$model/model.safetensors" ] || ./tiles synth "$shape" "$model" --seed 7 || exit 1
fi
model_name=$(basename "$model")
#< check-device

#> check-chapter
# The final program's tokens first, then the chapter's line. Without a card the kernels of a chapter are fibers: then the line is about a tiny model, and only the
# chapters of threads run the large one.
check_chapter() { # check_chapter chNN
  local folder=build cuda=() program sync=barrier shape tiny workers wrong=0 context
  [ "$device" != cpu ] || folder=build/chapters-on-cpu cuda=(CUDA=no) # also where there is nvcc and no card
  program=$folder/$1
  make --no-print-directory B="$folder" "${cuda[@]}" "$1" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    return 1
  }
  [ "$1" != ch13 ] || sync=data
  case $1 in ch01 | ch02)
    "$program" "$model"
    return
    ;;
  esac
  for shape in tiny-llama tiny-qwen2 tiny-qwen3; do
    tiny=$work/$shape
    [ -e "$tiny/model.safetensors" ] || ./tiles synth "$shape" "$tiny" --seed 1 || return 1
    ./tiles run "$tiny" --ids 1,2,3,4,5 -n 48 --device cpu --workers 1 >"$work/want" 2>>"$log"
    for workers in 2 3 4; do
      "$program" "$tiny" --ids 1,2,3,4,5 -n 48 --workers $workers 2>>"$log" | head -n 1 >"$work/got"
      if [ -s "$work/want" ] && diff "$work/want" "$work/got" >>"$log"; then say "right: $shape, $workers workers: the final program's tokens"; else
        say "WRONG: $shape, $workers workers: not the final program's tokens"
        tail -n 1 "$log" | cut -c 1-120 >&2
        wrong=1
      fi
    done
  done
  [ "$device" != cpu ] || [ "$1" = ch15 ] || model=$work/tiny-llama
  if [ "$device" != cpu ] && [ "$1" != ch15 ]; then # the same plan, so the same tokens, near-ties or not
    ./tiles run "$model" --ids 1 -n 64 --device "$device" --ffn split --sync $sync >"$work/want" 2>>"$log"
    "$program" "$model" -n 64 2>>"$log" | head -n 1 >"$work/got"
    [ -s "$work/want" ] && diff "$work/want" "$work/got" >>"$log" || wrong=1
    say "$([ $wrong -eq 0 ] && echo right || echo WRONG): $(basename "$model"): the final program's tokens"
  fi
  [ $wrong -eq 0 ] || {
    say "the gate is shut: nothing timed"
    return 1
  }
  for context in 1 4096; do
    [ $context -eq 1 ] || [ "$model" != "$work/tiny-llama" ] || continue
    "$program" "$model" --ctx $context --runs 5 >"$work/got" || return 1
    sed "1d; s/^/context $context, /" "$work/got"
  done
}
if [[ $stage =~ ^ch[0-9][0-9]$ ]]; then
  check_chapter "$stage"
  exit
fi
#< check-chapter

#> check-gate
failed=0
printf 'gate\tright\n' >"$work/gate.tsv"
gate() { # gate STATUS NAME
  if [ "$1" -eq 0 ]; then say "right: $2"; else
    say "WRONG: $2"
    tail -n 1 "$log" | cut -c 1-120 >&2
    failed=$((failed + 1))
  fi
  printf '%s\t%s\n' "$2" "$([ "$1" -eq 0 ] && echo true || echo false)" >>"$work/gate.tsv"
}
reference() { ./tiles "$@" --device cpu --workers 1 2>>"$log"; }
here() { ./tiles "$@" --device "$device" 2>>"$log"; }
for shape in tiny-llama tiny-qwen2 tiny-qwen3; do
  tiny=$work/$shape
  [ -e "$tiny/model.safetensors" ] || ./tiles synth "$shape" "$tiny" --seed 1 || exit 1
  reference run "$tiny" --ids 1,2,3,4,5 -n 48 >"$work/want"
  for workers in $(printf '%s\n' 2 3 "$(target workers)" | sort -nu); do
    here run "$tiny" --ids 1,2,3,4,5 -n 48 "$@" --workers "$workers" >"$work/got"
    diff "$work/want" "$work/got" >>"$log" && [ -s "$work/want" ]
    gate $? "$shape, $workers workers: the reference plan's tokens"
  done
  here logits "$tiny" --ids 1,2,3,4,5,6,7 --runs 20 "$@" >>"$log"
  gate $? "$shape: 20 runs, the same bits"
done
# A large vocabulary of random weights has near-ties, so here the logits are compared and not the tokens: ||x - reference|| / ||reference||.
# K/V entries on the edge between two two-byte values fall either way: with BF16, a last-bit change of the embeddings moves the logits of
# llama-3.2-1b by 0.18%. What is wrong moves them by far more.
ids=1,20,300,4000,5,60,700,8000
reference logits "$model" --ids $ids -o "$work/want"
here logits "$model" --ids $ids -o "$work/got" "$@"
error=$(paste <(od -An -v -w4 -t f4 "$work/want") <(od -An -v -w4 -t f4 "$work/got") |
  awk '{ d += ($1 - $2) ^ 2; r += $1 ^ 2 } END { if (r > 0 && NF == 2) printf "%.1e", sqrt(d / r) }')
echo "error ${error:-unknown}" >>"$log"
awk -v e="${error:-1}" 'BEGIN { exit !(e <= 4e-3) }'
gate $? "$model_name: logits within 0.4% of the reference plan's (${error:-unknown})"
here logits "$model" --ids $ids --runs 3 "$@" >>"$log"
gate $? "$model_name: 3 runs, the same bits"
source=$(cat ./*.c ./*.h ./*.cu ./*.cuh | sha256sum | cut -c 1-16)
begin_json() { printf '{"device":"%s","model":"%s","source":"%s","right":%s,"gate":%s' "$name" "$model_name" "$source" "$1" "$(json_rows "$work/gate.tsv")"; }
if [ "$failed" -gt 0 ]; then
  say "the gate is shut: $failed wrong, nothing timed"
  [ "$json" -eq 0 ] || { begin_json false && echo '}'; }
  exit 1
fi
say "the gate is open: source $source"
#< check-gate

#> check-floor
options=$(printf '%s' "$@" | tr -c '[:alnum:]' -)
new=$work/floor.tsv kept=$work/kept-$name-$model_name$options.tsv
./tiles bench "$model" --device "$device" --ctx 1,4096 --runs 5 --tsv "$@" >"$new" || exit 1
[ "$json" -eq 1 ] ||
  awk -F '\t' 'NR > 1 { printf "context %s (%s): %s ms/token, %s to %s; floor %s ms at %s GB/s: %s%%\n", $1, $3, $8, $9, $10, $7, $6, $11 }' "$new"
#< check-floor

#> check-stages
# A stage's share is that of its bytes at the streaming rate in its time; the barrier after it is a column of its own.
stages=$work/stages.tsv
printf 'context\tpart\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\tshare_percent\n' >"$stages"
if [ "$device" != cpu ]; then
  for context in 1 4096; do
    ./tiles trace "$model" --device "$device" --ctx "$context" "$@" >"$work/trace" || exit 1
    awk -F '\t' -v OFS='\t' -v context="$context" -v only="$stage" 'NR > 1 && (only == "" || $1 == only) {
      print context, $1, $2, $3, $4, $5, $6, $7, ($5 == "" ? "" : sprintf("%.1f", 100 * $5 / $4)) }' "$work/trace" >>"$stages"
  done
  [ "$(wc -l <"$stages")" -gt 1 ] || say "no stage is called $stage: $(awk -F '\t' 'NR > 1 && $2 { printf "%s ", $1 }' "$work/trace")"
  [ "$json" -eq 1 ] ||
    awk -F '\t' '{ printf "%-8s %-16s %6s %12s %9s %9s %6s %10s %14s\n", $1, $2, $3, $4, $5, $6, $7, $8, $9 }' "$stages"
fi
#< check-stages

#> check-moved
moved=$work/moved.tsv
printf 'context\tstate\tmoved_ms\tmoved_percent\tspread_ms\n' >"$moved"
if [ -e "$kept" ]; then
  awk -F '\t' 'FNR == 1 { file++ } /^#/ || $1 == "context" { next }
    file == 1 { ms[$1 $3] = $8; low[$1 $3] = $9; high[$1 $3] = $10; next }
    ($1 $3) in ms { was = ms[$1 $3]
      printf "%s\t%s\t%.4f\t%.1f\t%.4f\n", $1, $3, $8 - was, 100 * ($8 - was) / was, (high[$1 $3] - low[$1 $3] + $10 - $9) / 2 }' "$kept" "$new" >>"$moved"
  say "since $(sed -n 's/^# //p' "$kept"):"
  [ "$json" -eq 1 ] || awk -F '\t' 'NR > 1 { size = $3 < 0 ? -$3 : $3
    if (size <= $5) printf "context %s (%s): within the spread of %.4f ms\n", $1, $2, $5
    else printf "context %s (%s): %s by %.4f ms, %.1f%%, %.4f ms beyond the spread\n", $1, $2, ($3 < 0 ? "faster" : "slower"), size, $4, size - $5 }' "$moved"
fi
{
  echo "# source $source, $(date +%F)"
  cat "$new"
} >"$kept"
[ "$json" -eq 0 ] ||
  { begin_json true && printf ',"floor":%s,"stages":%s,"moved":%s}\n' "$(json_rows "$new")" "$(json_rows "$stages")" "$(json_rows "$moved")"; }
#< check-moved
