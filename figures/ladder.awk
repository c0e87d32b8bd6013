# The decoders of the chapters, one step each: ms a token and share of the floor.
BEGIN {
  t = "h200-ladder"
  read_table(t)
  for (i = 1; i <= N[t]; i++) {
    ch = CELL[t, i, "chapter"]
    if (!(ch in seen)) { seen[ch] = 1; chapter[++n] = ch }
    most = max(most, CELL[t, i, "most_ms"])
    row[ch, CELL[t, i, "context"]] = i
  }
  for (k = 2; k <= n; k++) # the table begins with what the others are compared with
    for (i = k; i > 1 && chapter[i - 1] > chapter[i]; i--) { ch = chapter[i]; chapter[i] = chapter[i - 1]; chapter[i - 1] = ch }
  left = 196; scale = (680 - left - 132) / most; step = 58
  for (k = 1; k <= n; k++)
    desc = desc " " chapter[k] ": " CELL[t, row[chapter[k], 1], "ms"] ((chapter[k], 4096) in row ? " and " CELL[t, row[chapter[k], 4096], "ms"] : "") "."
  begin(NAME, "The ladder of decoders", "Milliseconds a token of each chapter's decoder on an H200, at contexts 1 and 4,096, with the share of the floor." desc, 38 + n * step + 34)
  text(left, 18, "context 1", "t1 b"); text(left + 140, 18, "context 4,096", "t3 b"); text(680, 18, "ms · share", "m", "end")
  for (k = 1; k <= n; k++) {
    y = 36 + (k - 1) * step
    text(0, y + 26, chapter_name(chapter[k]))
    for (j = 0; j < 2; j++) {
      if (!((chapter[k], j ? 4096 : 1) in row)) continue
      i = row[chapter[k], j ? 4096 : 1]
      ms = CELL[t, i, "ms"]
      rect(left, y + j * 22, ms * scale, 18, j ? "a3" : "a1")
      line(left + CELL[t, i, "least_ms"] * scale, y + j * 22 + 9, left + CELL[t, i, "most_ms"] * scale, y + j * 22 + 9, "k")
      text(left + max(ms, CELL[t, i, "most_ms"]) * scale + 8, y + j * 22 + 15, sprintf("%.2f · %.0f%%", ms, CELL[t, i, "share_percent"]), "s")
      floor[j] += ms * CELL[t, i, "share_percent"] / 100; floors[j]++
    }
  }
  y = 36 + n * step
  for (j = 0; j < 2; j++)
    if (floors[j]) path("M" c(left + floor[j] / floors[j] * scale) " 28V" c(y - 8), j ? "fd3" : "fd1")
  text(left, y + 18, sprintf("dashed: the floor, %.2f and %.2f ms", floor[0] / max(floors[0], 1), floor[1] / max(floors[1], 1)), "m")
  finish()
}
