#!/bin/bash
# One token of each decoder at context 4,096.
# shellcheck source=figures/lib.sh
. "$(dirname "$0")/lib.sh"
draw decoders-4096 decoders
