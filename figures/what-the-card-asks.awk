# How many workers it takes to read at the full rate, and what a barrier costs, on a small card and on a large one.
function series(n, xs, ys,    i, s) {
  for (i = 1; i <= n; i++) s = s xs[i] " " ys[i] "\n"
  return s "e\n"
}
# One panel between `from` and `to`, both in units of the figure; the first point at nine tenths of the full rate is named.
function panel(from, to, n, xs, ys, all,    i, knee, s, xt, yt) {
  for (i = 1; i <= n && ys[i] < .9 * ys[n]; i++);
  knee = i
  s = "set lmargin at screen " from / 680 "\nset rmargin at screen " to / 680 "\nset tmargin at screen 0.86\nset bmargin at screen 0.15\n"
  s = s "set xrange [0:" all * 1.04 "]\nset yrange [0:" ys[n] * 1.18 "]\nset xtics (1, " xs[knee] ", " all ")\nset ytics (0, '" commas(ys[n]) "' " ys[n] ")\n"
  s = s "unset label\nset label 1 '" xs[knee] " of " all " workers' at " all * .36 "," ys[n] * .5 " left tc " colour(12) "\n"
  s = s "set label 2 'read " sprintf("%.0f%%", 100 * ys[knee] / ys[n]) "' at " all * .36 "," ys[n] * .37 " left tc " colour(12) "\n"
  s = s "set arrow 1 from " xs[knee] "," ys[n] * .6 " to " xs[knee] "," ys[knee] * .97 " nohead lc " colour(6) "\n"
  s = s "plot '-' with linespoints lc " colour(1) " lw 2 pt 7\n"
  s = s series(n, xs, ys)
  return s
}
function barriers(    w, n) {
  for (w = 0; w < KEY["waves"]; w++) n += WAVE[w, "waits"] == "always"
  return n
}
function row(what, a, b) {
  text(8, y, what, "m")
  text(60, y + 25, a)
  text(400, y + 25, b)
  y += 62
  if (y < 500) line(0, y - 23, 680, y - 23, "l")
}
BEGIN {
  read_plan(small_card(), 1)
  small_workers = KEY["workers"]; small_rate = KEY["read_gbs"]; small_barrier = KEY["barrier_us"]; small_n = barriers(); small_floor = KEY["floor_ms"]
  sx[1] = 1; sy[1] = KEY["worker_gbs"]
  sx[2] = 8; sy[2] = given("rtx3050_eight_sms_gbs")
  sx[3] = small_workers; sy[3] = small_rate
  read_plan("h200", 1, "barrier")
  t = "h200-sweep"
  read_table(t)
  for (i = 1; i <= N[t]; i++) { hx[i] = CELL[t, i, "workers"]; hy[i] = CELL[t, i, "read_gbs"] }
  workers = hx[N[t]]; rate = hy[N[t]]
  begin(NAME, "What the card asks", "Read rate against the number of workers that read. The RTX 3050, as published: " sy[1] " GB/s from one of " small_workers " and " sy[2] " from eight, of " small_rate ". The H200, as measured: " hy[1] " GB/s from one of " workers ", " rate " from all. Below, what one barrier of a token takes on average, by the account of a traced one, and what all of them cost on each.", 510)
  text(60, 20, sprintf("RTX 3050: %.0f GB/s", small_rate), "b")
  text(400, 20, "H200: " commas(rate) " GB/s", "b")
  plot(gnuplot_head(300) "set multiplot\n" panel(60, 310, 3, sx, sy, small_workers) panel(400, 672, N[t], hx, hy, workers) "unset multiplot")
  text(185, 306, "workers", "m", "middle")
  text(536, 306, "workers", "m", "middle")
  y = 350
  row("a barrier of a token, on average", small_barrier " µs", KEY["barrier_us"] " µs")
  row("what the card reads in that time", size(small_barrier * small_rate * 1e3), size(KEY["barrier_us"] * KEY["read_gbs"] * 1e3))
  row("all barriers of a token", sprintf("%d: %.1f%% of the floor", small_n, small_n * small_barrier / small_floor / 10), sprintf("%d: %.0f%% of the floor", barriers(), barriers() * KEY["barrier_us"] / KEY["floor_ms"] / 10))
  finish()
}
