#!/bin/bash
# Every figure of the book, or those named, as SVG.
# usage: figures/make.sh [-o FOLDER] [NAME...]
# shellcheck source=figures/lib.sh
. "$(dirname "$0")/lib.sh"
out=$ROOT/build/book/figures
if [ "${1:-}" = -o ]; then
  out=$2
  shift 2
fi
mkdir -p "$out"
plan_tiles

# one NAME: a figure that could not be drawn leaves none behind, not even an old one.
one() {
  local name=$1 rc=0
  if [ -e "$FIGURES/$name.sh" ]; then bash "$FIGURES/$name.sh" >"$out/.$name.svg" || rc=1
  else draw "$name" >"$out/.$name.svg" || rc=1; fi
  if [ $rc -eq 0 ]; then mv "$out/.$name.svg" "$out/$name.svg"
  else rm -f "$out/.$name.svg" "$out/$name.svg"; fi
  return $rc
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in "$FIGURES"/*.sh "$FIGURES"/*.awk; do
    name=$(basename "${file%.*}")
    case $name in lib | make | timeline | gnuplot) ;; *) names+=("$name") ;; esac
  done
fi
running=()
for name in "${names[@]}"; do
  one "$name" &
  running+=($!)
done
failed=0
for pid in "${running[@]}"; do wait "$pid" || failed=1; done
exit $failed
