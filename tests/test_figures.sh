#!/bin/bash
# Every figure is built from tables and plans, is a well-formed picture that says what it shows, takes its colours from the page,
# and changes when what it is drawn from changes. Tables that nobody has measured yet are made up here, for the figures' sake only.
# usage: tests/test_figures.sh
set -u
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TILES=${TILES:-${B:-build}/tiles}
unset DRAFT FIGURES_TARGET MEASURED
# shellcheck source=tests/tap.sh
. tests/tap.sh

#> figures-fixture
tables=$tmp/measured
mkdir "$tables"
cp measured/*.tsv "$tables"
T=$'\t'
make_up() { # make_up TABLE: rows on stdin, blanks for tabs
  [ -e "$tables/$1.tsv" ] || sed "s/ /$T/g" >"$tables/$1.tsv"
}
{
  echo chapter context kernels ms least_ms most_ms share_percent idle_us host_us
  for context in 1 4096; do
    printf '%s\n' "03 $context 115 2.10 2.05 2.20 27.1 640 1900" "04 $context 115 1.40 1.39 1.42 41.0 180 20" \
      "05 $context 83 1.30 1.29 1.31 44.0 150 18" "06 $context 1 0.95 0.94 0.96 57.0 9 8" \
      "11 $context 0.015625 0.86 0.85 0.87 63.0 0.2 0.1" "13 $context 0.015625 0.72 0.71 0.73 75.4 0.2 0.1"
  done
} | make_up h200-ladder
# A trace as `tiles trace -o` writes it, with a worker that had nothing to do in one wave.
for context in 1 4096; do
  {
    printf '{"displayTimeUnit":"ns","traceEvents":[\n'
    for worker in 0 1 2 3; do
      at=100 wave=0
      for op in qkv attend wo gate_up down; do
        printf '{"name":"%s","cat":"wave","ph":"X","pid":0,"tid":%d,"ts":%d.250,"dur":%d.500,"args":{"wave":%d,"layer":8}},\n' $op $worker $at $((5 + worker)) $wave
        at=$((at + 12)) wave=$((wave + 1))
      done
    done
    printf '{"name":"merge","cat":"wave","ph":"X","pid":0,"tid":3,"ts":0.000,"dur":0.000,"args":{"wave":5,"layer":8}}\n]}\n'
  } | awk -v context=$context -v head=$((context == 1)) -f figures/timeline.awk
done >"$tmp/timeline.tsv"
cp -n "$tmp/timeline.tsv" "$tables/h200-timeline.tsv"
#< figures-fixture

timeline_rows() {
  [ "$(wc -l <"$tmp/timeline.tsv")" -eq 41 ] && grep -q "^1${T}0${T}0${T}qkv${T}8${T}0.000${T}5.500$" "$tmp/timeline.tsv" &&
    grep -q "^4096${T}3${T}4${T}down${T}8${T}48.000${T}56.500$" "$tmp/timeline.tsv" && ! grep -q merge "$tmp/timeline.tsv"
}
check "a Chrome trace becomes a timeline, without slices that never began" timeline_rows

build() { # build FOLDER [NAME...]
  MEASURED=${tables_now:-$tables} bash figures/make.sh -o "$@"
}
check "every figure builds" build "$tmp/a"
figures=()
for file in figures/*.awk figures/*.sh; do
  name=$(basename "${file%.*}")
  case $name in lib | make | timeline) ;; *) figures+=("$name") ;; esac
done
all_there() {
  local name
  [ ${#figures[@]} -ge 18 ] || return 1
  for name in "${figures[@]}"; do [ -s "$tmp/a/$name.svg" ] || { echo "$name is missing" && return 1; }; done
}
check "and none is missing" all_there
build "$tmp/b" 2>/dev/null
check "twice the same" diff -r "$tmp/a" "$tmp/b"

#> figures-form
well_formed() {
  if command -v xmllint >/dev/null; then xmllint --noout "$1"; else
    python3 -c 'import sys, xml.etree.ElementTree as t; t.parse(sys.argv[1])' "$1"
  fi
}
no() { # no PATTERN FILE: lines that have it, and fails if there are any
  ! grep -nE "$1" "$2"
}
form() { # form NAME
  local f=$tmp/a/$1.svg
  well_formed "$f" || return 1
  [ "$(grep -c "^<svg .*viewBox=\"0 0 680 [0-9.]*\"" "$f")" -eq 1 ] || { echo "no viewBox of 680" && return 1; }
  no '<svg [^>]* (width|height)=' "$f" || return 1
  [ "$(grep -cE "^<title id=\"$1-title\">.{5,}</title>$" "$f")" -eq 1 ] || { echo "no title" && return 1; }
  [ "$(grep -cE "^<desc id=\"$1-desc\">.{60,}</desc>$" "$f")" -eq 1 ] || { echo "no desc" && return 1; }
  # Figures share one page: ids and rules are the figure's own.
  ! grep -oE ' id="[^"]*"' "$f" | grep -v " id=\"$1-" || return 1
  ! sed -n '/<style>/,/<\/style>/p' "$f" | grep -vE "^(</?style>|#$1-svg |@media \(max-width:600px\)\{#$1-svg )" || return 1
  no '<script|<image|href=|font-family=|nan|inf[^a-z]' "$f" || return 1
  # No colour but as a fallback of a variable.
  ! sed -E 's/var\(--[a-z0-9]+,#[0-9a-f]{6}\)//g; s/ id="[^"]*"//g; s/^#[a-z0-9-]+-svg //; s/\{#[a-z0-9-]+-svg/{/g; s/\}#[a-z0-9-]+-svg/}/g' "$f" |
    grep -nE '#[0-9a-fA-F]{3}|rgb\(|hsl\(|(fill|stroke|color)(:|=")(black|white|red|blue|green|gr[ae]y|current)' || return 1
}
for name in "${figures[@]}"; do check "$name: well-formed, titled, scoped, coloured by the page" form "$name"; done
#< figures-form

#> figures-change
# One cell another: the first row that matches, in the named column, half as much again.
perturb() { # perturb TABLE COLUMN ROW-PATTERN
  mkdir -p "$tmp/p"
  cp "$tables"/*.tsv "$tmp/p"
  awk -F '\t' -v OFS='\t' -v column="$2" -v pattern="$3" '
    /^#/ { print; next }
    !head { head = 1; for (i = 1; i <= NF; i++) if ($i == column) at = i; print; next }
    !done && at && $0 ~ pattern { $at = $at * 1.5; done = 1 }
    { print }
    END { exit !done }' "$tables/$1.tsv" >"$tmp/p/$1.tsv"
}
changes() { # changes NAME TABLE COLUMN ROW-PATTERN
  perturb "$2" "$3" "$4" || { echo "no such cell in $2" && return 1; }
  tables_now=$tmp/p build "$tmp/c" "$1" && ! cmp -s "$tmp/a/$1.svg" "$tmp/c/$1.svg"
}
changes_with_plan() { # another number of workers
  sed "s/^workers$T.*/workers${T}18/" targets/rtx-3050.tsv >"$tmp/card.tsv"
  FIGURES_TARGET=$tmp/card.tsv build "$tmp/c" "$1" && ! cmp -s "$tmp/a/$1.svg" "$tmp/c/$1.svg"
}
for name in layer-as-tiles waves-and-barriers assignment assignment-1 planner-and-runtime token-loop two-designs what-the-card-asks; do
  check "$name changes with the plan" changes_with_plan "$name"
done
# These two show the model's bytes, whoever reads them: another context's would be others.
changes_with_shape() {
  local program=$tmp/plan_tiles
  printf '#!/bin/sh\n"%s" "$@" | sed "s/32768$/65536/; s/8388608/16777216/; s/12582912/12582914/"\n' "$(dirname "$(readlink -f "$TILES")")/plan_tiles" >"$program"
  chmod +x "$program"
  (
    . figures/lib.sh
    PLAN_TILES=$program MEASURED=$tables draw "$1" >"$tmp/c/$1.svg"
  ) && ! cmp -s "$tmp/a/$1.svg" "$tmp/c/$1.svg"
}
check "decoder-as-bytes changes with the plan's bytes" changes_with_shape decoder-as-bytes
one_layer_refuses() {
  ! changes_with_shape one-layer 2>"$tmp/err" && grep -q "the plan's bytes are not the shape's" "$tmp/err"
}
check "one-layer refuses a plan whose bytes are not the shape's" one_layer_refuses
check "what-the-card-asks changes with its sweep" changes what-the-card-asks h200-sweep read_gbs '^36\t'
check "what-the-card-asks changes with what was given" changes what-the-card-asks given value '^rtx3050_eight_sms_gbs\t'
check "two-designs changes with what was given" changes two-designs given value '^h100_nominal_gbs\t'
check "one-token changes with its account" changes one-token h200-account us '^4096\tbarriers'
check "one-token changes with its timeline" changes one-token h200-timeline end_us '^4096\t.*\tgate_up\t8'
check "latency-against-context changes with the waves" changes latency-against-context h200-bench ms '^llama-3.2-1b\t512'
check "latency-against-context changes with the tape" changes latency-against-context h200-tape ms '^tape\tllama-3.2-1b\t4096'
check "latency-against-context changes with torch" changes latency-against-context h200-torch ms 'llama-3.2-1b\t4096\tinductor'
check "decoders changes with the ladder" changes decoders h200-ladder idle_us '^[^\t]*\t1\t'
check "decoders-4096 changes with the ladder" changes decoders-4096 h200-ladder ms '^[^\t]*\t4096\t'
check "ladder changes with the ladder" changes ladder h200-ladder ms '^[^\t]*\t4096\t'
check "host-time changes with torch" changes host-time h200-torch ms 'qwen2.5-1.5b\t768\tplain, CUDA'
check "host-time changes with what was given" changes host-time given value '^rtx3070_device_ms\t'
check "loss-account changes with the waves" changes loss-account h200-account us '^1\tattention'
check "loss-account changes with the tape" changes loss-account h200-tape-account us '^4096\tattention'
ring_measured() {
  printf 'us\tslots_full\top\n10\t0\t-\n12\t2\tqkv\n14\t1\t-\n17\t6\tgate_up\n30\t0\t-\n' >"$tables/h200-ring.tsv"
  build "$tmp/c" ring-over-time && grep -q 'measured: a layer of 20' "$tmp/c/ring-over-time.svg" && ! cmp -s "$tmp/a/ring-over-time.svg" "$tmp/c/ring-over-time.svg"
}
if [ ! -e "$tables/h200-ring.tsv" ]; then
  check "ring-over-time says that it is a model" grep -q 'modelled: ' "$tmp/a/ring-over-time.svg"
  check "ring-over-time is drawn from a measured table where there is one" ring_measured
else check "ring-over-time changes with its table" changes ring-over-time h200-ring slots_full '\t'; fi
#< figures-change

#> figures-missing
missing() { # missing TABLE NAME: one line that names the table, and no picture, not even the old one
  local out
  rm -rf "$tmp/p" "$tmp/d"
  cp -r "$tables" "$tmp/p"
  rm "$tmp/p/$1.tsv"
  cp -r "$tmp/a" "$tmp/d"
  ! out=$(tables_now=$tmp/p build "$tmp/d" "$2" 2>&1) || return 1
  [ "$out" = "figures/$2: measured/$1.tsv is missing" ] && [ ! -e "$tmp/d/$2.svg" ]
}
check "without its table a figure fails and says which" missing h200-ladder ladder
draft() {
  rm -f "$tmp/p/h200-ladder.tsv"
  DRAFT=1 tables_now=$tmp/p build "$tmp/d" ladder && grep -q 'to be drawn from h200-ladder.tsv' "$tmp/d/ladder.svg" && well_formed "$tmp/d/ladder.svg"
}
check "in a draft it is a placeholder that says so" draft
unknown_key() {
  rm -rf "$tmp/p"
  cp -r "$tables" "$tmp/p"
  grep -v '^rtx3070_floor_ms' "$tables/given.tsv" >"$tmp/p/given.tsv"
  ! tables_now=$tmp/p build "$tmp/d" host-time 2>"$tmp/err" && grep -q 'rtx3070_floor_ms' "$tmp/err"
}
check "a key that is not there is named" unknown_key
#< figures-missing

#> figures-layout
# In a browser, in a wide font, at a phone's width and at a page's: texts lie inside the picture, do not overlap, and are large enough to read.
layout_page() { # layout_page WIDTH
  local name
  printf '<!doctype html><meta charset="utf-8"><body>\n'
  for name in "${figures[@]}"; do
    printf '<iframe width="%s" height="900" style="border:0" data-name="%s" srcdoc="' "$1" "$name"
    { printf '<!doctype html><style>:root{--sans:"DejaVu Sans",Verdana,sans-serif}body{margin:0}svg{display:block;width:100%%}</style>' && cat "$tmp/a/$name.svg"; } |
      sed 's/&/\&amp;/g; s/"/\&quot;/g'
    printf '"></iframe>\n'
  done
  cat <<'END'
<pre id="out"></pre><script>
addEventListener('load', () => {
  const bad = [];
  let texts = 0;
  for (const f of document.querySelectorAll('iframe')) {
    const svg = f.contentDocument.querySelector('svg'), frame = svg.getBoundingClientRect(), boxes = [];
    for (const t of svg.querySelectorAll('text')) {
      const b = t.getBoundingClientRect(), h = b.height * .22, size = parseFloat(f.contentWindow.getComputedStyle(t).fontSize) * frame.width / 680;
      const box = { l: b.left, r: b.right, t: b.top + h, b: b.bottom - h, s: t.textContent };
      texts++;
      if (b.left < -1.5 || b.right > frame.width + 1.5 || box.t < -1 || box.b > frame.height + 1) bad.push(f.dataset.name + ': outside: ' + box.s);
      if (size < 10.8) bad.push(f.dataset.name + ': ' + size.toFixed(1) + ' px: ' + box.s);
      for (const o of boxes)
        if (box.l < o.r - 1 && o.l < box.r - 1 && box.t < o.b && o.t < box.b) bad.push(f.dataset.name + ': overlap: ' + box.s + ' / ' + o.s);
      boxes.push(box);
    }
  }
  document.getElementById('out').textContent = 'texts ' + texts + '\n' + bad.join('\n') + '\nend';
});
</script>
END
}
layout() { # layout WIDTH
  layout_page "$1" >"$tmp/page.html"
  timeout 100 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$tmp/browser" --virtual-time-budget=5000 --dump-dom "file://$tmp/page.html" 2>/dev/null |
    sed -n '/<pre id="out">/,/<\/pre>/p' >"$tmp/found"
  grep -qE 'texts [0-9]{3}' "$tmp/found" || { echo "the browser said nothing" && return 1; }
  ! sed '1d; /^end/d; /^$/d' "$tmp/found" | grep .
}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
for width in 390 680; do
  if [ -n "$browser" ]; then check "texts fit at $width pixels" layout $width; else
    n=$((n + 1))
    echo "not ok $n - texts fit at $width pixels # SKIP no chromium"
  fi
done
#< figures-layout

echo "1..$n"
[ "$failed" -eq 0 ]
