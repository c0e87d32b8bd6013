#!/bin/bash
# Runs the tests and sums them up. The last line is always "N passed, M failed"; the exit status is 0 only
# when M is 0 and something ran.
# usage: tests/run.sh [all|check|asan|tsan|lint|fuzz]
#
# A test program is anything that prints "ok ..." and "not ok ..." lines (TAP). A program that dies, hangs,
# stops before the tests that it announced, or runs no test at all counts as one failure more. Its whole
# output is shown then, and stays in build/log.
set -u
cd "$(dirname "$0")/.." || exit 1
what=${1:-all}
case $what in all | check | asan | tsan | lint | fuzz) ;; *)
  sed -n '4s/# //p' "$0" >&2
  exit 2
  ;;
esac
shopt -s nullglob
log=build/log
rm -rf "$log"
mkdir -p "$log"
cores=$(nproc)
export CMOCKA_MESSAGE_OUTPUT=TAP
# 99, so that no sanitizer's report passes for an exit status that a test expects.
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:exitcode=99
export UBSAN_OPTIONS=print_stacktrace=1:exitcode=99
export TSAN_OPTIONS=halt_on_error=1:exitcode=99

#> test-jobs
# job NAME COMMAND...: runs it beside others, at most one a core.
job() {
  while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do wait -n; done
  one_job "$@" &
}

one_job() {
  local name=$1 file="$log/$1" start=$SECONDS rc ok bad skipped planned
  shift
  timeout --kill-after=10 900 "$@" >"$file.out" 2>&1 </dev/null
  rc=$?
  ok=$(grep -ac '^ok ' "$file.out")
  skipped=$(grep -ac '^not ok .*# SKIP' "$file.out")
  bad=$(($(grep -ac '^not ok ' "$file.out") - skipped))
  planned=$(sed -n 's/^1\.\.\([0-9][0-9]*\).*/\1/p' "$file.out" | head -n 1)
  if [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then
    echo "# $name ran too long and was ended" >>"$file.out"
    bad=$((bad + 1))
  elif [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
    echo "# $name ended with status $rc" >>"$file.out"
    bad=1
  elif [ $((ok + bad + skipped)) -eq 0 ]; then
    echo "# $name ran no test" >>"$file.out"
    bad=1
  elif [ "$bad" -eq 0 ] && [ $((ok + skipped)) -lt "${planned:-0}" ]; then
    echo "# $name stopped before its $planned tests were run" >>"$file.out"
    bad=1
  fi
  echo "$ok $bad $skipped" >"$file.count"
  {
    flock 9 # one program's lines stay together
    if [ "$bad" -eq 0 ]; then
      printf 'pass  %-28s %4d passed%s, %d s\n' "$name" "$ok" \
        "$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")" $((SECONDS - start))
      grep -a '^not ok .*# SKIP' "$file.out" | sed 's/^not ok [0-9]* # SKIP/      skipped:/'
    else
      printf 'FAIL  %-28s %4d passed, %d failed; its output:\n' "$name" "$ok" "$bad"
      grep -avE '^(ok|cc|c\+\+|g\+\+|gcc|clang) ' "$file.out" | tail -n 200 | sed 's/^/    | /'
    fi
  } 9>"$log/lock"
  [ "$bad" -eq 0 ]
}

# build NAME MAKE-ARGUMENT...: a build is a test too. Uses all cores by itself.
build() {
  local name="build-$1"
  shift
  wait
  # shellcheck disable=SC2016 # the inner shell expands it
  one_job "$name" bash -c 'make --no-print-directory -j "$0" "$@" && echo "ok 1 - builds"' "$cores" "$@"
}
#< test-jobs

#> test-kinds
sanitize='-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize'
build_check() { build release tiles tests; }
build_asan() { build asan B=build/asan OPT="$sanitize=address,undefined" tests build/asan/tiles; }
build_tsan() { build tsan B=build/tsan OPT="$sanitize=thread" threaded-tests; }
build_fuzz() { build fuzz B=build/fuzz CC=clang OPT="$sanitize=address,undefined,fuzzer-no-link" fuzzers; }
build_lint() { :; }

run_check() {
  local t
  for t in tests/test_*.c tests/test_*.cpp; do
    t=$(basename "${t%.*}")
    job "$t" "build/$t"
  done
  for t in tests/test_*.sh; do job "$(basename "$t" .sh)" bash "$t"; done
}

run_asan() {
  local t
  for t in tests/test_*.cpp tests/test_*.c; do # the longest first
    t=$(basename "${t%.*}")
    job "asan-$t" "build/asan/$t"
  done
  job asan-test_command env B=build/asan bash tests/test_command.sh
}

run_tsan() {
  local t
  for t in tests/test_*.c; do
    grep -qE 'cpu_open|pthread_create' "$t" || continue
    t=$(basename "$t" .c)
    job "tsan-$t" "build/tsan/$t"
  done
}

run_lint() { job lint bash tests/lint.sh; }

run_fuzz() {
  local t
  for t in tests/fuzz_*.c; do
    t=$(basename "$t" .c)
    job "$t" bash tests/fuzz.sh "${t#fuzz_}" "${FUZZ_SECONDS:-60}"
  done
}
#< test-kinds

kinds=$what
[ "$what" != all ] || kinds='check asan tsan lint fuzz'
built=''
for kind in $kinds; do "build_$kind" && built+=" $kind"; done
for kind in $built; do "run_$kind"; done
wait

passed=0 failed=0 skipped=0
for count in "$log"/*.count; do
  read -r a b c <"$count"
  passed=$((passed + a)) failed=$((failed + b)) skipped=$((skipped + c))
done
for count in "$log"/*.count; do
  read -r a b c <"$count"
  [ "$b" -eq 0 ] || echo "failed: $(basename "$count" .count), see $log/$(basename "$count" .count).out"
done
[ "$skipped" -eq 0 ] || echo "$skipped skipped: what they need has not been fetched"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
