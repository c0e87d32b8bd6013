# What all figures share: reading tables and plans, and drawing in one visual language.
#
# A figure is 680 units wide and as wide as its place on the page; its text is 15 units, 20 on narrow screens, so a
# phone's reader has 11 pixels or more. Colours are CSS variables of the page with a fallback for a figure shown alone.
# Meaning of colours: accent is weights and the plan of waves, accent2 is the tape and waiting, accent3 is K/V and attention.
#
# From the environment: MEASURED (folder of tables), PLAN_TILES (lists a plan's tiles), ROOT (sources), DRAFT.

function fail(message) {
  print "figures/" NAME ": " message > "/dev/stderr"
  failed = 1
  exit 1
}

# ---- tables

function measured(table) { return ENVIRON["MEASURED"] "/" table ".tsv" }

function exists(table,    row, ok) {
  ok = (getline row < measured(table)) >= 0
  close(measured(table))
  return ok
}

# In a draft, a figure whose table does not exist yet says so in its place.
function need(table) {
  if (exists(table)) return
  if (!ENVIRON["DRAFT"]) fail("measured/" table ".tsv is missing")
  begin(NAME, "To be drawn from measured/" table ".tsv", "A placeholder: the table does not exist yet.", 120)
  rect(.5, .5, 679, 119, "dash")
  text(340, 66, "to be drawn from " table ".tsv", "m", "middle")
  finish()
  exit 0
}

# Rows as CELL[table, row, column name], N[table] of them. Lines that begin with # are about the table.
function read_table(table,    row, f, n, i, head) {
  need(table)
  N[table] = 0
  while ((getline row < measured(table)) > 0) {
    if (row ~ /^#/ || row == "") continue
    n = split(row, f, "\t")
    if (!(table in COLUMNS)) {
      COLUMNS[table] = n
      for (i = 1; i <= n; i++) head[i] = f[i]
      continue
    }
    N[table]++
    for (i = 1; i <= COLUMNS[table]; i++) CELL[table, N[table], head[i]] = f[i]
  }
  close(measured(table))
  if (!N[table]) fail("measured/" table ".tsv has no rows")
}

# The cell in `column` of the one row whose columns have these values: cell(t, column, "context", 1, "part", "token").
function cell(t, column, k1, v1, k2, v2, k3, v3, k4, v4,    i, found) {
  if (!(t in N)) read_table(t)
  for (i = 1; i <= N[t]; i++)
    if (is(t, i, k1, v1) && is(t, i, k2, v2) && is(t, i, k3, v3) && is(t, i, k4, v4)) {
      if (found) fail("measured/" t ".tsv: more than one row with " k1 " " v1 " " k2 " " v2 " " k3 " " v3)
      found = i
    }
  if (!found) fail("measured/" t ".tsv: no row with " k1 " " v1 " " k2 " " v2 " " k3 " " v3)
  if (!((t, found, column) in CELL)) fail("measured/" t ".tsv: no column " column)
  return CELL[t, found, column]
}
function is(t, i, k, v) { return k == "" || CELL[t, i, k] "" == v "" }

# What others published: measured/given.tsv.
function given(key) { return cell("given", "value", "key", key) }

# A constant of the sources: an enum's value or a #define.
function code(name,    command, value) {
  command = "cd '" ENVIRON["ROOT"] "' && sed -nE 's/^(#define " name "|.*[ {(]" name " =) *([0-9.]+).*/\\2/p' *.[ch] *.cuh | head -n 1"
  command | getline value
  close(command)
  if (value == "") fail("no constant " name " in the sources")
  return value
}

# ---- a plan: KEY[], WAVE[w, what], TILE[i, what], TILES

function read_plan(target, context, sync,    command, row, f, i) {
  split("", KEY); split("", WAVE); split("", TILE)
  TILES = 0
  command = "cd '" ENVIRON["ROOT"] "' && '" ENVIRON["PLAN_TILES"] "' llama-3.2-1b " target " " context " " sync
  while ((command | getline row) > 0) {
    split(row, f, "\t")
    if (f[1] == "key") KEY[f[2]] = f[3]
    else if (f[1] == "wave") {
      WAVE[f[2], "op"] = f[3]; WAVE[f[2], "layer"] = f[4]; WAVE[f[2], "tiles"] = f[5]; WAVE[f[2], "bytes"] = f[6]
      WAVE[f[2], "worker_bytes"] = f[7]; WAVE[f[2], "us"] = f[8]; WAVE[f[2], "waits"] = f[9]
    } else if (f[1] == "tile") {
      i = TILES++
      TILE[i, "worker"] = f[2]; TILE[i, "wave"] = f[3]; TILE[i, "op"] = f[4]; TILE[i, "layer"] = f[5]
      TILE[i, "row0"] = f[6]; TILE[i, "row1"] = f[7]; TILE[i, "part"] = f[8]; TILE[i, "bytes"] = f[9]
    }
  }
  close(command)
  if (!TILES) fail("no plan for " target)
}
# The plan's target for the figures of the small card; a test may name a file instead.
function small_card() { return ENVIRON["FIGURES_TARGET"] ? ENVIRON["FIGURES_TARGET"] : "rtx-3050" }
# The wave of an operation in a layer, or -1.
function wave_of(op, layer,    w) {
  for (w = 0; w < KEY["waves"]; w++)
    if (WAVE[w, "op"] == op && WAVE[w, "layer"] == layer) return w
  return -1
}

# ---- numbers

function commas(n,    s, out) {
  s = sprintf("%.0f", n)
  while (length(s) > 3) {
    out = "," substr(s, length(s) - 2) out
    s = substr(s, 1, length(s) - 3)
  }
  return s out
}
function size(b) {
  if (b < 1000) return b " B"
  if (b < 1e5) return sprintf("%.1f KB", b / 1e3)
  if (b < 1e6) return sprintf("%.0f KB", b / 1e3)
  if (b < 1e8) return sprintf("%.1f MB", b / 1e6)
  if (b < 1e9) return sprintf("%.0f MB", b / 1e6)
  return sprintf("%.2f GB", b / 1e9)
}
# A chapter's decoder in a few words; the table may say its number or its file's name.
function chapter_name(s,    key) {
  key = s
  sub(/^ch/, "", key)
  key = substr(key, 1, 2)
  if (key == "03") return "03 kernels"
  if (key == "04") return "04 graph"
  if (key == "05") return s ~ /graph/ ? "05 in a graph" : "05 waves"
  if (key == "06") return "06 barriers"
  if (key == "11") return "11 token loop"
  if (key == "13") return "13 tape"
  return s
}
function max(a, b) { return a > b ? a : b }
function min(a, b) { return a < b ? a : b }

# ---- drawing

function esc(s) {
  gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s)
  return s
}
# Coordinates with at most two decimals.
function c(v) {
  v = sprintf("%.2f", v)
  sub(/\.?0+$/, "", v)
  return v == "-0" ? "0" : v
}

function begin(name, title, desc, height,    id, i, n, rule) {
  id = name "-svg"
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" id=\"%s\" class=\"figure\" viewBox=\"0 0 680 %s\" role=\"img\" aria-labelledby=\"%s-title %s-desc\">\n", id, c(height), name, name
  printf "<title id=\"%s-title\">%s</title>\n<desc id=\"%s-desc\">%s</desc>\n", name, esc(title), name, esc(desc)
  n = split(STYLE, rule, "\n")
  print "<style>"
  for (i = 1; i <= n; i++) print "#" id " " rule[i]
  print "@media (max-width:600px){#" id " text{font-size:20px}#" id " .s{font-size:19px}}"
  print "</style>"
}
function finish() { print "</svg>" }

function text(x, y, s, class, anchor) {
  printf "<text x=\"%s\" y=\"%s\"%s%s>%s</text>\n", c(x), c(y), class ? " class=\"" class "\"" : "", anchor ? " text-anchor=\"" anchor "\"" : "", esc(s)
}
function rect(x, y, w, h, class, rx) {
  printf "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"%s class=\"%s\"/>\n", c(x), c(y), c(w), c(h), rx ? " rx=\"" rx "\"" : "", class
}
function line(x1, y1, x2, y2, class) { path("M" c(x1) " " c(y1) "L" c(x2) " " c(y2), class) }
function path(d, class) { if (d) printf "<path d=\"%s\" class=\"%s\"/>\n", d, class }
function circle(x, y, r, class) { printf "<circle cx=\"%s\" cy=\"%s\" r=\"%s\" class=\"%s\"/>\n", c(x), c(y), c(r), class }
# A box as a piece of a path, for figures of many boxes.
function box(x, y, w, h) { return "M" c(x) " " c(y) "h" c(w) "v" c(h) "h" c(-w) "z" }
# From one point straight to another, with a head.
function arrow(x1, y1, x2, y2, class,    d, dx, dy) {
  d = sqrt((x2 - x1) ^ 2 + (y2 - y1) ^ 2)
  dx = (x2 - x1) / d; dy = (y2 - y1) / d
  line(x1, y1, x2 - 5 * dx, y2 - 5 * dy, class ? class : "arrow")
  path("M" c(x2) " " c(y2) "L" c(x2 - 9 * dx + 4.5 * dy) " " c(y2 - 9 * dy - 4.5 * dx) "L" c(x2 - 9 * dx - 4.5 * dy) " " c(y2 - 9 * dy + 4.5 * dx) "z", "head")
}

# ---- plots: gnuplot's SVG, reduced to lines, areas, points and text, with the page's colours

# What gnuplot shall draw with: line or text colour number k stands for a class of ours.
function colour(k) { return sprintf("rgb \"#0000%02x\"", k) }
function class_of(s,    f) {
  gsub(/.*rgb\( */, "", s)
  split(s, f, /[ ,)]+/)
  return PLOT_CLASS[f[3] + 0]
}
function gnuplot_head(height) {
  return "set terminal svg size 680," height " font \"sans,15\"\nunset key\nset border 3 lc " colour(4) "\nset tics nomirror out scale 0.5 tc " colour(10) "\nset samples 200\n"
}
function attribute(tag, name,    s) {
  if (!match(tag, "[ \t\n]" name " ?= ?['\"][^'\"]*")) return ""
  s = substr(tag, RSTART, RLENGTH)
  sub(/^[^'"]*['"]/, "", s)
  return s
}
function plot(script,    command, tag, f, x, y, class, anchor, words, seen, d, line_end, drawn) {
  command = "gnuplot <<'END_OF_PLOT'\n" script "\nEND_OF_PLOT"
  line_end = RS
  RS = ">"
  while ((command | getline tag) > 0) {
    if (tag ~ /<path [^i]/ && tag ~ /rgb\(/) {
      d = attribute(tag, "d")
      gsub(/[ \t\n]+/, " ", d)
      class = class_of(attribute(tag, tag ~ /fill ?=/ ? "fill" : "stroke"))
      if (!((d, class) in seen)) path(d, class)
      seen[d, class] = 1
      drawn++
    } else if (tag ~ /<polygon/) {
      d = attribute(tag, "points")
      gsub(/[ \t\n]+/, " ", d)
      printf "<polygon points=\"%s\" class=\"%s\"/>\n", d, class_of(attribute(tag, "fill"))
    } else if (tag ~ /<use .*translate.*rgb\(/) {
      split(attribute(tag, "transform"), f, /[(,)]/)
      circle(f[2], f[3], 4, POINT_CLASS[class_of(attribute(tag, "color"))])
    } else if (tag ~ /<g transform/) {
      split(attribute(tag, "transform"), f, /[(,)]/)
      x = f[2]; y = f[3]; words = ""
      class = class_of(attribute(tag, "fill")); anchor = attribute(tag, "text-anchor")
    } else if (tag ~ /<\/tspan$/) {
      sub(/<\/tspan$/, "", tag)
      words = words tag
    } else if (tag ~ /<\/text$/) {
      gsub(/^[ \n\t]+|[ \n\t]+$/, "", words)
      gsub(/&lt;/, "<", words); gsub(/&amp;/, "\\&", words)
      if (words != "") text(x, y, words, class, anchor == "start" ? "" : anchor)
    }
  }
  RS = line_end
  if (close(command) || !drawn) fail("gnuplot failed, or its SVG has another form than this script knows")
}

BEGIN {
  INK = "var(--ink,#1f2430)"; MUTED = "var(--muted,#5b6472)"; LINE = "var(--line,#c5cbd4)"; PAPER = "var(--paper,#ffffff)"
  A1 = "var(--accent,#2563eb)"; A2 = "var(--accent2,#c2410c)"; A3 = "var(--accent3,#0f766e)"
  F1 = "var(--fill1,#dbe7fd)"; F2 = "var(--fill2,#fde3d0)"; F3 = "var(--fill3,#cdeee7)"
  # text
  STYLE = "text{font-family:var(--sans,sans-serif);font-size:15px;fill:" INK "}\n.s{font-size:14px}\n.m{fill:" MUTED "}\n.b{font-weight:600}\n.p{fill:" PAPER "}"
  STYLE = STYLE "\n.t1{fill:" A1 "}\n.t2{fill:" A2 "}\n.t3{fill:" A3 "}\n.o{stroke:" PAPER ";stroke-width:4px;paint-order:stroke}"
  # areas
  STYLE = STYLE "\n.a1{fill:" A1 "}\n.a2{fill:" A2 "}\n.a3{fill:" A3 "}\n.f1{fill:" F1 "}\n.f2{fill:" F2 "}\n.f3{fill:" F3 "}"
  STYLE = STYLE "\n.g{fill:" LINE "}\n.gm{fill:" MUTED "}\n.paper{fill:" PAPER "}\n.e{stroke:" PAPER ";stroke-width:1}"
  STYLE = STYLE "\n.i{fill:" INK "}"
  STYLE = STYLE "\n.h1{fill:" A1 ";fill-opacity:.72}"
  # lines
  STYLE = STYLE "\n.l{fill:none;stroke:" LINE ";stroke-width:1}\n.k{fill:none;stroke:" INK ";stroke-width:1.5}\n.lm{fill:none;stroke:" MUTED ";stroke-width:1}"
  STYLE = STYLE "\n.dash{fill:none;stroke:" MUTED ";stroke-width:1;stroke-dasharray:4 3}\n.bd{stroke:" MUTED ";stroke-width:1}"
  STYLE = STYLE "\n.sd{fill:none;stroke:" A2 ";stroke-width:2;stroke-dasharray:4 4}"
  STYLE = STYLE "\n.s1{fill:none;stroke:" A1 ";stroke-width:2.5}\n.s2{fill:none;stroke:" A2 ";stroke-width:2.5}\n.s3{fill:none;stroke:" A3 ";stroke-width:2.5}"
  STYLE = STYLE "\n.fd1{fill:none;stroke:" A1 ";stroke-width:1.5;stroke-dasharray:4 4}\n.fd3{fill:none;stroke:" A3 ";stroke-width:1.5;stroke-dasharray:4 4}"
  STYLE = STYLE "\n.arrow{fill:none;stroke:" MUTED ";stroke-width:1.5}\n.head{fill:" MUTED "}"
  split("s1 s2 s3 l k dash - - - m - t1 t2 t3 b a1 a2 a3 f1 f2 f3", PLOT_CLASS, " ")
  PLOT_CLASS[11] = ""
  POINT_CLASS["s1"] = "a1"; POINT_CLASS["s2"] = "a2"; POINT_CLASS["s3"] = "a3"; POINT_CLASS["k"] = "i"
}
