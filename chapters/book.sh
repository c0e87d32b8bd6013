#!/bin/sh
# Weaves the book.
# usage: chapters/book.sh [all]            everything, into build/book: html/, tiles.epub, tiles.pdf, stale.txt
#        chapters/book.sh page NN-name     one chapter, into build/book/html/NN-name.html; its faults as `file:line: message`
#        chapters/book.sh pages            only the HTML
#        chapters/book.sh check            only the book as a whole: every line shown once, stale tables
# DRAFT=1 chapters/book.sh ...             chapters, figures, solutions and lines still missing are warnings
# STRICT=1 chapters/book.sh ...            stale tables are faults
#
# For writers. A chapter is chapters/NN-name.md, pandoc's Markdown, and begins with `# Title {#NN-name}`.
#
# The program. An empty fence shows it (language and line numbers come by themselves; the .c is only for editors):
#   ```{.c region=NAME}        the region //> NAME ... //< NAME, with the /*: prose :*/ right above it (blank lines between are
#   ```                        allowed). `{.c region=NAME noprose}` leaves that prose out of the book.
#   ```{.c file=gemv.cuh}      the whole file: its prose as text, its code as listings.
#   ```{.c rest=gpu.cu}        what of the file no other fence of the book shows, in order, prose too.
#   ```{.c recall=NAME}        a region once more, without its prose; "seen before". Does not count.
#   ```{.diff solution=07-1}   chapters/solutions/07-1.patch, folded.
# Each line of *.c *.h *.cu *.cuh Makefile check.sh chapters/*.{c,h,cu} is shown exactly once (recall aside), each /*: :*/ too.
# Prose in a file has its headings one level or more below the section that the fence stands in. Fences stand at the outermost level or
# in a fenced div, not in a list.
#
# Numbers. Inline code that begins with = is an expression, also in a file's /*: prose :*/ and in table cells:
#   `=v("h200-bench","llama-3.2-1b",1,64,"ms")`        measured/h200-bench.tsv: first columns as keys, then a column; the cell as it stands
#   `=v(...)/v(...)*100|%.0f`                          Lua; what is computed needs a printf format, or |, for thousands
#   `=given("rtx3050_ms")` `=given("rtx3050_ms","quiet")`   measured/given.tsv, with a footnote the first time, or without
#   `=target("h200","read_gbs")`                       targets/h200.tsv
#   `=plan("llama-3.2-1b","rtx-3050",1,"waves")`       what `tiles plan SHAPE --target T --context C --tsv` says; literals only
#   `=code("STEPS")`                                   an enum constant, #define or constexpr of the sources
# The unit is typed after it: `=...` ms. Digits typed with a unit (12 ms, 48 KB, 4%, 2×) are a fault, in prose and alt texts;
# [48 KB]{.fact} is for a definition.
#
# References. [text](#anchor), [text](07-plan.md#anchor), [text](07-plan.md), [text](plan.c), [](#anchor): without text, the title of what it is.
# Anchors are the {#ids}; a heading without one has NN-words-of-the-heading, one in a file's prose plan.c-words-of-the-heading; a
# region is #region-NAME, or #NAME where nothing else is called so; a line of a listing is #plan.c-123. Ids are unique in the book.
# ![what it shows](figures/NAME.svg "caption"){#fig-NAME}, alone in its paragraph, is a numbered figure.
# [share of the floor]{.term} links to A8-glossary.md's entry (a plural s is found; [other words]{.term of="share of the floor"}).
# A8-glossary.md is definition lists: a line with the term, a line `:   its definition`.
set -eu
cd "$(dirname "$0")/.."

# The book's chapters, in order. One that is not written yet is a fault; so is a file of chapters/ that is not among them.
: "${BOOK:=00-reading 01-floor 02-weights 03-kernel-per-operation 04-graph 05-launch-a-wave 06-barrier 07-plan 08-gemv 09-attention \
  10-argmax 11-token-loop 12-one-token 13-tape 14-host-time 15-cpu A1-package A2-measuring A3-probes A4-porting A5-checkpoints \
  A6-text A7-command A8-glossary}"
export BOOK

out=build/book
html=$out/html
: "${DRAFT:=}" "${STRICT:=}" "${JOBS:=$(getconf _NPROCESSORS_ONLN)}"
[ "$DRAFT" != 0 ] || DRAFT=''
export DRAFT

#> book-pandoc
# pandoc with the weave. What it weaves is read by the filter, hence no input.
weave() { # weave WHAT ARGUMENT...
  what=$1
  shift
  pandoc -f markdown -M weave="$what" -M title=Tiles ${DRAFT:+-M draft=1} --lua-filter chapters/weave.lua \
    --syntax-definition chapters/cuda.xml "$@" </dev/null
}

newer() { # newer FILE SOURCE...: FILE is there and no source has changed since
  file=$1
  shift
  [ -e "$file" ] && [ -z "$(find "$@" -newer "$file" 2>/dev/null | head -n 1)" ]
}

# A listing's line that may be too wide says how far to the right it goes on: below its own comment where that leaves room,
# else a little to the right of its begin. What is left of the comment is known from pandoc's mark on it.
hang() {
  awk 'function plain(s) { gsub(/<[^>]*>/, "", s); gsub(/&[a-z0-9#]+;/, "x", s); gsub(/\t/, "    ", s); return s }
    !/^(<div class="sourceCode".*)?<span id="[^"]*"><a href="#[^"]*"[^>]*><\/a>/ { print; next }
    {
      at = match($0, /<span id="[^"]*"/)
      length_of_tag = RLENGTH
      text = substr($0, at)
      line = plain(text)
      # A parameter below its parenthesis: a narrow page shortens the way to it.
      deep = match(text, /<\/a> +/) && RLENGTH > 20
      if (deep) text = substr(text, 1, RSTART + 3) "<span class=\"deep\">" substr(text, RSTART + 4, RLENGTH - 4) "</span>" substr(text, RSTART + RLENGTH)
      $0 = substr($0, 1, at - 1) text
      if (length(line) > 40) {
        bare = line
        sub(/^ +/, "", bare)
        indent = length(line) - length(bare)
        comment = match(text, /<span class="(co|do)">/)
        before = comment ? plain(substr(text, 1, comment - 1)) : ""
        hang = indent + 4
        if (comment && before !~ /[^ ]/) hang = indent + (bare ~ /^(\/\/|\/\*)/ ? 3 : bare ~ /^#/ ? 2 : 0)
        else if (comment && length(before) <= 56) hang = length(before) + 3
        if (hang != 4) $0 = substr($0, 1, at + length_of_tag - 1) " style=\"--hang:" hang "\"" substr($0, at + length_of_tag)
      }
      print
    }'
}

# A page. Line anchors come as L.FILE.FIRST-LINE from pandoc, since a block's id begins them, and are FILE-LINE in the book.
page() { # page NN-name
  if weave "$1" -t html5 --wrap=none --mathml --section-divs --template chapters/template.html -o "$out/pages/$1.html"; then
    sed -E -e 's/(id="|href="#)L\.([^"]+)\.[0-9]+-([0-9]+)"/\1\2-\3"/g' -e 's/(<div class="sourceCode") id="L[.-][^"]*"/\1/' \
      -e 's/<pre class="/<pre tabindex="0" class="/' -e 's/(<a href="#[^"]*")><\/a>/\1 aria-hidden="true" tabindex="-1"><\/a>/' \
      "$out/pages/$1.html" | hang >"$html/$1.html"
    # shellcheck disable=SC2015 # the front page is the index too
    [ "$1" != 00-reading ] || cp "$html/$1.html" "$html/index.html"
  else
    rm -f "$html/$1.html"
    return 1
  fi
}

# A file of the program, with an anchor a line.
source_page() { # source_page FILE
  if ! newer "$html/src/$1.html" "$1" chapters/weave.lua chapters/weave chapters/template.html chapters/cuda.xml "$out/files"; then
    mkdir -p "$(dirname "$html/src/$1")"
    weave "source:$1" -t html5 --wrap=none --template chapters/template.html |
      sed -E -e 's/(id="|href="#)L-([0-9]+)"/\1L\2"/g' -e 's/(<div class="sourceCode") id="L"/\1/' \
        -e 's/<pre class="/<pre tabindex="0" class="/' -e 's/(<a href="#[^"]*")><\/a>/\1 aria-hidden="true" tabindex="-1"><\/a>/' |
      hang >"$html/src/$1.new"
    mv "$html/src/$1.new" "$html/src/$1.html"
  fi
}
#< book-pandoc

#> book-inputs
# What the filter reads beside the sources: the list of files, plans, and figures.
inputs() {
  mkdir -p "$out/plans" "$out/figures" "$out/pages" "$html/src"
  {
    for file in *.c *.h *.cu *.cuh Makefile check.sh chapters/*.c chapters/*.h chapters/*.cu; do
      [ ! -e "$file" ] || echo "source $file"
    done
    for chapter in $BOOK; do echo "chapter $chapter"; done
  } >"$out/files.new"
  cmp -s "$out/files.new" "$out/files" || cp "$out/files.new" "$out/files"
  for file in chapters/*.md; do
    grep -qx "chapter $(basename "$file" .md)" "$out/files" || {
      echo "$file:1: this chapter is not among those that chapters/book.sh lists" >&2
      return 1
    }
  done
}

tiles_program() {
  [ -z "${TILES:-}" ] || return 0
  TILES=$out/tiles/tiles
  make -s B="$out/tiles" CUDA=no "$TILES" >"$out/make.log" 2>&1 || {
    tail -n 20 "$out/make.log" >&2
    [ -n "$DRAFT" ] && [ -x "$TILES" ] # a draft goes on with the last one that was built
  }
}

plans() {
  grep -sohE 'plan\("[^"]*", *"[^"]*", *[0-9]+' chapters/*.md ./*.c ./*.h ./*.cu ./*.cuh |
    sed -E 's/plan\("([^"]*)", *"([^"]*)", *([0-9]+)/\1 \2 \3/' | sort -u |
    while read -r shape target context; do
      file=$out/plans/$shape,$target,$context.tsv
      newer "$file" "$TILES" "targets/$target.tsv" && continue
      # Where there is no such plan, the expression that asks for it says so.
      if "$TILES" plan "$shape" --target "$target" --context "$context" --tsv >"$file.new"; then mv "$file.new" "$file"
      else rm -f "$file" "$file.new"; fi
    done
}

figures() {
  [ -e figures/make.sh ] || return 0
  newer "$out/figures/made" figures measured targets "$TILES" && return 0
  if TILES=$TILES bash figures/make.sh -o "$out/figures"; then touch "$out/figures/made"; else [ -n "$DRAFT" ]; fi
}
#< book-inputs

each() { # each FUNCTION < WORDS: this script's function for each word, JOBS at once
  xargs -P "$JOBS" -n 1 sh "$0" "do-$1"
}
existing() { for chapter in $BOOK; do [ ! -e "chapters/$chapter.md" ] || echo "$chapter"; done; }

book_check() {
  for kind in gpu waves cpu ladder; do
    echo "$kind $(sh chapters/source.sh $kind) $(tables $kind)"
  done >"$out/hashes"
  rm -f "$out/stale.txt"
  weave check -t plain --wrap=preserve -o "$out/stale.txt" || return 1
  grep -q . "$out/stale.txt" || return 0
  sed 's/^/stale: /' "$out/stale.txt" >&2
  echo 'A stale table was measured before the program it measures was changed: its numbers stand in the book as they were. STRICT=1 makes that a fault.' >&2
  [ -z "$STRICT" ]
}
tables() { # tables gpu|waves|cpu|ladder: those that say which source they were measured from, by their names
  for table in measured/*.tsv; do
    case $table in *ladder*) kind=ladder ;; */cpu*) kind=cpu ;; *tape* | *beside*) kind=gpu ;; */h200*) kind=waves ;; *) kind=gpu ;; esac
    [ "$kind" != "$1" ] || ! grep -q '^# source	' "$table" || printf '%s ' "$table"
  done
}

#> book-whole
# The search's index: a section a line, cut from the pages themselves.
search_index() { # search_index PAGE...
  awk 'BEGIN { print "tilesBook([" }
    function plain(s) {
      gsub(/<(math|svg|style)[ >].*<\/(math|svg|style)>/, " ", s)
      gsub(/<[^>]*>/, "", s)
      gsub(/\302\240/, " ", s)
      gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&quot;/, "\"", s); gsub(/&amp;/, "\\&", s); gsub(/&#39;/, "\047", s)
      return s
    }
    function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); gsub(/[\t\r]/, " ", s); return "\"" s "\"" }
    function flush() {
      if (id != "" && title != "")
        printf "{\"url\":%s,\"chapter\":%s,\"title\":%s,\"text\":%s,\"code\":%s},\n", quoted(page "#" id), quoted(chapter), quoted(title), quoted(text), quoted(code)
      id = title = text = code = ""
      split("", seen)
    }
    FNR == 1 { flush(); page = FILENAME; sub(/.*\//, "", page); inside = listing = drawing = 0; chapter = "" }
    /<!--text-->/ { inside = 1; next }
    /<!--\/text-->/ { flush(); inside = 0 }
    !inside { next }
    /<section id="/ { flush(); id = $0; sub(/.*<section id="/, "", id); sub(/".*/, "", id); next }
    /<h[1-6]/ && title == "" { title = plain($0); if (chapter == "") chapter = title; next }
    /<svg/ { drawing = 1 }
    drawing { if (/<\/svg>/) drawing = 0; next }
    /<pre/ { listing = 1 }
    listing {
      n = split(plain($0), word, /[^A-Za-z0-9_]+/)
      for (i = 1; i <= n; i++) if (length(word[i]) > 3 && !(word[i] in seen)) { seen[word[i]] = 1; code = code " " word[i] }
      if (/<\/pre>/) listing = 0
      next
    }
    { text = text " " plain($0) }
    END { flush(); print "])" }' "$@"
}

# All chapters on one page: their texts one after another, their links to each other now within the page.
whole_book() { # whole_book PAGE...
  weave whole -t html5 --wrap=none --template chapters/template.html >"$out/whole.html"
  sed '/<!--text-->/q' "$out/whole.html" | sed 's/<body>/<body class="whole">/'
  for file in "$@"; do
    sed -n '/<!--text-->/,/<!--\/text-->/p' "$file"
  done | sed -E -e '/^<!--/d' -e 's/href="([0-9A-Z]+-[a-z0-9-]+)\.html#/href="#/g' -e 's/href="([0-9A-Z]+-[a-z0-9-]+)\.html"/href="#\1"/g'
  sed -n '/<!--\/text-->/,$p' "$out/whole.html" | sed -E 's/href="([0-9A-Z]+-[a-z0-9-]+)\.html"/href="#\1"/g'
}

# One pandoc a chapter, as for the pages; then one that has them all.
epub_chapter() { weave "$1" -t json -o "$out/pages/$1.json"; }
epub() {
  rm -f "$out"/pages/*.json
  existing | each epub_chapter 2>/dev/null || return 1 # the pages' runs have told what is wrong
  pandoc -f json "$out"/pages/*.json -t epub3 --mathml --toc --toc-depth=2 --syntax-definition chapters/cuda.xml \
    --css chapters/epub.css -M title=Tiles -M subtitle='Batch-one decoding near the floor' -M lang=en -M author='The Tiles authors' -o "$out/tiles.epub"
}

# Chromium prints the whole book. There links to the sources' pages would be paths of this machine, and a link a line of code
# makes the file several times as large, as do tags for every word of it.
pdf() {
  sed -E -e 's/<a href="src\/[^"]*"[^>]*>([^<]*)<\/a>/\1/g' -e 's/<a href="#[^"]*"[^>]*><\/a>//g' -e 's/<body class="whole/& print/' \
    -e '/<script/d' "$html/book.html" >"$html/print.html"
  chromium --headless --no-sandbox --disable-gpu --no-pdf-header-footer --disable-pdf-tagging --user-data-dir="$PWD/$out/chromium" \
    --print-to-pdf="$PWD/$out/tiles.pdf" "file://$PWD/$html/print.html" >"$out/pdf.log" 2>&1 || {
    cat "$out/pdf.log" >&2
    return 1
  }
  rm -f "$html/print.html"
}
#< book-whole

pages() {
  status=0
  inputs
  tiles_program
  plans
  figures || status=1
  rm -f "$html"/*.html
  cp chapters/style.css chapters/book.js "$html/"
  existing | each page || status=1
  sed -n 's/^source //p' "$out/files" | each source_page || status=1
  book_check || status=1
  pages=$(existing | while read -r name; do [ ! -e "$html/$name.html" ] || echo "$html/$name.html"; done)
  # shellcheck disable=SC2086 # a word a page
  {
    whole_book $pages >"$html/book.html"
    search_index $pages >"$html/search.js"
  }
  return $status
}

all() {
  status=0
  pages || status=1
  pdf &
  epub || status=1
  wait $! || status=1
  [ $status -eq 0 ] || {
    echo 'the book has faults: none of it counts' >&2
    return 1
  }
  echo "The book: $out/html/index.html, a page a chapter ($out/html/book.html is all of it), $out/tiles.epub and $out/tiles.pdf"
}

[ $# -gt 0 ] || set -- all
case $1 in
-h | --help) sed -n '2,/^set -eu/{/^set/d;s/^# \{0,1\}//;p;}' "$0" ;;
do-page | do-source_page | do-epub_chapter) "${1#do-}" "$2" ;;
page)
  inputs
  tiles_program
  plans
  figures || true
  cp chapters/style.css chapters/book.js "$html/"
  page "$2"
  echo "$html/$2.html"
  ;;
check)
  inputs
  book_check
  ;;
all | pages) "$1" ;;
*)
  sed -n '3,6p' "$0" >&2
  exit 2
  ;;
esac
