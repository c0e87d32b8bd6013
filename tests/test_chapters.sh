#!/bin/bash
# Every chapter's decoder, with its kernels as fibers: the final program's tokens, and as many launches as the plan says.
# usage: [B=build/x] tests/test_chapters.sh   (builds the programs in B, without CUDA)
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build/chapters-on-cpu}
work=$(mktemp -d "${TMPDIR:-/tmp}/tiles chapters.XXXXXX")
trap 'rm -rf "$work"' EXIT

n=0 failed=0
result() { # result 0|1 NAME
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else
    echo "not ok $n - $2"
    tail -n 12 "$work/err" "$work/got" 2>/dev/null | cut -c 1-300 | sed 's/^/#   /'
    failed=$((failed + 1))
  fi
}

#> chapters-build
make --no-print-directory B="$B" CUDA=no chapters "$B/tiles" >"$work/err" 2>&1
result $? "every chapter builds without CUDA"
for shape in tiny-llama tiny-qwen2; do "$B/tiles" synth $shape "$work/$shape" --seed 1 2>"$work/err" || result 1 "$shape"; done
#< chapters-build

#> chapters-tokens
# field NAME: of the one row that --tsv prints after the ids and a head
field() { awk -F '\t' -v name="$1" 'NR == 2 { for (i = 1; i <= NF; i++) at[$i] = i } NR == 3 { print $at[name] }' "$work/got"; }
layers() { grep -o '"num_hidden_layers": *[0-9]*' "$work/$1/config.json" | grep -o '[0-9]*$'; }
ids=1,2,3,4,5 tokens=12
for shape in tiny-llama tiny-qwen2; do
  "$B/tiles" run "$work/$shape" --ids $ids -n $tokens --device cpu --workers 1 >"$work/want" 2>"$work/err"
  for chapter in 03 04 05 '05 --graph' 06 11 13 15; do
    for workers in 1 3 4; do
      option=()
      [ "${chapter#* }" = "$chapter" ] || option=("${chapter#* }")
      "$B/ch${chapter% *}" "$work/$shape" --ids $ids -n $tokens --workers $workers --tsv "${option[@]}" >"$work/got" 2>"$work/err"
      [ -s "$work/want" ] && [ "$(head -n 1 "$work/got")" = "$(cat "$work/want")" ]
      result $? "ch$chapter, $shape, $workers workers: the final program's tokens"
    done
    # Of the last, with four workers. A layer: norm, qkv, rope, attention, merge, wo, add, norm, gate, up, silu, down, add, and qwen2's bias of Q, K and V.
    case ${chapter% *} in
    03 | 04) want=$(($(layers $shape) * (13 + ($(echo $shape | grep -c qwen2)))  + 5)) ;;
    05) want=$(($(layers $shape) * 5 + 3 + 1)) ;;
    06) want=1 ;;
    11 | 13) want=$(awk -v n=$tokens 'BEGIN { printf "%.6g", 1 / n }') ;;
    15) want=0 ;;
    esac
    [ "$(field kernels)" = "$want" ]
    result $? "ch$chapter, $shape: $want launches a token"
  done
done
#< chapters-tokens

#> chapters-context
# The schedules do the same arithmetic in the same order, so the logits are the same to the bit. Far into the context attention has several chunks.
for context in 1 300; do
  "$B/ch11" "$work/tiny-llama" --ctx $context -n 6 --tsv >"$work/got" 2>"$work/err"
  want=$(field logits_hash)
  for chapter in 03 04 05 06; do
    "$B/ch$chapter" "$work/tiny-llama" --ctx $context -n 6 --runs 2 --tsv >"$work/got" 2>"$work/err"
    [ -n "$want" ] && [ "$(field logits_hash)" = "$want" ]
    result $? "ch$chapter at context $context: ch11's logits to the bit"
  done
done
#< chapters-context

#> chapters-others
"$B/ch01" llama-3.2-1b >"$work/got" 2>"$work/err" &&
  awk '/^floor at context 1:/ { exit !($5 > 0 && $8 > 0 && ($5 * $8 / 2471.66 - 1) ^ 2 < 1e-4) }' "$work/got"
result $? "ch01: the floor is bytes over rate"
"$B/ch02" "$work/tiny-llama" >"$work/got" 2>"$work/err" &&
  awk -F '\t' 'NF >= 4 && NR > 1 { sum += $3 } /bytes of weights a token/ { split($0, w, " "); exit !(w[2] == sum && sum > 0) }' "$work/got"
result $? "ch02: the stages' bytes are the token's"
"$B/ch03" >"$work/got" 2>"$work/err"
[ $? -eq 2 ] && grep -q '^ch03: usage' "$work/err"
result $? "no model: the usage, and status 2"
"$B/ch03" "$work/nowhere" >"$work/got" 2>"$work/err"
[ $? -eq 3 ] && [ "$(wc -l <"$work/err")" -eq 1 ]
result $? "no such model: one line, and status 3"
#< chapters-others

echo "1..$n"
echo "# $((n - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
