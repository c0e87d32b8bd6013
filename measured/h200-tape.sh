#!/bin/bash
# What measured/h200-tape*.tsv hold, and what stands beside the waves: made in one go on a machine with the card, after `make tiles`, from the same checkout.
# usage: [ABLATIONS=FOLDER] [LIMIT=SECONDS] measured/h200-tape.sh MODELS OUT STEP...
#
# MODELS is a folder for checkpoints (8 GB), OUT one for the tables. Steps: models, bench, ablations, account, beside, timeline, repeat, busy, parity, sanitize, and
# checks, which is the last two at once. Nothing else may use the card during those before busy. ABLATIONS holds programs built with a part of the tape
# taken away, as no-such-part/tiles. After `models`, which comes first and may take minutes, all steps together end within LIMIT seconds (235), whatever a
# program does; the status is 1 if a row is missing then, or a check has failed.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 3 ] || {
  sed -n '3s/# //p' "$0" >&2
  exit 2
}
models=$1 out=$2
shift 2
deadline=$([ "$1" = models ] && echo 600 || echo "${LIMIT:-235}")
# shellcheck source=measured/lib.sh
. measured/lib.sh

have() { # have TABLE ROWS: so many at least
  local rows
  rows=$(grep -vc '^#' "$out/$1.tsv")
  [ $((rows - 1)) -ge "$2" ] || complain "$1.tsv has $((rows - 1)) rows of $2"
}

#> tape-bench
variant() { # variant NAME RUN PROGRAM SHAPE CONTEXTS OPTIONS...
  bench "$3" "$4" "$5" 64 "${@:6}" |
    awk -F '\t' -v OFS='\t' -v variant="$1" -v model="$4" -v run="$2" '{ print variant, model, $1, run, $6, $7, $8, $9, $10, $11 }'
}
both() { # both RUN SHAPE CONTEXTS
  variant waves "$1" ./tiles "$2" "$3" "${waves[@]}"
  variant tape "$1" ./tiles "$2" "$3" "${tape[@]}"
}
same_tokens() { # of how many greedy tokens the first so many are equal
  limited 30 ./tiles run "$(folder llama-3.2-1b)" --device cuda:0 "${waves[@]}" --ids 1,2,3,4,5 -n 64 2>/dev/null | tr ' ' '\n' >"$out/tokens-waves.txt"
  limited 30 ./tiles run "$(folder llama-3.2-1b)" --device cuda:0 "${tape[@]}" --ids 1,2,3,4,5 -n 64 2>/dev/null | tr ' ' '\n' >"$out/tokens-tape.txt"
  paste "$out/tokens-waves.txt" "$out/tokens-tape.txt" | awk -F '\t' '$1 != $2 || $1 == "" { apart = 1 } { equal += !apart } END { printf "%d of %d", equal, NR }'
}
# The table from what the steps have left, so that ablations may be measured later.
bench_table() {
  {
    head_of 'tiles bench DIR --device cuda:0 OPTIONS --ctx LIST --runs 5 -n 64 --tsv (64 tokens a run; the K/V cache seeded); another run is another process'
    weights
    printf '# variants\twaves: %s; tape: %s; 99 KB: --smem 101376, what a block of many smaller cards may have; auto: without --ffn and --sync\n' "${waves[*]}" "${tape[*]}"
    [ ! -s "$out/same-tokens.txt" ] || printf '# same tokens\tllama-3.2-1b: the first %s greedy tokens from ids 1 to 5 are the same in waves and on the tape\n' "$(cat "$out/same-tokens.txt")"
    printf 'variant\tmodel\tcontext\trun\tread_gbs\tfloor_ms\tms\tleast_ms\tmost_ms\tshare_percent\n'
    cat "$out/rows-bench.tsv" "$out/rows-ablations.tsv" 2>/dev/null
  } >"$out/h200-tape.tsv"
}
step_bench() {
  local run little=(--smem 101376)
  {
    both 1 llama-3.2-1b 1,512,4096,16384,32768
    for run in 2 3; do both $run llama-3.2-1b 1,4096,32768; done
    both 1 qwen2.5-1.5b:f16 1,512,4096
    both 1 smollm2-135m 1,512,4096
    variant 'waves, 99 KB' 1 ./tiles llama-3.2-1b 1,4096 "${waves[@]}" "${little[@]}"
    variant 'auto, 99 KB' 1 ./tiles llama-3.2-1b 1,4096 "${little[@]}"
    variant 'tape, 99 KB' 1 ./tiles llama-3.2-1b 1,4096 "${tape[@]}" "${little[@]}"
  } >"$out/rows-bench.tsv"
  same_tokens >"$out/same-tokens.txt"
  bench_table
  have h200-tape 40
}
step_ablations() {
  local program name count=0
  for program in "${ABLATIONS:?a folder of NAME/tiles}"/*/tiles; do
    name=$(basename "$(dirname "$program")")
    variant "tape, ${name//-/ }" 1 "$program" llama-3.2-1b 1,4096 "${tape[@]}"
  done >"$out/rows-ablations.tsv"
  for program in "$ABLATIONS"/*/tiles; do count=$((count + 1)); done
  [ "$(wc -l <"$out/rows-ablations.tsv")" -eq $((2 * count)) ] || complain "ablations: not all rows"
  bench_table
}
#< tape-bench

#> tape-account
step_account() {
  {
    head_of "tiles trace DIR --device cuda:0 ${waves[*]} --ctx CONTEXT" waves
    weights
    account waves
  } >"$out/h200-account.tsv"
  {
    head_of "tiles trace DIR --device cuda:0 ${tape[*]} --ctx CONTEXT"
    weights
    printf '# columns\t%s\n' 'us: from a wave'\''s first worker that has its vector (merge: that comes to it), but not before all waves before have ended, to the end of its last worker; barrier_us: from there to the next wave'\''s first worker, the hand-off'
    account tape
  } >"$out/h200-tape-account.tsv"
  have h200-account 28
  have h200-tape-account 26
}

# The stages of ./check.sh, waves and tape in one row: time without the barrier or the hand-off, and the share of their bytes at the streaming rate in it.
beside_rows() { # beside_rows CONTEXT
  awk -F '\t' -v OFS='\t' -v context="$1" '
    FNR == 1 { next }
    { kind = FILENAME ~ /trace-tape/ ? "tape" : "waves"
      part = $1 == "barriers" || $1 == "hand-offs" ? "barriers or hand-offs" : $1
      if (!(part in seen)) { if ($2 == "") sum[sums++] = part; else stage[stages++] = part }
      seen[part]
      us[kind, part] = $4
      if (part == "ideal streaming") ideal = $4
      best = part == "token" ? ideal : $5
      if (best != "" && $4 > 0) share[kind, part] = sprintf("%.1f", 100 * best / $4) }
    function row(part) { print context, part, us["waves", part], us["tape", part], share["waves", part], share["tape", part] }
    END { for (i = 0; i < stages; i++) row(stage[i])
      for (i = 0; i < sums; i++) row(sum[i]) }' "$out/trace-waves-$1.tsv" "$out/trace-tape-$1.tsv"
}
step_beside() {
  local context
  {
    head_of "tiles trace DIR --device cuda:0 OPTIONS --ctx CONTEXT; waves: ${waves[*]}, tape: ${tape[*]}"
    weights
    printf '# columns\t%s\n' 'us as in h200-account and h200-tape-account, share: of the bytes at the streaming rate in it; of the token: of ideal streaming'
    printf 'context\tpart\twaves_us\ttape_us\twaves_share\ttape_share\n'
    for context in 1 4096; do
      if trace waves $context && trace tape $context; then beside_rows $context; fi
    done
  } >"$out/h200-beside.tsv"
  have h200-beside 30
}

step_timeline() {
  local context head=1
  {
    head_of "tiles trace DIR --device cuda:0 ${waves[*]} --ctx CONTEXT -o FILE, through figures/timeline.awk: every twelfth worker" waves
    weights
    for context in 1 4096; do
      ! trace waves $context || awk -v context=$context -v every=12 -v head=$head -f figures/timeline.awk "$out/trace-waves-$context.json"
      head=0
    done
  } >"$out/h200-timeline.tsv"
  have h200-timeline 1000
}
#< tape-account

step_repeat() {
  {
    repeat_head "${tape[@]}"
    repeat idle "${tape[@]}"
  } >"$out/h200-tape-repeat.tsv"
  have h200-tape-repeat 1
}
step_busy() {
  repeat_busy "${tape[@]}" >>"$out/h200-tape-repeat.tsv"
  have h200-tape-repeat 2
}
step_parity() {
  parity tape 'llama-3.2-1b smollm2' "${tape[@]}" >"$out/h200-tape-parity.tsv"
  have h200-tape-parity 8
}
step_sanitize() {
  sanitize "${tape[*]} --workers 8" >"$out/h200-tape-sanitize.tsv"
  have h200-tape-sanitize 8
  # Findings are for the table's readers; a tool without a summary and wrong tokens are no result.
  ! awk -F '\t' '/--sync/ && !/^#/ && ($4 == "" || $5 != "yes")' "$out/h200-tape-sanitize.tsv" | grep . >&2 || complain "sanitize: no summary, or other tokens"
}
step_checks() {
  local other
  (
    step_sanitize
    exit $bad
  ) &
  other=$!
  step_parity
  wait $other || bad=1
}

if [ "$1" = models ]; then
  steps models
  shift
  deadline=$((SECONDS + ${LIMIT:-235}))
fi
[ $# -eq 0 ] || steps "$@"
