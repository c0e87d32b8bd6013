#!/bin/sh
# The hash of the sources that a table of measured/ depends on, without their comments and the shape of their white space: what
# only explains changes no number. Tables carry it as `# source<TAB>HASH`; `make book` lists those that carry another one.
# usage: chapters/source.sh gpu|cpu|ladder
#   gpu     the kernels, the host's part, the planner, the measuring
#   cpu     the CPU's workers and dot products, the planner, the measuring
#   ladder  the kernels once more and the chapters' own decoders (tables whose name contains `ladder`)
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
gpu) set -- *.cuh *.cu trace.c ;;
cpu) set -- tiles_cpu.c dot.c ;;
ladder) set -- *.cuh *.cu chapters/*.cu chapters/*.c chapters/*.h ;;
*)
  sed -n '4s/# //p' "$0" >&2
  exit 2
  ;;
esac
for file in "$@" plan.c bench.c decoder.c tiles.h; do
  [ ! -e "$file" ] || cat "$file"
done | awk '
  { # comments go, strings stay
    out = ""
    for (i = 1; i <= length($0); i++) {
      c = substr($0, i, 1)
      two = substr($0, i, 2)
      if (comment) { if (two == "*/") { comment = 0; i++ } }
      else if (string != "") {
        out = out c
        if (c == "\\") { out = out substr($0, ++i, 1) }
        else if (c == string) string = ""
      }
      else if (two == "/*") { comment = 1; i++ }
      else if (two == "//") break
      else { if (c == "\"" || c == "\047" && out !~ /[0-9]$/) string = c; out = out c }
    }
    string = ""
    gsub(/[ \t]+/, " ", out)
    sub(/^ /, "", out)
    sub(/ $/, "", out)
    if (out != "") print out
  }' | sha256sum | cut -c 1-16
