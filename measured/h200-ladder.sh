#!/bin/bash
# What measured/h200-ladder.tsv holds: the chapters' decoders beside each other, in one go, on a machine with the card; after `make tiles chapters`.
# usage: measured/h200-ladder.sh MODELS OUT
#
# MODELS is a folder for the checkpoint (2.5 GB, made if it is not there), OUT one for the table. Nothing else may use the card. With the checkpoint
# there it ends within 90 seconds, whatever a program does: each has a time limit, and so have all together. The status is 1 if a row is missing or a schedule gives other tokens.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -eq 2 ] || {
  sed -n '3s/# //p' "$0" >&2
  exit 2
}
models=$1 out=$2 model=$1/l1b B=${B:-build} sources=ladder
# shellcheck source=measured/lib.sh
. measured/lib.sh
[ -e "$model/model.safetensors" ] || timeout 120 ./tiles synth llama-3.2-1b "$model" --seed 7 || exit 1
deadline=$((SECONDS + 85))

#> ladder-row
# One program at one context: a row, or none and a note. ch11 comes first, the others' tokens are compared with its.
row() { # row CONTEXT CHAPTER [--graph]
  local context=$1 raw=$out/ladder-$2${3-}-$1.txt
  limited 20 "$B/$2" "$model" --ctx "$context" -n 64 --runs 7 --tsv "${@:3}" >"$raw" 2>"$raw.err" || {
    complain "$2 ${3-} at context $context: no result: $(tail -n 1 "$raw.err")"
    return
  }
  [ "$2" != ch11 ] || reference=$(sed -n '3p' "$raw")
  # The columns of the chapters' --tsv: chapter, context, tokens, runs, kernels, read_gbs, floor_ms, ms, least_ms, most_ms, share_percent, device_ms, busy_us,
  # idle_us, host_us, turn_us, ids_hash, logits_hash.
  sed -n '3p' "$raw" | awk -F '\t' -v OFS='\t' -v reference="$reference" '{
    n = split(reference, r, "\t")
    print $1, $2, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, (n && $17 == r[17] ? "yes" : "no"), (n && $18 == r[18] ? "yes" : "no") }'
}
#< ladder-row

#> ladder
{
  head_of 'build/chNN DIR --ctx CONTEXT -n 64 --runs 7 --tsv (medians of seven runs of 64 tokens; the K/V cache seeded)'
  printf '# weights\ttiles synth llama-3.2-1b DIR --seed 7\n'
  printf '# columns\t%s\n' 'a token: kernels; read_gbs just before and after; ms, least_ms and most_ms by the host from its first call to the last id; device_ms between two events round the launches; busy_us in kernels and idle_us between them, by the card (nine more tokens; of a single kernel device_ms); host_us of work before the host waits; turn_us between the end of the kernels and the begin of the next; tokens and logits as ch11 has them'
  printf 'chapter\tcontext\tkernels\tread_gbs\tfloor_ms\tms\tleast_ms\tmost_ms\tshare_percent\tdevice_ms\tbusy_us\tidle_us\thost_us\tturn_us\tsame_tokens\tsame_logits\n'
  for context in 1 4096; do
    reference=''
    row $context ch11
    for chapter in ch03 ch04 ch05 'ch05 --graph' ch06 ch13; do
      # shellcheck disable=SC2086 # a chapter and its option are words
      row $context $chapter
    done
  done
} >"$out/h200-ladder.tsv"
# The tape adds in another order; all the others must give the very tokens.
! grep -qE "^ch(0|11).*${T}no$T(yes|no)$" "$out/h200-ladder.tsv" || bad=1
grep -v '^#' "$out/h200-ladder.tsv" >&2
exit $bad
#< ladder
