#!/bin/sh
# Says what this machine lacks to build, run or test Tiles or to weave its book, and installs it where that is possible.
# usage: tests/setup.sh check|install build|chapters|run|test|book
#
# It asks for the thing itself (a header that compiles, a tool that answers), not for a package, so
# that libraries installed by hand count too. Only the advice knows Debian's package names. With CUDA=yes in the environment build and run
# ask for nvcc's host compiler too.
set -eu

usage() {
  echo "usage: tests/setup.sh check|install build|chapters|run|test|book" >&2
  exit 2
}
[ $# -eq 2 ] || usage
case $1 in check | install) ;; *) usage ;; esac
case $2 in build | chapters | run | test | book) ;; *) usage ;; esac

cc=${CC:-cc}
command -v "${cc%% *}" >/dev/null 2>&1 || cc=none

#> setup-probes
missing=''
want() { # want PACKAGE COMMAND...: the package is missing unless the command succeeds
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}
tool() { want "$2" command -v "$1"; }
header() { # header NAME PACKAGE
  want "$2" compiles "$1"
}
compiles() {
  [ "$cc" != none ] && printf '#include <%s>\n' "$1" | $cc -x c -fsyntax-only -
}
fuzzes() { # clang with its sanitizer runtimes
  printf 'int LLVMFuzzerTestOneInput(const char *p, long n);%s\n' \
    'int LLVMFuzzerTestOneInput(const char *p, long n) { return p && n < 0; }' |
    clang -fsanitize=fuzzer,address,undefined -x c -o /dev/null -
}

probe() { # probe build|chapters|run|test|book
  missing=''
  [ "$cc" != none ] || missing=' gcc'
  header stdio.h libc6-dev
  header stb/stb_ds.h libstb-dev
  header cjson/cJSON.h libcjson-dev
  header utf8proc.h libutf8proc-dev
  want libpcre2-dev compiles_pcre2
  # Kernels are C++, those for nvcc and those that run as fibers.
  case $1-${CUDA:-no} in chapters-* | test-* | *-yes) want g++ compiles_cxx ;; esac
  case $1 in build | chapters) return ;; esac
  case $1 in book | test)
    tool pandoc pandoc
    tool gnuplot gnuplot-nox
    tool chromium chromium
    ;;
  esac
  [ "$1" = book ] && return
  want python3-pip python3 -m pip --version
  want ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
  [ "$1" = run ] && return
  want epubcheck epubcheck_runs
  want libcmocka-dev compiles_cmocka
  tool clang clang
  want libclang-rt-dev fuzzes
  tool clang-format clang-format
  tool clang-tidy clang-tidy
  tool cppcheck cppcheck
  tool shellcheck shellcheck
  tool git git
}
epubcheck_runs() { java -jar "$(readlink -f "$(command -v epubcheck)")" --version | grep -q EPUBCheck; }
compiles_pcre2() {
  [ "$cc" != none ] &&
    printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | $cc -x c -fsyntax-only -
}
compiles_cxx() { printf '#include <vector>\n' | ${CXX:-g++} -x c++ -fsyntax-only -; }
compiles_cmocka() {
  [ "$cc" != none ] && {
    for h in stdarg.h stddef.h setjmp.h stdint.h cmocka.h; do printf '#include <%s>\n' "$h"; done
  } | $cc -x c -fsyntax-only -
}
#< setup-probes

probe "$2"
[ -n "$missing" ] || exit 0

#> setup-install
if ! command -v apt-get >/dev/null 2>&1; then
  echo "tiles: missing, by their names in Debian:$missing" >&2
  exit 1
fi
as_root=''
may_install=yes
if [ "$(id -u)" -ne 0 ]; then
  as_root='sudo '
  # Without a terminal nobody can type a password.
  if ! command -v sudo >/dev/null 2>&1; then
    may_install=no
  elif ! sudo -n true 2>/dev/null && ! [ -t 0 ]; then
    may_install=no
  fi
fi
if [ "$1" = check ] || [ $may_install = no ]; then
  [ $may_install = yes ] || as_root='' # whoever can, knows how to become root
  {
    echo "tiles: missing packages:$missing"
    echo "tiles: as root: apt-get install --no-install-recommends$missing"
    case $1-$2 in
    check-chapters) echo "tiles: 'make test' installs them by itself" ;;
    check-*) echo "tiles: 'make run' and 'make test' install them by themselves" ;;
    esac
  } >&2
  exit 1
fi

echo "tiles: installing$missing" >&2
install() {
  # shellcheck disable=SC2086 # both are lists of words
  ${as_root}env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends $missing >&2
}
# A new machine has no package lists, an old one has stale ones: refresh them only where that helps.
# shellcheck disable=SC2086
if ! { apt-cache show $missing >/dev/null 2>&1 && install; }; then
  ${as_root}apt-get -q update >&2
  install
fi

[ "$cc" != none ] || cc=cc
probe "$2"
if [ -n "$missing" ]; then
  echo "tiles: installed, yet still not usable:$missing" >&2
  exit 1
fi
#< setup-install
