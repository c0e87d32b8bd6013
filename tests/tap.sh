# What shell tests print: a line a test, and on failure what was said. Sourced; counts in n and failed.
# shellcheck shell=bash
n=0 failed=0

result() { # result STATUS NAME [FILE...]: the ends of the files when it failed
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then
    echo "ok $n - $2"
    return
  fi
  echo "not ok $n - $2"
  failed=$((failed + 1))
  [ $# -eq 2 ] || tail -q -n 12 "${@:3}" 2>/dev/null | cut -c 1-300 | sed 's/^/#   /'
}
check() { # check NAME COMMAND...: what it says only when it fails
  local name=$1 said rc=0
  shift
  said=$("$@" 2>&1) || rc=$?
  [ $rc -eq 0 ] || printf '%s\n' "$said" | tail -n 40 | sed 's/^/# /'
  result $rc "$name"
}
