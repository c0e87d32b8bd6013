# One token on the clock at two contexts: some workers' tiles, where a timeline was measured, and the account of the time.
function part(x, us, class, label,    w) {
  w = us * scale
  rect(x, y, w, 34, class)
  if (w > 46) text(x + w / 2, y + 23, sprintf("%.0f", us), label, "middle")
  return x + w
}
function op_class(op) { return op ~ /attend|scores|values|merge/ ? 3 : op ~ /qkv|wo|ffn$|gate_up|down|lm_head/ ? 1 : 2 }
# Lanes of all rows of a context between two moments: one path a class.
function lanes(context, from, to, high,    i, k, d, b, e, s, j) {
  s = 680 / (to - from)
  for (i = 1; i <= N[t]; i++) {
    if (CELL[t, i, "context"] != context) continue
    b = CELL[t, i, "begin_us"]; e = CELL[t, i, "end_us"]
    if (e <= from || b >= to || e - b < .3 / s) continue
    b = max(b, from); e = min(e, to)
    j = lane[CELL[t, i, "worker"]]
    k = op_class(CELL[t, i, "op"])
    d[k] = d[k] box((b - from) * s, y + j * high, (e - b) * s, high - 1)
  }
  path(d[1], "a1"); path(d[3], "a3"); path(d[2], "gm")
}
# Where a wave of layer 8 begins and ends, over all rows of the context.
function window(context, layer,    i, o) {
  from = 1e9; to = 0
  split("", op_from); split("", op_to)
  ops = 0
  for (i = 1; i <= N[t]; i++) {
    if (CELL[t, i, "context"] != context || CELL[t, i, "layer"] != layer || CELL[t, i, "op"] ~ /embed|final_norm|lm_head/) continue
    o = CELL[t, i, "op"]
    from = min(from, CELL[t, i, "begin_us"]); to = max(to, CELL[t, i, "end_us"])
    if (!(o in op_from)) named[ops++] = o
    if (!(o in op_from) || CELL[t, i, "begin_us"] < op_from[o]) op_from[o] = CELL[t, i, "begin_us"]
    op_to[o] = max(op_to[o], CELL[t, i, "end_us"])
  }
  if (!to) fail("measured/" t ".tsv: no layer " layer " at context " context)
}
function swatch(x, class, s) { rect(x, 5, 14, 14, class); text(x + 20, 18, s) }
BEGIN {
  a = "h200-account"; t = "h200-timeline"
  read_table(a)
  timed = exists(t)
  contexts = split("1 4096", context, " ")
  for (i = 1; i <= contexts; i++) token[i] = cell(a, "us", "context", context[i], "part", "token")
  if (timed) {
    read_table(t)
    for (i = 1; i <= N[t]; i++)
      if (!(CELL[t, i, "worker"] in lane)) lane[CELL[t, i, "worker"]] = workers++
  }
  high = 8
  block = timed ? 2 * workers * high + 170 : 94
  desc = "One token of Llama 3.2 1B on an H200, plan of waves: " token[1] " µs at context 1, " token[2] " at 4,096."
  for (i = 1; i <= contexts; i++)
    desc = desc " At context " commas(context[i]) " ideal streaming takes " cell(a, "us", "context", context[i], "part", "ideal streaming") " µs, GEMV below it " cell(a, "us", "context", context[i], "part", "GEMV below it") ", barriers " cell(a, "us", "context", context[i], "part", "barriers") ", attention " cell(a, "us", "context", context[i], "part", "attention") ", small operations " cell(a, "us", "context", context[i], "part", "small operations") "."
  if (timed) desc = desc " Above each account, " workers " of the workers: weights, attention, small operations, gaps are waiting; then layer 8 alone."
  begin(NAME, "One token on the clock", desc, 34 + contexts * block - 6)
  swatch(0, "a1", "ideal stream"); swatch(170, "f1", "GEMV below it"); swatch(358, "a2", "barriers"); swatch(484, "a3", "attention")
  y = 34
  longest = max(token[1], token[2])
  for (k = 1; k <= contexts; k++) {
    n = context[k]
    scale = 680 / longest
    text(0, y + 22, "context " commas(n) ": " sprintf("%.0f", token[k]) " µs", "b")
    y += 34
    if (timed) {
      lanes(n, 0, longest, high)
      window(n, 8)
      path("M" c(from * scale) " " c(y + workers * high + 2) "V" c(y + workers * high + 8) "L0 " c(y + workers * high + 32) "M" c(to * scale) " " c(y + workers * high + 2) "V" c(y + workers * high + 8) "L680 " c(y + workers * high + 32), "lm")
      text(min(max((from + to) / 2 * scale, 86), 594), y + workers * high + 30, sprintf("layer 8: %.0f µs", to - from), "m", "middle")
      y += workers * high + 34
      lanes(n, from, to, high)
      y += workers * high
      for (i = 0; i < ops; i++) {
        o = named[i]
        x = (op_from[o] + op_to[o]) / 2
        text(min(max((x - from) * 680 / (to - from), 18), 650), y + 18, o == "gate_up" ? "gate, up" : o, "m s", "middle")
      }
      y += 34
    }
    x = part(0, cell(a, "us", "context", n, "part", "ideal streaming"), "a1", "p b")
    x = part(x, cell(a, "us", "context", n, "part", "GEMV below it"), "f1", "b")
    x = part(x, cell(a, "us", "context", n, "part", "barriers"), "a2", "p b")
    x = part(x, cell(a, "us", "context", n, "part", "attention"), "a3", "p b")
    part(x, cell(a, "us", "context", n, "part", "small operations"), "gm", "")
    y += block - 34 - (timed ? 2 * workers * high + 68 : 0)
  }
  finish()
}
