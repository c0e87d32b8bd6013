#!/bin/bash
# Every solution of the book's exercises: its patch applies to this tree, the patched program builds without CUDA, its kernels as
# fibers, and what the patch says after `# check:` succeeds. Then a patch that no longer applies, and a check that fails: both are told.
# usage: tests/test_exercises.sh [NN-k...]
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/tiles-exercises.XXXXXX")
trap 'rm -rf "$work"' EXIT
export work root

# The tree, built once; every patch then gets a copy with its objects.
mkdir "$work/base"
git ls-files -z -co --exclude-standard | xargs -0 cp --parents -t "$work/base" 2>/dev/null
cd "$work/base" || exit 1
make -s -j "$(nproc)" CUDA=no tiles chapters >"$work/build.log" 2>&1 || {
  tail -n 20 "$work/build.log" | sed 's/^/# /'
  echo 'not ok 1 - the tree builds'
  exit 1
}

#> exercise
# exercise PATCH: in a copy; silent when all is well.
exercise() {
  local patch=$1 name copy check
  name=$(basename "$patch" .patch)
  copy=$work/$name
  cp -a "$work/base" "$copy" && cd "$copy" || return 1
  check=$(sed -n '1,5s/^# check: //p' "$patch")
  [ -n "$check" ] || { echo "$name: no line # check: COMMAND" && return 1; }
  git apply --verbose "$patch" || { echo "$name: does not apply" && return 1; }
  make -s CUDA=no tiles || { echo "$name: does not build" && return 1; }
  TMPDIR=$copy timeout 300 bash -c "$check" </dev/null || { echo "$name: its check failed: $check" && return 1; }
}
one() { # one PATCH: leaves NAME.rc and NAME.out
  local name
  name=$(basename "$1" .patch)
  (exercise "$1") >"$work/$name.out" 2>&1
  echo $? >"$work/$name.rc"
  rm -rf "${work:?}/$name"
}
export -f exercise one
#< exercise

patches=()
if [ $# -eq 0 ]; then patches=("$root"/chapters/solutions/*.patch); else
  for name in "$@"; do patches+=("$root/chapters/solutions/$name.patch"); done
fi
# What must be caught.
old=$work/planted-old.patch wrong=$work/planted-wrong.patch
printf '# check: true\n--- a/README.md\n+++ b/README.md\n@@ -1,1 +1,1 @@\n-# No such title\n+# Another\n' >"$old"
printf '# check: false\n--- a/README.md\n+++ b/README.md\n@@ -1,2 +1,2 @@\n-%s\n+# Another\n \n' "$(head -n 1 README.md)" >"$wrong"

# shellcheck disable=SC2016 # the inner shell expands it
printf '%s\0' "${patches[@]}" "$old" "$wrong" | xargs -0 -n 1 -P "$(nproc)" bash -c 'one "$1"' _

# shellcheck source=tests/tap.sh
. "$root/tests/tap.sh"
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  result "$(cat "$work/$name.rc")" "$name" "$work/$name.out"
done
grep -q '^planted-old: does not apply' "$work/planted-old.out"
result $? "a patch that no longer applies is told" "$work/planted-old.out"
grep -q '^planted-wrong: its check failed' "$work/planted-wrong.out"
result $? "a check that fails is told" "$work/planted-wrong.out"

# Each exercise of the book has its solution in the text, and each patch its exercise.
grep -rhoE 'solution=[A-Z0-9]+-[0-9]+' "$root"/chapters/*.md | sed 's/solution=//' | sort >"$work/asked"
(cd "$root/chapters/solutions" && ls -- *.patch) | sed 's/\.patch$//' | sort >"$work/there"
diff "$work/asked" "$work/there" >"$work/both.out"
result $? "each patch stands in one chapter" "$work/both.out"

echo "1..$n"
[ "$failed" -eq 0 ]
