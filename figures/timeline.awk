# Turns a Chrome trace of one token into rows of measured/h200-timeline.tsv:
#   tiles trace DIR --device cuda:0 --ctx 4096 -o trace.json
#   awk -v context=4096 -v every=12 -f figures/timeline.awk trace.json >>measured/h200-timeline.tsv
# With head=1 the table's head comes first. `every` keeps each so many-th worker; without it all are kept. A slice that never
# began (a worker without a tile, with hand-offs of data) is dropped; times are from the first slice on.
function field(name,    s) {
  if (!match($0, "\"" name "\":\"?[^,\"}]*")) return ""
  s = substr($0, RSTART, RLENGTH)
  sub(/^"[^"]*":"?/, "", s)
  return s
}
BEGIN {
  OFS = "\t"
  if (!context) { print "timeline.awk: -v context=N is missing" > "/dev/stderr"; bad = 1; exit 2 }
  n = 0
  if (!every) every = 1
  if (head) print "context", "worker", "wave", "op", "layer", "begin_us", "end_us"
}
/"ph":"X"/ {
  if (field("dur") + 0 == 0 && field("ts") + 0 == 0 && field("wave") + 0 > 0) next
  worker[n] = field("tid"); wave[n] = field("wave"); op[n] = field("name"); layer[n] = field("layer")
  begin[n] = field("ts") + 0; end[n] = begin[n] + field("dur")
  if (n == 0 || begin[n] < zero) zero = begin[n]
  n++
}
END {
  if (bad) exit 2
  if (!n) { print "timeline.awk: no slices" > "/dev/stderr"; exit 1 }
  for (i = 0; i < n; i++)
    if (worker[i] % every == 0)
      print context, worker[i], wave[i], op[i], layer[i], sprintf("%.3f", begin[i] - zero), sprintf("%.3f", end[i] - zero)
}
