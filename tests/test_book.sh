#!/bin/bash
# The weave: a small book with one planted fault after another, then the book itself, its pages, EPUB and PDF.
# usage: tests/test_book.sh [small|whole]
# shellcheck disable=SC2016 # Markdown's backticks are meant
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/tiles book.XXXXXX") # a space in the path
trap 'rm -rf "$work" "${work// /-}"' EXIT

#> book-helpers
# shellcheck source=tests/tap.sh
. tests/tap.sh
# A fresh small book with the real weave.
small() {
  rm -rf "$work/small"
  cp -r "$root/tests/book" "$work/small"
  for file in "$root"/chapters/*; do
    case $file in *.md | *.c | *.cu | *.h | */solutions) ;; *) cp -r "$file" "$work/small/chapters/" ;; esac
  done
  cd "$work/small" || exit 1
  # Of the files that a table's hash is made from it has one, gemv.cuh; the others are there and empty.
  touch {barrier,attention,argmax,tape,handoff,device}.cuh {tiles_kernel,tape_kernel,gpu}.cu {trace,plan,tiles_cpu,dot,bench,decoder}.c \
    tiles.h chapters/{03,04,05}-none.cu chapters/{06-barrier,11-none,13-none,stages,chapter}.c chapters/launches.h
  sed -i "s/0000000000000000/$(sh chapters/source.sh waves)/" measured/h200-x.tsv
}
export BOOK='00-reading 01-first A8-glossary'
weave() { # weave ARGUMENT...: the small book's book.sh, its words in $work/said
  TILES=./tiles JOBS=2 sh chapters/book.sh "$@" >"$work/said" 2>&1
}
# faulty NAME MESSAGE ARGUMENT...: book.sh with these arguments fails, and one line of what it says is exactly this
faulty() {
  local name=$1 message=$2 good=1
  shift 2
  weave "$@" || grep -qxF -- "$message" "$work/said" && good=0
  result $good "$name: $message" "$work/said"
}
#< book-helpers

#> book-faults
planted() {
  small
  weave pages
  result $? "the small book has no fault" "$work/said"
  [ ! -s "$work/said" ]
  result $? "and nothing is said of it" "$work/said"
  local page=build/book/html/01-first.html blank=$'\302\240' # a number does not part from its unit
  grep -q "<span class=\"number\"[^>]*>2.5</span>${blank}ms" $page && grep -q ">4,547</span>${blank}GB/s" $page && grep -q '>99</span> waves' $page &&
    grep -q '>8</span> of' $page && grep -q '>16</span>' $page
  result $? "numbers of tables, targets, plans and the sources" $page
  grep -q 'role="note"><span class="ref">1</span>Somebody, a paper' $page
  result $? "a quoted figure brings its citation" $page
  grep -q 'href="src/one.c.html#L7"' $page && grep -q 'id="one.c-8"' $page && grep -q 'id="L8"' build/book/html/src/one.c.html
  result $? "a listing leads to its file and line" $page
  grep -q 'seen before' $page && grep -q 'A solution' $page && grep -q '<svg role="img" aria-label="A box, twice as wide as high"' $page
  result $? "a second showing, a solution, a figure" $page
  grep -q '"url":"01-first.html#01-parts"' build/book/html/search.js
  result $? "the search's index knows the sections" build/book/html/search.js

  small
  sed -i 's/^{.c rest=one.c}/X/; /rest=one.c/,/^```$/d' chapters/01-first.md
  faulty 'a line left out' 'one.c:1: lines 1 to 4 are nowhere in the book: /*: # One' check
  small
  sed -i 's,^//> alpha,//> alpha2,; s,^//< alpha,//< alpha2,' one.c
  faulty 'a region renamed' 'chapters/01-first.md:8: there is no region alpha' page 01-first
  small
  printf '\n```{.c region=beta}\n```\n' >>chapters/00-reading.md
  faulty 'a region shown twice' 'chapters/01-first.md:11: one.c:11 is shown already: chapters/00-reading.md:11' check
  small
  sed -i 's,^//< alpha,,' one.c
  faulty 'a region without an end' 'one.c:14: region beta begins inside region alpha: regions do not nest' check
  small
  sed -i 's/^See /It takes 12 ms. See /' chapters/01-first.md
  faulty 'a number typed by hand' \
    'chapters/01-first.md:22: a typed number: 12 ms (a measurement is `=v(...)`; a definition is [12 ms]{.fact})' page 01-first
  small
  sed -i 's/^It stands/It is 3× faster and stands/' one.c
  faulty 'one in the prose of a source' \
    'one.c:13: a typed number: 3× (a measurement is `=v(...)`; a definition is [3×]{.fact})' page 01-first
  small
  sed -i 's/"a",1,"ms")|/"c",1,"ms")|/' chapters/01-first.md
  faulty 'an unknown row' 'chapters/01-first.md:3: measured/h200-x.tsv has no row c, 1' page 01-first
  small
  sed -i 's/"a",1,"ms")|/"a",1,"us")|/' chapters/01-first.md
  faulty 'an unknown column' 'chapters/01-first.md:3: measured/h200-x.tsv has no column us' page 01-first
  small
  sed -i 's/given("other")/given("others")/' chapters/01-first.md
  faulty 'an unknown quotation' 'chapters/01-first.md:3: measured/given.tsv has no row others' page 01-first
  small
  sed -i 's/"THIRD"/"FOURTH"/' chapters/01-first.md
  faulty 'an unknown constant' 'chapters/01-first.md:4: the sources have no constant FOURTH' page 01-first
  small
  printf '// The same name.\nenum { THIRD = 7 };\n' >>gemv.cuh
  faulty 'a constant of two meanings' 'chapters/01-first.md:4: the sources have several constants THIRD' page 01-first
  small
  sed -i 's/"ms")|%.1f/"ms")*2/' chapters/01-first.md
  faulty 'arithmetic without a format' 'chapters/01-first.md:3: what is computed needs a format, such as |%.2f: v("h200-x","a",1,"ms")*2' page 01-first
  small
  sed -i 's/(00-reading.md)/(00-writing.md)/' chapters/01-first.md
  faulty 'a dead link' 'chapters/01-first.md:22: there is no page 00-writing.md' page 01-first
  small
  sed -i 's/(#01-parts)/(#01-pieces)/' chapters/01-first.md
  faulty 'an unknown anchor' 'chapters/01-first.md:22: there is no anchor #01-pieces' page 01-first
  small
  sed -i 's/\[tile\]{.term}/[tyle]{.term}/' chapters/00-reading.md
  faulty 'an unknown term' 'chapters/00-reading.md:3: the glossary has no term "tyle"' page 00-reading
  small
  sed -i 's,figures/box.svg,figures/bix.svg,' chapters/01-first.md
  faulty 'a missing figure' \
    'chapters/01-first.md:24: there is no figure bix: figures/make.sh has not made build/book/figures/bix.svg' page 01-first
  small
  sed -i 's/^!\[.*\](/![](/' chapters/01-first.md
  faulty 'a figure without a text' 'chapters/01-first.md:24: figure box has no text that says what it shows' page 01-first
  small
  rm chapters/solutions/01-1.patch
  faulty 'a missing solution' 'chapters/01-first.md:30: there is no chapters/solutions/01-1.patch' page 01-first
  small
  sed -i 's/^# First {#01-first}/# First {#01-second}/' chapters/01-first.md
  faulty 'a title with another id' 'chapters/01-first.md:1: a chapter begins with `# Title {#01-first}`' page 01-first
  small
  rm chapters/01-first.md
  faulty 'a missing chapter' 'chapters/01-first.md:1: this chapter does not exist yet' check
  small
  echo '# Extra' >chapters/05-extra.md
  faulty 'a chapter too many' 'chapters/05-extra.md:1: this chapter is not among those that chapters/book.sh lists' check

  small
  sed -i 's/x \* 2/x * 3/' gemv.cuh
  weave check && grep -q '^stale: measured/h200-x.tsv: measured from source [0-9a-f]*, which is now [0-9a-f]* (waves)' "$work/said"
  result $? "a stale number is listed" "$work/said"
  ! STRICT=1 weave check
  result $? "and is a fault with STRICT=1" "$work/said"
  small
  sed -i 's,return x,/* why */  return x,; s,^#define,// a reason\n#define,' gemv.cuh
  weave check && ! grep -q stale "$work/said"
  result $? "a comment makes no number stale" "$work/said"
  # The check of the pages, on a page with one of each.
  small
  weave pages
  sed -i -e '/^<!--text-->/a <p style="width:60rem">wide</p><p id="contents">twice</p><p><a href="#nowhere">x</a><a href="no.html">y</a></p><img src="none.png"><h5>deep</h5>' \
    -e '/^<!--text-->/a <p style="color:#aaa;background:#fff">pale</p><input><script>nothing.here()</script><script src="https://elsewhere.invalid/x.js"></script>' \
    build/book/html/01-first.html
  python3 "$root/tests/check_pages.py" build/book/html >"$work/said" 2>&1
  for what in 'every link' 'ids are' 'nothing is fetched' 'no page scrolls' 'no errors' 'images load' 'headings go' 'images, fields' 'text has contrast'; do
    grep -q "^not ok [0-9]* - $what" "$work/said"
    result $? "the pages' check tells: $what" "$work/said"
  done

  small
  rm chapters/solutions/01-1.patch
  DRAFT=1 weave page 01-first && grep -q '(draft)$' "$work/said"
  result $? "a draft may lack a solution" "$work/said"
}
#< book-faults

#> book-whole-test
# The book itself, from a copy.
whole() {
  unset BOOK
  local copy=${work// /-}/whole
  mkdir -p "$copy"
  git ls-files -z -co --exclude-standard | xargs -0 cp --parents -t "$copy" 2>/dev/null
  cd "$copy" || exit 1
  local began=$SECONDS
  sh chapters/book.sh >"$work/said" 2>&1
  result $? "the book is woven (in $((SECONDS - began)) s)" "$work/said"
  [ "$(head -c 5 build/book/tiles.pdf 2>&1)" = '%PDF-' ] && [ "$(wc -c <build/book/tiles.pdf)" -gt 500000 ]
  result $? "a PDF" "$work/said"
  java -jar "$(readlink -f "$(command -v epubcheck)")" build/book/tiles.epub >"$work/said" 2>&1
  result $? "epubcheck accepts the EPUB" "$work/said"
  ! grep -rlF "$copy" build/book/html >"$work/said"
  result $? "no path of this machine in its pages" "$work/said"
  python3 tests/check_pages.py build/book/html >"$work/pages" 2>&1
  cp "$work/pages" "$work/said"
  while read -r line; do
    case $line in
    'ok '* | 'not ok '*)
      [ "${line#ok}" != "$line" ]
      result $? "pages: ${line#* - }" "$work/said"
      ;;
    esac
  done <"$work/pages"
  [ "$(grep -c ok "$work/pages")" -ge 10 ]
  result $? "the pages were opened" "$work/said"
}
#< book-whole-test

case ${1:-all} in
small) planted ;;
whole) whole ;;
all)
  planted
  cd "$root" || exit 1
  whole
  ;;
*)
  sed -n '3s/# //p' "$0" >&2
  exit 2
  ;;
esac
echo "1..$n"
[ "$failed" -eq 0 ]
