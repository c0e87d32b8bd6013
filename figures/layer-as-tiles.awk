# How one layer becomes tiles: each bar is a wave's output, cut into one tile a worker.
function range(w,    i, lo, hi, r, n) {
  for (i = 0; i < TILES; i++)
    if (TILE[i, "wave"] == w) {
      r = TILE[i, "row1"] - TILE[i, "row0"]
      if (!n++ || r < lo) lo = r
      if (r > hi) hi = r
    }
  return lo == hi ? lo : lo " or " hi
}
function bar(w,    i, k, count, slot, x, at, order, rows, part, wide) {
  for (i = 0; i < TILES; i++)
    if (TILE[i, "wave"] == w) {
      slot = TILE[i, "part"] * 1e6 + TILE[i, "row0"]
      if (WAVE[w, "op"] == "ffn") slot = TILE[i, "row0"]
      # insertion in the order of the output
      for (k = count++; k > 0 && at[k - 1] > slot; k--) { at[k] = at[k - 1]; order[k] = order[k - 1] }
      at[k] = slot; order[k] = i
      rows += TILE[i, "row1"] - TILE[i, "row0"]
    }
  x = left
  for (k = 0; k < count; k++) {
    i = order[k]
    wide = (680 - left) * (TILE[i, "row1"] - TILE[i, "row0"]) / rows
    rect(x + .75, y, wide - 1.5, 28, WAVE[w, "op"] ~ /scores|values/ ? "f3" : WAVE[w, "bytes"] ? "f1" : "g")
    text(x + wide / 2, y + 20, TILE[i, "worker"], "s", "middle")
    x += wide
  }
  return rows
}
function wave(op, what, label,    w) {
  w = wave_of(op, 8)
  if (w < 0) fail("no " op " wave in layer 8")
  bar(w)
  split(op, name, "_")
  text(0, y + 20, label ? label : op, "b")
  text(left, y + 49, what, "m")
  y += 72
}
BEGIN {
  read_plan(small_card(), 4096)
  left = 92; y = 4
  begin(NAME, "How one layer becomes tiles", "Six bars, one a wave of layer 8. Each is the wave's output cut into tiles, and each tile bears its worker's number. Rows are split evenly over " KEY["workers"] " workers; attention is one tile a K/V head and context chunk.", 6 * 72 - 8)
  qkv = (KEY["heads"] + 2 * KEY["kv_heads"]) * KEY["head_dim"]
  attend = KEY["kv_heads"] " K/V heads × " KEY["chunks"] " context chunks"
  wave("qkv", commas(qkv) " rows: " range(wave_of("qkv", 8)) " a tile")
  wave("scores", attend)
  wave("values", attend)
  wave("wo", commas(KEY["hidden"]) " rows: " range(wave_of("wo", 8)) " a tile")
  wave("ffn", commas(KEY["inter"]) " rows, " range(wave_of("ffn", 8)) " a tile: a partial sum")
  wave("ffn_reduce", KEY["workers"] " sums into " commas(KEY["hidden"]) " rows: " range(wave_of("ffn_reduce", 8)), "reduce")
  finish()
}
