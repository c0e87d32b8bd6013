# Two megakernels for the same model: one decides while it runs, the other has decided.
function row(label, a, b) {
  text(pad, y, label, "m")
  text(pad, y + 25, a, "")
  text(right, y + 25, b, "")
  line(0, y + 39, 680, y + 39, "l")
  y += 64
}
# Busy stretches of a lane, from and to in units of the panel's width.
function lane(x, y, list, class,    f, n, i) {
  n = split(list, f, " ")
  for (i = 1; i < n; i += 2) rect(x + f[i], y, f[i + 1] - f[i] - 2, 18, class)
}
BEGIN {
  read_plan(small_card(), 1)
  pad = 8; right = 356; wide = 306
  for (w = 0; w < KEY["waves"]; w++) met += WAVE[w, "waits"] == "always"
  percent = given("hazy_h100_percent"); nominal = given("h100_nominal_gbs")
  floor_h100 = KEY["weight_bytes"] / nominal / 1e6
  begin(NAME, "Two designs of a megakernel", "Left, after Hazy Research: an interpreter on every SM starts an instruction when counters say that its inputs are ready, and meanwhile loads the next one's weights. Right, this book's first plan: " commas(KEY["tiles"]) " tiles in " KEY["waves"] " waves, each on a fixed worker, with " met " barriers between waves at context 1. Shares: of the data sheet's bandwidth on the left, of a measured one on the right. Widths are not to scale.", 522)
  text(pad, 18, "decided while it runs", "b")
  text(right, 18, "decided before", "b")
  text(pad, 42, "H100, interpreter", "m")
  text(right, 42, KEY["target"] == "rtx-3050" ? "RTX 3050, static plan" : KEY["target"] ", static plan", "m")
  # Left: lanes out of step; a counter lets one start when another has ended.
  top = 60
  lane(pad, top, "0 66 72 150 156 236 242 308", "f1")
  lane(pad, top + 28, "0 52 58 122 132 216 222 308", "f1")
  lane(pad, top + 56, "0 76 82 136 146 226 232 308", "f1")
  lane(pad, top + 84, "0 58 68 144 150 206 212 308", "f1")
  arrow(61, top + 34, 79, top + 15); arrow(67, top + 90, 89, top + 71); arrow(131, top + 40, 153, top + 60)
  arrow(225, top + 34, 249, top + 15); arrow(215, top + 90, 239, top + 71)
  # Right: a layer's waves from the plan, four workers, widths by predicted time of all that can be seen beside the FFN.
  n = 0
  for (w = 0; w < KEY["waves"]; w++)
    if (WAVE[w, "layer"] == 8) { wave[n++] = w; total += (WAVE[w, "us"] + 30) }
  for (i = 0; i < TILES; i++) has[TILE[i, "wave"], TILE[i, "worker"]] = TILE[i, "bytes"] + 1
  x = right
  for (k = 0; k < n; k++) {
    w = wave[k]; wx = wide * (WAVE[w, "us"] + 30) / total
    for (j = 0; j < 4; j++) {
      worker = int((j + .5) * KEY["workers"] / 4)
      if ((w, worker) in has && (has[w, worker] > 1 || !WAVE[w, "bytes"]))
        rect(x, top + j * 28, wx - 6, 18, WAVE[w, "op"] ~ /scores|values/ ? "f3" : WAVE[w, "bytes"] ? "f1" : "g")
    }
    if (WAVE[w, "waits"] == "always") path("M" c(x + wx - 3) " " top - 6 "V" top + 108, "s2")
    x += wx
  }
  y = 208
  row("an SM's next work", "what counters allow", "its own list, in order")
  row("the next weights", "loaded meanwhile", "after the barrier")
  row("a token", "instructions, counters", commas(KEY["tiles"]) " tiles, " KEY["waves"] " waves")
  row("reading the weights takes", sprintf("%.2f ms at %.2f TB/s", floor_h100, nominal / 1e3), sprintf("%.2f ms at %.0f GB/s", KEY["weight_bytes"] / KEY["read_gbs"] / 1e6, KEY["read_gbs"]))
  row("share of that rate, published", percent "% of the data sheet's", sprintf("%.0f%% of a measured rate", 100 * KEY["floor_ms"] / given("rtx3050_ms")))
  finish()
}
