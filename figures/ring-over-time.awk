# How full a worker's ring is over a layer of the tape: as measured where measured/h200-ring.tsv exists (us, slots_full, op),
# otherwise as the planner's model says.
function add(at, held, what) { us[n] = at; fill[n] = held; op[n++] = what }

# The model: bytes arrive at the worker's share of the stream while the ring has room; a dot product takes them out at DOT_RATE
# times that; between two waves is a hand-off, LOADED times as long as an idle one, and attention takes its time.
function model(    rate, cap, dt, t, held, left, pause, w, step, layer, first, what, out) {
  rate = KEY["read_gbs"] * 1e3 / KEY["workers"] * code("TAPE_RATE")
  cap = KEY["ring_slots"] * KEY["slot_bytes"]
  dt = .02
  held = cap
  for (layer = 0; layer < 4; layer++)
    for (w = 0; w < KEY["waves"]; w++) {
      if (WAVE[w, "layer"] != layer || WAVE[w, "op"] ~ /merge|lm_head/) continue
      what = WAVE[w, "op"]
      pause = code("LOADED") * KEY["handoff_us"]
      left = what == "attend" ? 0 : WAVE[w, "bytes"] / KEY["workers"]
      if (what == "attend") extra = KEY["attention_us"]; else extra = 0
      for (step = 0; step < pause; step += dt) { held = min(cap, held + rate * dt); t += dt; if (layer == 3) add(t, held, "") }
      for (step = 0; step < extra; step += dt) { held = min(cap, held + rate * dt); t += dt; if (layer == 3) add(t, held, what) }
      while (left > 0) {
        held = min(cap, held + rate * dt)
        out = min(min(held, left), code_dot * rate * dt)
        held -= out; left -= out
        t += dt
        if (layer == 3) add(t, held, what)
      }
    }
}
BEGIN {
  n = 0
  read_plan("h200", 1, "data")
  cap = KEY["ring_slots"] * KEY["slot_bytes"]
  code_dot = code("DOT_RATE")
  t = "h200-ring"
  modelled = !exists(t)
  if (modelled) model()
  else {
    read_table(t)
    for (i = 1; i <= N[t]; i++) add(CELL[t, i, "us"], CELL[t, i, "slots_full"] * KEY["slot_bytes"], CELL[t, i, "op"] == "-" ? "" : CELL[t, i, "op"])
  }
  zero = us[0]; span = us[n - 1] - zero
  left = 92; wide = 680 - left; top = 58; high = 190; base = top + high
  for (i = 0; i < n; i++) {
    x = left + wide * (us[i] - zero) / span; y = base - high * fill[i] / cap
    # a point where the direction changes, or the operation
    if (i == 0 || i == n - 1 || op[i] != op[i - 1] || op[i] != op[i + 1] || (fill[i] - fill[i - 1]) * (fill[i + 1] - fill[i]) <= 0 || !modelled) {
      if (!modelled && i) d = d "H" c(x)
      d = d (d ? "L" : "M") c(x) " " c(y)
    }
    if (fill[i] >= cap * .999) { if (!full) from = x; full = 1; if (i) stalled += us[i] - us[i - 1] }
    if (full && (fill[i] < cap * .999 || i == n - 1)) { stops = stops "M" c(from) " " c(top) "H" c(x); full = 0 }
  }
  begin(NAME, "The ring over one layer", (modelled ? "As the planner's model says, not measured: " : "As measured on an H200: ") "bytes in a worker's ring of " KEY["ring_slots"] " slots of " commas(KEY["slot_bytes"]) " bytes over a layer of " sprintf("%.1f", span) " µs. It fills while the worker waits for a hand-off or attends and empties while it multiplies. Where the line is flat at the top the ring is full, so the stream stops, " sprintf("%.1f", stalled) " µs.", base + 112)
  text(0, 18, (modelled ? "modelled: " : "measured: ") sprintf("a layer of %.0f µs", span), "b")
  text(left, 46, sprintf("ring full: the stream stops, %.1f µs", stalled), "t2")
  path(d "V" c(base) "H" left "z", "f1")
  path(d, "s1")
  line(left, top, 680, top, "dash"); path(stops, "s2"); line(left, base, 680, base, "lm")
  text(left - 8, top + 10, size(cap), "m", "end")
  text(left - 8, base, 0, "m", "end")
  # What the worker does meanwhile.
  start = 0
  for (i = 1; i <= n; i++)
    if (i == n || op[i] != op[start]) {
      x = left + wide * (us[start] - zero) / span; w = left + wide * (us[min(i, n - 1)] - zero) / span - x
      o = op[start]
      rect(x, base + 12, max(w - 1, 1), 20, o == "" ? "g" : o == "attend" ? "a3" : "a1")
      if (o != "" && (!(o in named) || !modelled) && w > 8) { text(min(x + w / 2, 656), base + 54, o == "gate_up" ? "gate, up" : o, "", "middle"); named[o] = 1 }
      if (o == "" && !waits++) mark = x + w / 2
      start = i
    }
  text(left, base + 88, "grey: waiting for a hand-off", "m")
  finish()
}
