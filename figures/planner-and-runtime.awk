# From a checkpoint to one launch.
function node(x, y, w, h, class, a, b, d) {
  rect(x, y, w, h, class, 5)
  text(x + w / 2, y + (b ? 27 : h / 2 + 6), a, "b", "middle")
  if (b) text(x + w / 2, y + 52, b, "", "middle")
  if (d) text(x + w / 2, y + 77, d, "", "middle")
}
BEGIN {
  read_plan(small_card(), 1)
  launch = code("GPU_LAUNCH")
  begin(NAME, "Planner and runtime", "Before any token: the planner takes a shape and a target and makes a plan of " commas(KEY["tiles"]) " tiles in " KEY["waves"] " waves, which is validated and packed with the weights. At run time: the package is validated again, and one launch plays it for up to " launch " tokens, without a decision of its own.", 496)
  text(0, 18, "once, for a model and a machine", "m")
  node(0, 34, 300, 92, "f3", "checkpoint", KEY["layers"] " layers, " size(KEY["weight_bytes"]), "of weights")
  node(380, 34, 300, 92, "f3", "target", KEY["workers"] " workers, probed", sprintf("%.1f GB/s", KEY["read_gbs"]))
  arrow(150, 126, 220, 160); arrow(530, 126, 460, 160)
  node(150, 162, 380, 92, "f1", "planner", commas(KEY["tiles"]) " tiles, " KEY["waves"] " waves", "every rule checked")
  arrow(340, 254, 340, 282)
  node(150, 284, 380, 44, "f1", "package: plan + weights")
  line(0, 346, 680, 346, "dash")
  text(0, 372, "at run time", "m")
  path("M250 328V370", "arrow"); arrow(250, 370, 250, 388)
  node(0, 390, 300, 92, "f2", "rules again", "the plan is for", "this machine")
  node(380, 390, 300, 92, "f2", "one launch", KEY["workers"] " blocks of " commas(KEY["threads"]), "up to " launch " tokens")
  arrow(300, 436, 378, 436)
  finish()
}
