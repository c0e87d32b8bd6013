# The model as the bytes that one token reads: areas are bytes.
BEGIN {
  read_plan(small_card(), 4096)
  left = 92; width = 680 - left; top = 34; height = 180
  layers = KEY["layers"]
  for (w = 0; w < KEY["waves"]; w++) bytes[WAVE[w, "op"]] = WAVE[w, "bytes"]
  layer = bytes["qkv"] + bytes["wo"] + bytes["ffn"]
  total = layers * layer + bytes["lm_head"]
  kv = KEY["kv_bytes_per_position"]
  row = KEY["hidden"] * KEY["dtype_bytes"]
  begin(NAME, "A decoder as bytes", "What one token of " KEY["shape"] " reads, areas to scale: " layers " layers of " size(layer) " each, and lm_head, " size(bytes["lm_head"]) ". The K/V cache adds " commas(kv) " bytes a position, " size(KEY["kv_bytes"]) " at context " commas(KEY["context"]) ".", top + height + 136)
  each = width * layer / total
  span = each * layers
  text(left + span / 2, top - 12, layers " layers of " size(layer) ": " sprintf("%.0f%%", 100 * layers * layer / total), "b", "middle")
  text(680, top - 12, "lm_head: " sprintf("%.0f%%", 100 * bytes["lm_head"] / total), "b", "end")
  n = split("qkv wo ffn", op, " ")
    for (i = 1; i <= n; i++) {
    h = height * bytes[op[i]] / layer
    for (l = 0; l < layers; l++) d[i] = d[i] box(left + l * each + 1, top + y, each - 2, h - 2)
    path(d[i], "a1")
    text(left - 8, i == 3 ? top + y + h / 2 - 4 : top + y + (i == 2 ? 17 : 13), op[i], "", "end")
    y += h
  }
  text(left - 8, top + y - 50, size(bytes["ffn"]), "m", "end")
  rect(left + span + 1, top, width - span - 1, height - 1, "a1")
  text(left + span + (width - span) / 2, top + height / 2 + 5, size(bytes["lm_head"]), "p b", "middle")
  # The cache on the same scale: within a layer's width.
  h = height * KEY["kv_bytes"] / layers / layer
  for (l = 0; l < layers; l++) k = k box(left + l * each + 1, top + height + 8, each - 2, h)
  path(k, "a3")
  y = top + height + 8 + h + 22
  text(left, y, "K/V cache at context " commas(KEY["context"]) ": " size(KEY["kv_bytes"]), "t3")
  line(left, y + 16, 680, y + 16, "l")
  text(left, y + 40, "in: one token, a " size(row) " row of lm_head's matrix")
  text(left, y + 66, "out: " commas(KEY["vocab"]) " logits")
  finish()
}
