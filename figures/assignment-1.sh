#!/bin/bash
# The assignment at context 1.
. "$(dirname "$0")/lib.sh"
draw assignment-1 assignment
