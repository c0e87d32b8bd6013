# One layer as waves: who has a tile, and where everybody waits.
BEGIN {
  read_plan(small_card(), 4096)
  left = 34; top = 56; step = 11; layer = 8
  workers = KEY["workers"]
  bottom = top + workers * step
  n = 0
  for (w = 0; w < KEY["waves"]; w++)
    if (WAVE[w, "layer"] == layer) { wave[n++] = w; at[w] = n - 1 }
  column = (678 - left) / n
  for (i = 0; i < TILES; i++) {
    w = TILE[i, "wave"]
    if (w in at) d[w] = d[w] box(left + at[w] * column + 5, top + TILE[i, "worker"] * step + 1, column - 13, step - 2)
  }
  begin(NAME, "One layer as waves and barriers", "Layer " layer " as " n " waves on " workers " workers. A filled cell is a tile; a worker without one waits at the barrier that ends the wave. The barrier after scores is skipped up to a context of " KEY["fused_context"] ". Columns are not to scale: predicted times stand below.", bottom + 92)
  text(left - 6, top + 11, 0, "m s", "end")
  text(left - 6, bottom - 1, workers - 1, "m s", "end")
  for (k = 0; k < n; k++) {
    w = wave[k]; x = left + k * column
    parts = split(WAVE[w, "op"], name, "_")
    text(x + column / 2 - 2, top - 32 + (parts == 1 ? 22 : 0), name[1], "b", "middle")
    if (parts > 1) text(x + column / 2 - 2, top - 10, name[2], "b", "middle")
    rect(x + 5, top, column - 13, workers * step, "paper")
    path(box(x + 5, top, column - 13, workers * step), "l")
    path(d[w], WAVE[w, "op"] ~ /scores|values/ ? "a3" : WAVE[w, "bytes"] ? "a1" : "gm")
    text(x + column / 2 - 2, bottom + 22, sprintf("%.0f µs", WAVE[w, "us"]), "", "middle")
    if (WAVE[w, "waits"] == "split") { path("M" c(x + column) " " top - 8 "V" bottom + 42, "sd"); skip = x + column }
    else path("M" c(x + column - 1.5) " " top - 8 "V" bottom + 8, "s2")
  }
  text(left + column, bottom + 56, "skipped up to " KEY["fused_context"] " positions", "t2")
  text(left + column, bottom + 82, "solid: everybody waits", "t2")
  text(680, bottom + 56, n " waves × " KEY["layers"] " + 3", "m", "end")
  text(680, bottom + 82, "= " KEY["waves"] " a token", "m", "end")
  finish()
}
