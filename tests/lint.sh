#!/bin/bash
# Formatting and static analysis of every C file and script.
# usage: tests/lint.sh
set -u
cd "$(dirname "$0")/.." || exit 1
failed=0 n=0

check() { # check NAME COMMAND...: silent when it succeeds
  local name=$1 out
  shift
  n=$((n + 1))
  if out=$("$@" 2>&1); then
    echo "ok $n - $name"
  else
    printf '%s\n' "$out"
    echo "not ok $n - $name"
    failed=$((failed + 1))
  fi
}

shopt -s nullglob
c=(*.c *.h tests/*.c tests/*.h)
units=(*.c tests/*.c)
scripts=(*.sh tests/*.sh .ci/run)

check clang-format clang-format --dry-run -Werror "${c[@]}"

#> lint-cppcheck
# missingIncludeSystem: the system's headers are not analysed.
# unmatchedSuppression: a suppression may be for a newer cppcheck than this one.
# The functions of a library are used by tests and commands that cppcheck sees apart, hence no
# unusedFunction (it is not enabled). Names from stb_ds's macros hide their types from it: unknownMacro.
# Only the program: it walks through a test's nested loops for minutes.
check cppcheck cppcheck --quiet --std=c11 --language=c -D_GNU_SOURCE -D__linux__ -D__x86_64__ -I. -j 2 \
  --enable=warning,portability,performance --inline-suppr --error-exitcode=1 \
  --suppress=missingIncludeSystem --suppress=unmatchedSuppression --suppress=unknownMacro ./*.c
#< lint-cppcheck

#> lint-tidy
# Off, each for a reason:
#   easily-swappable-parameters    (n, m) of the same type is what matrix code looks like
#   narrowing-conversions          -Wconversion's little sister; sizes from files are checked by hand
#   implicit-widening...           int * int to size_t where both are bounded by the shape
#   reserved-identifier            _GNU_SOURCE and the like
#   macro-parentheses              macros that take types or declarators
#   assignment-in-if-condition     `if (!(p = malloc(n)))` is an idiom here
#   signed-char-misuse             an int8_t that becomes a number is a number
#   suspicious-string-compare      `strcmp(a, b) || ...` is an idiom too
#   not-null-terminated-result     takes every memcpy of bytes for one of a string
#   sizeof-expression              takes `sizeof array / sizeof *array` for a mistake where elements point
#   insecureAPI.Deprecated...      wants memcpy_s, which nobody has
#   optin.portability.UnixAPI      malloc(0), which is defined well enough: free() takes what it gives
tidy='-*,bugprone-*,cert-flp30-c,cert-msc30-c'
for off in easily-swappable-parameters narrowing-conversions implicit-widening-of-multiplication-result \
  reserved-identifier macro-parentheses assignment-in-if-condition signed-char-misuse \
  suspicious-string-compare not-null-terminated-result sizeof-expression; do
  tidy+=,-bugprone-$off
done
# The path-walking analyzer is for the program: in a test, which is one long path, it takes minutes.
analyzer=',clang-analyzer-*,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling'
analyzer+=,-clang-analyzer-optin.portability.UnixAPI
export tidy analyzer
tidy_one() {
  local flags=(-std=c11 -D_GNU_SOURCE -I.) checks=$tidy
  case $1 in
    tests/*) ;;
    base.c) checks+=$analyzer ;;
    *)
      checks+=$analyzer
      flags+=(-include tiles.h -include tests/analyzer.h)
      ;;
  esac
  clang-tidy --quiet --checks="$checks" --warnings-as-errors='*' "$1" -- "${flags[@]}" 2>/dev/null
}
export -f tidy_one
# shellcheck disable=SC2016 # the inner shell expands it
tidy_all() { printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P 2 bash -c 'tidy_one "$1"' _; }
check clang-tidy tidy_all
#< lint-tidy

check shellcheck shellcheck -x "${scripts[@]}"

#> lint-paths
# A path of somebody's machine in a file that everybody gets.
no_private_paths() { ! git grep -nE '(/home/[a-z]|/Users/[A-Za-z]|/root/|/work/)' -- . ':!tests/lint.sh'; }
check "no paths of one machine" no_private_paths

# A marker names its region once in the repository, and what it opens it closes.
regions() {
  local open
  open=$(cat -- *.c *.h tests/*.c tests/*.h tests/*.sh Makefile | sed -nE 's,^ *(//|#)> ([a-z0-9_-]+)$,\2,p' | sort)
  diff <(uniq -d <<<"$open") /dev/null || return 1
  diff <(cat -- *.c *.h tests/*.c tests/*.h tests/*.sh Makefile |
    sed -nE 's,^ *(//|#)< ([a-z0-9_-]+)$,\2,p' | sort) - <<<"$open"
}
check "regions are unique and closed" regions
#< lint-paths

echo "1..$n"
[ "$failed" -eq 0 ]
