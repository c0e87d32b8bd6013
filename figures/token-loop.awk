# The loop inside one launch.
function node(x, y, w, h, class, a, b) {
  rect(x, y, w, h, class, 5)
  text(x + w / 2, y + (b ? h / 2 - 5 : h / 2 + 6), a, "b", "middle")
  if (b) text(x + w / 2, y + h / 2 + 20, b, "", "middle")
}
BEGIN {
  read_plan(small_card(), 1)
  launch = code("GPU_LAUNCH")
  begin(NAME, "The token loop", "Inside one launch, up to " launch " times: every worker combines all " KEY["slots"] " candidates and so knows the token and whether to stop; the plan's waves follow; lm_head leaves each worker's best candidate in a slot of its own. The host launches and reads the ids.", 404)
  text(0, 20, "host", "m")
  node(0, 32, 150, 50, "f3", "launch")
  node(530, 32, 150, 50, "f3", "read ids")
  rect(.5, 104.5, 679, 299, "dash", 8)
  text(664, 130, "one launch: up to " launch " times", "m", "end")
  node(20, 150, 300, 76, "f2", "which token?", "best of " KEY["slots"] " slots")
  node(360, 150, 300, 76, "f1", "embed, " KEY["layers"] " layers", KEY["waves"] - 2 " waves")
  node(360, 276, 300, 76, "f1", "final_norm, lm_head", "logits stay here")
  node(20, 276, 300, 76, "f2", KEY["slots"] " slots", "one a worker")
  arrow(75, 82, 75, 148)
  arrow(320, 188, 358, 188); arrow(510, 226, 510, 274); arrow(360, 314, 322, 314); arrow(170, 276, 170, 228)
  path("M285 150V57", "arrow"); arrow(285, 57, 528, 57)
  text(402, 48, "stop, or all done", "m", "middle")
  text(16, 384, "every worker combines alike: same token, same stop", "m")
  finish()
}
