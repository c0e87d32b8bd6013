# Bytes a worker in the waves of layer 8 and in lm_head. The name says the context: assignment is 4,096, assignment-1 is 1.
BEGIN {
  context = NAME ~ /-1$/ ? 1 : 4096
  read_plan(small_card(), context)
  left = 120; step = 62; top = 4; high = 38
  workers = KEY["workers"]
  n = 0
  for (w = 0; w < KEY["waves"]; w++)
    if (WAVE[w, "bytes"] && (WAVE[w, "layer"] == 8 || WAVE[w, "op"] == "lm_head")) {
      at[w] = n; wave[n++] = w
    }
  for (i = 0; i < TILES; i++) {
    w = TILE[i, "wave"]
    if (w in at) bytes[w, TILE[i, "worker"]] += TILE[i, "bytes"]
  }
  each = (680 - left) / workers
  begin(NAME, "Bytes a worker, context " commas(context), "The static assignment at context " commas(context) ": for each wave of layer 8 that reads weights or K/V, and for lm_head, one column a worker, as high as the bytes it reads. An empty frame is a worker with nothing to read: it waits.", n * step + 26)
  for (k = 0; k < n; k++) {
    w = wave[k]; base = top + k * step + high; idle = ""; full = ""; least = most = ""
    for (j = 0; j < workers; j++) {
      b = bytes[w, j]
      if (!b) { idle = idle box(left + j * each + 2, base - high, each - 4, high); continue }
      h = high * b / WAVE[w, "worker_bytes"]
      full = full box(left + j * each + 2, base - h, each - 4, h)
      if (least == "" || b < least) least = b
    }
    path(full, WAVE[w, "op"] ~ /scores|values/ ? "a3" : "a1")
    path(idle, "dash")
    line(left, base + .5, 680, base + .5, "l")
    text(0, base - 20, WAVE[w, "op"], "b")
    text(0, base + 2, size(WAVE[w, "worker_bytes"]), "m")
  }
  y = top + n * step + 14
  text(0, y, "worker", "m")
  for (j = 0; j < workers; j += 5) text(left + (j + .5) * each, y, j, "m", "middle")
  text(left + (workers - .5) * each, y, workers - 1, "m", "middle")
  finish()
}
