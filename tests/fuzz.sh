#!/bin/bash
# Fuzzes one parser for some seconds, from its seeds and from what earlier runs found interesting.
# usage: tests/fuzz.sh NAME SECONDS   (build/fuzz/fuzz_NAME must have been built)
set -u
cd "$(dirname "$0")/.." || exit 1
name=$1 seconds=$2
corpus=build/fuzz/corpus/$name
found=build/fuzz/found
mkdir -p "$corpus" "$found"
seeds=()
[ -d "tests/corpus/$name" ] && seeds=("tests/corpus/$name")

if "build/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=128 \
  -print_final_stats=1 -artifact_prefix="$found/$name-" "$corpus" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1; then
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log")
  echo "ok 1 - $name: $runs inputs in $seconds s"
else
  # What is needed to see it again: the report, and the input's name in its last lines.
  grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse|RELOAD)' "build/fuzz/$name.log" | tail -n 60
  echo "not ok 1 - $name: again with build/fuzz/fuzz_$name FILE, the file is in $found"
  exit 1
fi
