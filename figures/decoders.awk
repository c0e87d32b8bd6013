# One token of each chapter's decoder: its kernels and the gaps between them, and a stretch of it enlarged. Kernels and gaps are
# drawn equally long, because only their number and sums are measured. decoders is context 1, decoders-4096 the other.
function stripes(x, y, w, high, busy, idle, count, limit,    k, each, gap, at, d) {
  # `w` units stand for the token's time; at most `limit` units are drawn.
  each = w * busy / (busy + idle) / count; gap = w * idle / (busy + idle) / count
  for (k = 0; k < count && at < limit; k++) {
    d[k % 2] = d[k % 2] box(x + at, y, min(each, limit - at), high)
    at += each + gap
  }
  path(d[0], "a1"); path(d[1], "h1")
}
BEGIN {
  t = "h200-ladder"; context = NAME ~ /-4096$/ ? 4096 : 1
  read_table(t)
  for (i = 1; i <= N[t]; i++)
    if (CELL[t, i, "context"] == context) { row[++n] = i; most = max(most, CELL[t, i, "ms"]) }
  for (k = 2; k <= n; k++) # the table begins with what the others are compared with
    for (j = k; j > 1 && CELL[t, row[j - 1], "chapter"] > CELL[t, row[j], "chapter"]; j--) { i = row[j]; row[j] = row[j - 1]; row[j - 1] = i }
  if (!n) fail("measured/" t ".tsv: no row at context " context)
  window = 40 # µs enlarged
  left = 196; wide = 680 - left - 70; step = 46
  for (k = 1; k <= n; k++) {
    i = row[k]
    desc = desc " " CELL[t, i, "chapter"] ": " CELL[t, i, "kernels"] " kernels, " CELL[t, i, "ms"] " ms, " CELL[t, i, "idle_us"] " µs idle, the host at work for " CELL[t, i, "host_us"] "."
  }
  begin(NAME, "One token of each decoder, context " commas(context), "What the card does during one token of each chapter's decoder at context " commas(context) " on an H200; kernels and the gaps between them are drawn equally long." desc, 64 + 2 * n * step + 18)
  text(left, 18, "one token", "b"); text(680, 18, "ms", "m", "end")
  for (k = 1; k <= n; k++) {
    i = row[k]; y = 30 + (k - 1) * step
    ms = CELL[t, i, "ms"]; idle = CELL[t, i, "idle_us"] + 0
    count = CELL[t, i, "kernels"] < 1 ? 1 : CELL[t, i, "kernels"] # one launch may be many tokens
    text(0, y + 14, chapter_name(CELL[t, i, "chapter"]))
    text(0, y + 34, kernels(CELL[t, i, "kernels"]), "m s")
    rect(left, y, wide * ms / most, 30, "g")
    stripes(left, y, wide * ms / most, 30, ms * 1e3 - idle, idle, count, wide)
    rect(left, y + 32, min(wide * CELL[t, i, "host_us"] / 1e3 / most, 680 - left), 4, "a2")
    text(left + wide * ms / most + 8, y + 20, sprintf("%.2f", ms))
  }
  y0 = 30 + n * step + 34
  text(left, y0 - 12, window " µs of it", "b")
  text(680, y0 - 12, "µs idle", "m", "end")
  for (k = 1; k <= n; k++) {
    i = row[k]; y = y0 + (k - 1) * step
    ms = CELL[t, i, "ms"]; idle = CELL[t, i, "idle_us"] + 0
    count = CELL[t, i, "kernels"] < 1 ? 1 : CELL[t, i, "kernels"]
    text(0, y + 20, chapter_name(CELL[t, i, "chapter"]))
    rect(left, y, wide, 30, "g")
    stripes(left, y, wide * ms * 1e3 / window, 30, ms * 1e3 - idle, idle, count, wide)
    text(left + wide + 8, y + 20, sprintf("%.0f", idle))
  }
  text(left, y0 + n * step + 10, "line below a bar: the host at work", "t2")
  finish()
}
function kernels(v) { return v == 1 ? "1 kernel" : v < 1 ? sprintf("1 in %.0f tokens", 1 / v) : commas(v) " kernels" }
