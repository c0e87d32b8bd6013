#!/bin/bash
# The scripts that make measured/h200*.tsv, without a card: every program that they call is a stand-in, and the tables must come out with the keys
# that the book reads. The numbers are worth nothing.
# usage: [B=build/asan] tests/test_measured.sh   (B/tiles must have been built)
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
top=$PWD
export REAL=$top/$B/tiles
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
T=$'\t'
# shellcheck source=tests/tap.sh
. tests/tap.sh

#> measured-stand-ins
# A tree in which everything is the real one but `tiles`, and a PATH whose first programs pretend that there is a card.
mkdir "$tmp/tree" "$tmp/bin" "$tmp/models"
for file in *; do [ "$file" = tiles ] || [ "$file" = build ] || ln -s "$top/$file" "$tmp/tree/$file"; done
cat >"$tmp/tree/tiles" <<'SH'
#!/bin/bash
# What the real one would not even read is a mistake of the script.
case $1 in synth) ;; *)
  "$REAL" "$@" 2>&1 >/dev/null </dev/null | grep -E 'unknown option|is outside|neither|is not a|needs a value|One argument' >&2 && exit 2
  ;;
esac
[ -z "${FAIL_AT-}" ] || [[ "$*" != *$FAIL_AT* ]] || exit 1
[ -z "${SLEEP_AT-}" ] || [[ "$*" != *$SLEEP_AT* ]] || exec sleep 30
value() { # value OPTION WORDS...
  local option=$1
  shift
  while [ $# -gt 0 ]; do [ "$1" != "$option" ] || { echo "$2" && return; }; shift; done
}
kind=waves
[[ "$*" != *'--sync data'* ]] || kind=tape
case $1 in
bench)
  [[ "$*" != *'--runs 200'* ]] || exec sleep 20
  printf 'context\tthreads\tstate\tslices\tdropped\tread_gbs\tfloor_ms\tms\tleast_ms\tmost_ms\tshare_percent\n'
  for context in $(value --ctx "$@" | tr , ' '); do printf '%d\t132\tonly\t5\t0\t4550.00\t0.5400\t0.8000\t0.7990\t0.8010\t67.5\n' "$context"; done
  ;;
trace)
  table=h200-account
  [ $kind = waves ] || table=h200-tape-account
  printf 'part\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\n'
  sed -n "s/^$(value --ctx "$@")\t//p" measured/$table.tsv | if [ $kind = tape ]; then sed 's/^barriers/hand-offs/'; else cat; fi
  awk 'BEGIN { print "{\"traceEvents\":["; for (w = 0; w < 132; w++) for (i = 0; i < 83; i++) printf "%s{\"name\":\"qkv\",\"ph\":\"X\",\"tid\":%d,\"ts\":%d.5,\"dur\":8,\"args\":{\"wave\":%d,\"layer\":%d}}", (w + i ? ",\n" : ""), w, 10 * i, i, i / 5; print "\n]}" }' >"$(value -o "$@")"
  ;;
logits) [ -z "$(value --runs "$@")" ] || echo "50 runs of 64 tokens: one hash, 0123456789abcdef" ;;
run) echo 6 7 8 9 10 ;;
probe) printf 'workers\tread_gbs\n1\t230\n' >"$(value -o "$@" | grep . || echo /dev/stdout)" ;;
plan) echo "a plan" ;;
synth) mkdir -p "$3" && echo weights >"$3/model.safetensors" ;;
esac
SH
cat >"$tmp/bin/nvidia-smi" <<'SH'
#!/bin/sh
echo 'NVIDIA H200, 580.00'
SH
cat >"$tmp/bin/nvcc" <<'SH'
#!/bin/sh
echo 'Cuda compilation tools, release 13.0, V13.0.1'
SH
cat >"$tmp/bin/compute-sanitizer" <<'SH'
#!/bin/bash
tool=$2 log=$4
shift 4
if [ "$tool" = racecheck ]; then echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'; else echo '========= ERROR SUMMARY: 0 errors'; fi >"$log"
exec "$@"
SH
cat >"$tmp/bin/python3" <<'SH'
#!/bin/bash
case $1 in
-c) echo 'torch 2.0, transformers 5.0' ;;
tests/gpu_parity.py)
  "$2" run "$3" --device cuda:0 --ids 1 -n 64 >/dev/null || exit 1
  printf '# dtype\ttorch.bfloat16\ncontext\ttiles_error\ttransformers_error\ttiles_no_larger\n'
  for context in "${@:4}"; do printf '%d\t1.000e-02\t2.000e-02\tyes\n' "$context"; done
  printf '# greedy\t64 of 64 equal\n'
  ;;
measured/torch_base.py) echo 'llama-3.2-1b S=512 plain-torch graph 1.5 ms' ;;
esac
SH
chmod +x "$tmp/tree/tiles" "$tmp/bin/"*
mkdir -p "$tmp/ablations/no-such-part"
cp "$tmp/tree/tiles" "$tmp/ablations/no-such-part/tiles"
script() { # script NAME OUT STEP...
  local name=$1 out=$2
  shift 2
  (cd "$tmp/tree" && PATH=$tmp/bin:$PATH ABLATIONS=$tmp/ablations bash "measured/$name" "$tmp/models" "$out" "$@")
}
#< measured-stand-ins

#> measured-tables
check "shellcheck" shellcheck -x measured/*.sh
check "every step of the waves' script" script h200.sh "$tmp/out" models torch bench account sweep plan repeat busy parity sanitize
check "every step of the tape's script" script h200-tape.sh "$tmp/out" models bench ablations account beside timeline repeat busy parity sanitize

like_the_books() { # like_the_books TABLE KEYS: the same columns, and every key of the book's table (first KEYS columns), once
  local made=$tmp/out/$1.tsv kept=$top/measured/$1.tsv
  [ "$(grep -v '^#' "$made" | head -n 1)" = "$(grep -v '^#' "$kept" | head -n 1)" ] || { echo "other columns" && return 1; }
  grep -v '^#' "$made" | cut -f "1-$2" | sort | uniq -d | grep . && echo "twice" && return 1
  grep -v '^#' "$kept" | cut -f "1-$2" |
    case $1 in
    h200-tape) grep -v '^tape, ' ;; # ablations of another day
    *) cat ;;
    esac | sort >"$tmp/wanted"
  grep -v '^#' "$made" | cut -f "1-$2" | sort | comm -13 - "$tmp/wanted" | grep . && echo "missing" && return 1
  local kind=waves
  case $1 in *tape*) kind=gpu ;; esac
  grep -q "^# source$T$(sh chapters/source.sh $kind)$" "$made" || { echo "no source" && return 1; }
  [ "$(grep -cE "^# (device|date|command|weights)$T." "$made")" -eq 4 ]
}
for table in 'h200-bench 3' 'h200-account 2' 'h200-repeat 2' 'h200-parity 2' 'h200-sanitize 3' 'h200-tape 4' 'h200-tape-account 2'; do
  # shellcheck disable=SC2086 # a table and its number of keys
  check "${table% *}: the book's columns and keys" like_the_books $table
done
rows() { grep -vc '^#' "$tmp/out/$1.tsv"; }
has() { grep -qx "$(printf '%b' "$2")" "$tmp/out/$1.tsv" || { cat "$tmp/out/$1.tsv" && return 1; }; }
check "the variants for little shared memory" has h200-tape 'tape, 99 KB\tllama-3.2-1b\t4096\t1\t4550.00\t0.5400\t0.8000\t0.7990\t0.8010\t67.5'
check "an ablation, named by its folder" has h200-tape 'tape, no such part\tllama-3.2-1b\t1\t1\t4550.00\t0.5400\t0.8000\t0.7990\t0.8010\t67.5'
[ "$(rows h200-tape)" -eq 43 ]
result $? "40 rows, 2 of the ablation, and the head"
check "the tokens are compared" grep -q "^# same tokens${T}.*first 5 of 5" "$tmp/out/h200-tape.tsv"
beside() { # a stage that both have, one that only the tape has, and the token
  local w t
  w=$(awk -F '\t' '$1 == 1 && $2 == "qkv" { printf "%s %.1f", $5, 100 * $6 / $5 }' measured/h200-account.tsv)
  t=$(awk -F '\t' '$1 == 1 && $2 == "qkv" { printf "%s %.1f", $5, 100 * $6 / $5 }' measured/h200-tape-account.tsv)
  has h200-beside "1\tqkv\t${w% *}\t${t% *}\t${w#* }\t${t#* }" &&
    awk -F '\t' '$2 == "merge" && $3 == "" && $4 != "" && $5 == "" { n++ } $2 == "token" && $3 > 0 && $4 > 0 && $5 > 30 && $6 > 30 { n++ } $2 == "barriers or hand-offs" && $3 != "" && $4 != "" { n++ } END { exit n != 6 }' "$tmp/out/h200-beside.tsv"
}
check "waves and tape beside each other" beside
[ "$(rows h200-beside)" -eq 31 ]
result $? "15 parts at two contexts"
check "the timeline" has h200-timeline '4096\t12\t82\tqkv\t16\t820.000\t828.000'
[ "$(rows h200-timeline)" -eq $((2 * 11 * 83 + 1)) ] && [ "$(grep -c '^context' "$tmp/out/h200-timeline.tsv")" -eq 1 ]
result $? "of every twelfth worker, with one head"
# shellcheck disable=SC2016 # awk's own
check "200 runs on an idle card and on a busy one" awk -F '\t' '($1 == "idle" || $1 == "busy") && $2 == 200 && $3 == 1 { n++ } END { exit n != 2 }' "$tmp/out/h200-tape-repeat.tsv"
# shellcheck disable=SC2016
check "four contexts of parity" awk -F '\t' '$1 == "llama-3.2-1b" && $3 == "1.000e-02" { n++ } END { exit n != 4 }' "$tmp/out/h200-tape-parity.tsv"
# shellcheck disable=SC2016
check "four tools on two models" awk -F '\t' '/--sync data --workers 8/ && /0 (errors|hazards)/ && $5 == "yes" { n++ } END { exit n != 8 }' "$tmp/out/h200-tape-sanitize.tsv"
#< measured-tables

#> measured-faults
fails_with() { # fails_with PATTERN COMMAND...
  local said rc=0 pattern=$1
  shift
  said=$("$@" 2>&1) || rc=$?
  if [ $rc -ne 0 ] && grep -qE "$pattern" <<<"$said"; then return 0; fi
  printf 'status %d\n%s\n' $rc "$said"
  return 1
}
check "no step of that name" fails_with 'no step dance; there are .*timeline' script h200-tape.sh "$tmp/bad" account dance
FAIL_AT='--sync data --smem' check "a variant without a result" fails_with 'h200-tape.tsv has 38 rows of 40' script h200-tape.sh "$tmp/bad" bench
FAIL_AT='trace' check "no trace" fails_with 'no trace of the waves at context 1' script h200-tape.sh "$tmp/bad" account
FAIL_AT='--runs 200' check "a load that ends" fails_with 'load ended' script h200-tape.sh "$tmp/bad" repeat busy
check "both checks at once" script h200-tape.sh "$tmp/checks" checks
cmp -s "$tmp/checks/h200-tape-sanitize.tsv" "$tmp/out/h200-tape-sanitize.tsv" && cmp -s "$tmp/checks/h200-tape-parity.tsv" "$tmp/out/h200-tape-parity.tsv"
result $? "give the same tables"
FAIL_AT='-n 20 --sync' check "and fail where one does" fails_with 'sanitize: no summary, or other tokens' script h200-tape.sh "$tmp/bad" checks
begin=$SECONDS
LIMIT=3 SLEEP_AT='--sync data' check "programs that hang" fails_with 'out of time' script h200-tape.sh "$tmp/bad" bench account repeat sanitize
[ $((SECONDS - begin)) -le 12 ]
result $? "and still all together end"
! pgrep -f "$tmp/tree/tiles bench" >/dev/null
result $? "no load is left behind"
#< measured-faults

echo "1..$n"
[ $failed -eq 0 ]
