# Where the time above ideal streaming goes, waves beside tape.
function bar(x0, us, class,    w) {
  w = us * scale
  if (w >= 0) rect(x0, y, w, 18, class)
  else rect(x0 + w, y, -w, 18, class)
  text(x0 + max(w, 0) + 6, y + 14, us < 0 ? "−" sprintf("%.0f", -us) : sprintf("%.0f", us), "s")
}
BEGIN {
  w = "h200-account"; t = "h200-tape-account"
  read_table(w); read_table(t)
  n = split("GEMV below it|barriers|attention|small operations", part, "|")
  split("GEMV below it|hand-offs|attention|small operations", part_t, "|") # as a tape's account calls them
  split("GEMV|waiting|attention|small", label, "|")
  contexts = split("1 4096", context, " ")
  for (k = 1; k <= contexts; k++)
    for (i = 1; i <= n; i++) {
      most = max(most, max(cell(w, "us", "context", context[k], "part", part[i]), cell(t, "us", "context", context[k], "part", part_t[i])))
      least = min(least, min(cell(w, "us", "context", context[k], "part", part[i]), cell(t, "us", "context", context[k], "part", part_t[i])))
    }
  left = 104; panel = (680 - left) / 2
  scale = (panel - 62) / (most - least)
  for (k = 1; k <= contexts; k++) {
    ideal_w = cell(w, "us", "context", context[k], "part", "ideal streaming"); ideal_t = cell(t, "us", "context", context[k], "part", "ideal streaming")
    over_w[k] = cell(w, "us", "context", context[k], "part", "token") - ideal_w
    over_t[k] = cell(t, "us", "context", context[k], "part", "token") - ideal_t
  }
  begin(NAME, "Where the time above streaming goes", sprintf("Microseconds of a token above ideal streaming on an H200. Context 1: waves %.0f, tape %.0f. Context 4,096: waves %.0f, tape %.0f. With the tape, hand-offs take the place of barriers, and merging the chunks of attention counts as attention.", over_w[1], over_t[1], over_w[2], over_t[2]), 90 + n * 62)
  for (k = 1; k <= contexts; k++) {
    x0 = left + (k - 1) * panel - least * scale
    text(x0, 18, "context " commas(context[k]), "b")
    text(x0, 44, sprintf("waves +%.0f", over_w[k]), "t1")
    text(x0 + 136, 44, sprintf("tape +%.0f", over_t[k]), "t2")
    for (i = 1; i <= n; i++) {
      y = 66 + (i - 1) * 62
      if (k == 1) text(0, y + 24, label[i], "")
      bar(x0, cell(w, "us", "context", context[k], "part", part[i]), "a1")
      y += 20
      bar(x0, cell(t, "us", "context", context[k], "part", part_t[i]), "a2")
    }
    line(x0, 60, x0, 66 + n * 62 - 16, "lm")
  }
  text(left, 66 + n * 62 + 14, "µs a token above ideal streaming", "m")
  finish()
}
