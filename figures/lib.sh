#!/bin/bash
# What all figures' scripts share. A script is run by figures/make.sh, or alone, and prints its SVG.
#
# TILES names the program whose objects lie beside it (./tiles), MEASURED the folder of tables (measured); with DRAFT=1 a
# figure whose table is missing is a placeholder that says so.
set -eu -o pipefail
FIGURES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$FIGURES")
: "${TILES:=$ROOT/tiles}" "${MEASURED:=$ROOT/measured}" "${DRAFT:=}" "${FIGURES_TARGET:=}"
export ROOT TILES MEASURED DRAFT FIGURES_TARGET

# The program that lists a plan's tiles, linked from the objects beside TILES, where they changed.
plan_tiles() {
  local objects program file archive
  objects=$(dirname "$(readlink -f "$TILES")")
  [ -e "$objects/plan.o" ] || {
    echo "figures: no objects beside $TILES; make tiles" >&2
    return 1
  }
  program=$objects/plan_tiles
  export PLAN_TILES=$program
  [ "$program" -ot "$FIGURES/plan_tiles.c" ] || [ "$program" -ot "$(readlink -f "$TILES")" ] || return 0
  # Another script may do the same right now: each links its own and renames it.
  archive=$program.$$.a
  for file in "$ROOT"/*.c; do
    file=$objects/$(basename "$file" .c).o
    [ "$file" = "$objects/tiles.o" ] || [ ! -e "$file" ] || printf '%s\0' "$file"
  done | xargs -0 ar rcs "$archive"
  cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -o "$program.$$" "$FIGURES/plan_tiles.c" "$archive" \
    -lcjson -lpcre2-8 -lutf8proc -lpthread -lm
  rm -f "$archive"
  mv "$program.$$" "$program"
}

# The SVG of figures/NAME.awk, or of another script that draws by its name.
draw() { # draw NAME [SCRIPT]
  [ -n "${PLAN_TILES:-}" ] || plan_tiles
  awk -v NAME="$1" -f "$FIGURES/lib.awk" -f "$FIGURES/${2:-$1}.awk" </dev/null
}
