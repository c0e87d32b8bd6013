# What the host costs: the same model on a small card and on a large one, one kernel at a time and without the host.
function head(a) { text(0, y + 20, a, "b"); y += 34 }
function bar(label, ms, class, device,    w) {
  text(0, y + 17, label)
  w = ms * scale
  rect(left, y, w, 22, class)
  if (device != "") rect(left, y, device * scale, 22, "a1")
  text(left + w + 8, y + 17, sprintf(ms < 1 ? "%.2f" : "%.1f", ms))
  y += 30
}
function torch(arm, context,    i, found) {
  for (i = 1; i <= N[p]; i++)
    if (CELL[p, i, "model"] == "qwen2.5-1.5b" && index(CELL[p, i, "arm"], arm) && (context == "" || CELL[p, i, "context"] == context)) { found = CELL[p, i, "ms"]; break }
  if (found == "") fail("measured/" p ".tsv: no " arm " of qwen2.5-1.5b")
  return found
}
BEGIN {
  p = "h200-torch"; b = "h200-bench"
  read_table(p); read_table(b)
  eager = given("rtx3070_eager_ms"); device = given("rtx3070_device_ms"); compiled = given("rtx3070_compiled_ms"); floor3070 = given("rtx3070_floor_ms")
  wall = torch("eager, wall clock"); events = torch("eager, device time"); graph = torch("plain, CUDA graph"); inductor = torch("inductor, CUDA graph")
  waves = cell(b, "ms", "model", "qwen2.5-1.5b:f16", "context", 512, "tokens", 64)
  floor = cell(b, "floor_ms", "model", "qwen2.5-1.5b:f16", "context", 512, "tokens", 64)
  left = 168; scale = (680 - left - 64) / max(wall, eager)
  begin(NAME, "What the host costs", "Milliseconds a token of Qwen2.5-1.5B at contexts of 512 to 768. RTX 3070, as published: eager " eager " of which the card works " device ", compiled " compiled " (not split), floor " floor3070 ". H200, as measured: eager " wall " of which the card works " events ", CUDA graph " graph ", compiled " inductor ", one kernel of waves " waves ", floor " floor ".", 364)
  y = 0
  head("RTX 3070, published")
  bar("eager", eager, "f2", device)
  bar("compiled", compiled, "gm")
  bar("floor", floor3070, "g")
  y += 14
  head("H200")
  bar("eager", wall, "f2", events)
  text(left + (events + wall) / 2 * scale, y - 13, "the card waits for the host", "t2", "middle")
  bar("CUDA graph", graph, "a1")
  bar("compiled", inductor, "a1")
  bar("one kernel", waves, "a1")
  bar("floor", floor, "g")
  text(left, y + 24, "ms a token, Qwen2.5-1.5B", "m")
  finish()
}
