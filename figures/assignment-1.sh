#!/bin/bash
# The assignment at context 1.
# shellcheck source=figures/lib.sh
. "$(dirname "$0")/lib.sh"
draw assignment-1 assignment
