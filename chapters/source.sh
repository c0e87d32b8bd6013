#!/bin/sh
# The hash of the sources that a table of measured/ depends on, without their comments and the shape of their white space: what
# only explains changes no number. Tables carry it as `# source<TAB>HASH`; `make book` lists those that carry another one.
# usage: chapters/source.sh gpu|waves|cpu|ladder
#   gpu     the kernels, what launches and times them, the planner
#   waves   the same without the tape (tables of h200 whose name does not say tape, beside or ladder)
#   cpu     the CPU's workers and dot products, the planner, the measuring
#   ladder  the GPU's once more and the chapters' own decoders (tables whose name contains `ladder`)
# Of gpu.cu only what runs while a token is timed counts; of device.cuh the waves need nothing that only a tape uses.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in gpu | waves | cpu | ladder) ;; *)
  sed -n '4s/# //p' "$0" >&2
  exit 2
  ;;
esac

only() { # only FILE REGION...: these regions of it
  for region in $(echo "$*" | cut -s -d ' ' -f 2-); do sed -n "\\|^//> $region\$|,\\|^//< $region\$|p" "$1"; done
}
without() { # without FILE REGION...: all but these
  file=$1
  shift
  script=''
  for region; do script="$script\\|^//> $region\$|,\\|^//< $region\$|d;"; done
  sed "$script" "$file"
}
waves() { cat barrier.cuh gemv.cuh attention.cuh argmax.cuh tiles_kernel.cu; }
tape() { cat tape.cuh handoff.cuh tape_kernel.cu && only gpu.cu gpu_pace; }
timed() { only gpu.cu gpu_schedule gpu_decode gpu_rates && cat trace.c; }

{
  case $1 in
  gpu) waves && tape && cat device.cuh plan.c && timed ;;
  waves) waves && without device.cuh device_tape device_words device_mma && cat plan.c && timed ;;
  cpu) cat tiles_cpu.c dot.c ;;
  ladder)
    waves && tape && cat device.cuh plan.c && timed
    cat chapters/03-*.cu chapters/04-*.cu chapters/05-*.cu chapters/06-barrier.c chapters/11-*.c chapters/13-*.c \
      chapters/launches.h chapters/chapter.? chapters/stages.c
    ;;
  esac
  cat bench.c decoder.c tiles.h
} | awk '
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
