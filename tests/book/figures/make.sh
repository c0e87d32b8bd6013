#!/bin/bash
# The fixture's only figure. usage: figures/make.sh -o FOLDER
cat >"$2/box.svg" <<'SVG'
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100"><rect x="10" y="10" width="180" height="80" fill="var(--fill1,#dbe7fd)"/><text x="20" y="50" fill="var(--ink,#1f2430)">box</text></svg>
SVG
