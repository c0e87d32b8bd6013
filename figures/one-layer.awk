# One layer, operation by operation, and what each reads.
function op(name, bytes, class, note) {
  y = top + n * step
  text(0, y + 14, name, bytes > 1e5 ? "" : "m")
  w = bytes * scale
  if (bytes > 1e5) rect(left, y, w, 18, class)
  else line(left, y + 1, left, y + 17, "k")
  text(left + w + 8, y + 14, note ? note : bytes ? size(bytes) : "", bytes > 1e5 ? "" : "m")
  total += bytes
  n++
}
# The operations from the last bracket on belong to one kind of tile.
function tile(name, second) {
  from = top + last * step; to = top + n * step - 9
  path("M572 " c(from) "h7V" c(to) "h-7", "lm")
  text(588, (from + to) / 2 + (second ? -4 : 6), name, "b")
  if (second) text(588, (from + to) / 2 + 18, second, "b")
  last = n
}
BEGIN {
  read_plan(small_card(), 4096)
  top = 6; step = 27; left = 160
  row = KEY["hidden"] * KEY["dtype_bytes"]; kv = KEY["kv_heads"] * KEY["head_dim"]
  positions = KEY["context"]
  q = KEY["heads"] * KEY["head_dim"] * row
  up = KEY["inter"] * row
  if (2 * kv * row + q != WAVE[wave_of("qkv", 0), "bytes"] || 3 * up != WAVE[wave_of("ffn", 0), "bytes"]) fail("the plan's bytes are not the shape's")
  scale = 300 / up
  layer = q * 2 + kv * 2 * row + 3 * up
  begin(NAME, "One layer", "Every operation of one layer for one token, in order, with the bytes it reads. Seven matrices hold " size(layer) ", " sprintf("%.0f%%", 300 * up / layer) " of it in the FFN; norms, RoPE, SiLU and residuals read almost nothing, but each needs all of what came before. Brackets name the tiles that do the work.", top + 14 * step + 4)
  op("RMSNorm", row)
  op("Q", q, "a1"); op("K", kv * row, "a1"); op("V", kv * row, "a1")
  tile("qkv")
  op("RoPE", 0)
  kvb = 2 * kv * KEY["dtype_bytes"] * positions
  op("attention", kvb, "a3", size(kvb) " at " commas(positions))
  tile("scores,", "values")
  op("O", q, "a1"); op("+ residual", 0)
  tile("wo")
  op("RMSNorm", row)
  op("gate", up, "a1"); op("up", up, "a1"); op("SiLU × up", 0); op("down", up, "a1")
  tile("ffn")
  op("+ residual", 0)
  tile("reduce")
  finish()
}
