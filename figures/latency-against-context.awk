# ms/token against context: plan of waves, tape, PyTorch; labels are shares of the floor.
function log2(v) { return log(v) / log(2) }
function points(n, xs, ys,    i, s) {
  for (i = 1; i <= n; i++) s = s log2(xs[i]) " " ys[i] "\n"
  return s "e\n"
}
function label(x, y, s, k, align) { LABELS = LABELS "set label \"" s "\" at " log2(x) "," y " " align " tc " colour(k) "\n" }
function tick(x) { return "\"" commas(x) "\" " log2(x) }
BEGIN {
  read_table(b = "h200-bench"); read_table(t = "h200-tape"); read_table(p = "h200-torch")
  for (i = 1; i <= N[b]; i++)
    if (CELL[b, i, "model"] == "llama-3.2-1b") {
      wx[++nw] = CELL[b, i, "context"]; wy[nw] = CELL[b, i, "ms"]; fy[nw] = CELL[b, i, "floor_ms"]; ws[nw] = CELL[b, i, "share_percent"]
    }
  for (i = 1; i <= N[t]; i++)
    if (CELL[t, i, "variant"] == "tape" && CELL[t, i, "model"] == "llama-3.2-1b" && CELL[t, i, "run"] == 1) {
      tx[++nt] = CELL[t, i, "context"]; ty[nt] = CELL[t, i, "ms"]; ts[nt] = CELL[t, i, "share_percent"]
    }
  for (i = 1; i <= N[p]; i++)
    if (CELL[p, i, "model"] == "llama-3.2-1b") {
      if (CELL[p, i, "arm"] == "plain, CUDA graph") { gx[++ng] = CELL[p, i, "context"]; gy[ng] = CELL[p, i, "ms"] }
      if (CELL[p, i, "arm"] == "inductor, CUDA graph") { ix[++ni] = CELL[p, i, "context"]; iy[ni] = CELL[p, i, "ms"] }
    }
  if (!nw || !nt || !ng || !ni) fail("a series is missing from its table")
  top = max(gy[1], gy[ng]) * 1.16
  last = wx[nw]
  gap = top / 23
  for (i = 1; i <= nw; i++)
    if (i < nw && wx[i] != 16384) label(wx[i], wy[i] + gap, sprintf("%.0f%%", ws[i]), 12, i == 1 ? "left" : "center")
  for (i = 1; i <= nt; i++)
    if (i < nt && tx[i] != 16384) label(tx[i], ty[i] - gap * 1.05, sprintf("%.0f%%", ts[i]), 13, i == 1 ? "left" : "center")
  x = last * 1.45
  label(x, wy[nw], sprintf("waves %.0f%%", ws[nw]), 12, "left"); label(x, ty[nt], sprintf("tape %.0f%%", ts[nt]), 13, "left"); label(x, fy[nw], "floor", 10, "left")
  label(sqrt(gx[1] * gx[ng]), gy[ng] + gap * 1.1, "PyTorch, CUDA graph", 11, "center")
  label(sqrt(ix[1] * ix[ni]), iy[ni] + gap * 1.1, "inductor, CUDA graph", 11, "center")
  begin(NAME, "Latency against context", "Milliseconds a token of Llama 3.2 1B on an H200. Waves: " wy[1] " ms at context 1 and " wy[nw] " at " commas(last) "; tape: " ty[1] " and " ty[nt] ". Labels are shares of the floor, the lowest line. PyTorch's CUDA graph takes " gy[1] " to " gy[ng] " ms, compiled by inductor " iy[1] " to " iy[ni] ".", 476)
  text(0, 20, "ms a token", "m")
  script = gnuplot_head(446) "set lmargin at screen 0.075\nset rmargin at screen 0.79\nset tmargin at screen 0.93\nset bmargin at screen 0.07\n"
  script = script "set xrange [-0.3:" log2(last) + .2 "]\nset yrange [0:" top "]\nset ytics .5\nset format y '%.1f'\nset xtics (" tick(1) ", " tick(512) ", " tick(4096) ", " tick(last) ")\n"
  script = script LABELS "plot '-' with lines lc " colour(6) ", '-' with linespoints pt 7 lc " colour(5) ", '-' with linespoints pt 7 lc " colour(5) ", '-' with linespoints pt 7 lc " colour(1) ", '-' with linespoints pt 7 lc " colour(2) "\n"
  plot(script points(nw, wx, fy) points(ng, gx, gy) points(ni, ix, iy) points(nw, wx, wy) points(nt, tx, ty))
  text(340, 470, "context, positions", "m", "middle")
  finish()
}
