#!/bin/bash
# What the scripts that make measured/h200*.tsv share: heads of tables, checkpoints, and a function for each kind of measurement.
# Sourced in the top folder, with `models` and `out` set: folders for checkpoints and for tables. No command runs without a time limit, and none beyond
# `deadline`, seconds of the script.
T=$'\t'
: "${models:?}" "${out:?}" "${deadline:=86400}"
shapes='llama-3.2-1b qwen2.5-1.5b:f16 smollm2-135m'
ids=$(seq -s , 11 97 6200) # 64
waves=(--ffn split --sync barrier)
tape=(--sync data)
bad=0
: "${sources:=gpu}"
mkdir -p "$models" "$out"

complain() { # complain WORDS...: the script goes on, and fails at its end
  echo "${0##*/}: $*" >&2
  bad=1
}

limited() { # limited SECONDS COMMAND...
  local limit=$1 left=$((deadline - SECONDS))
  shift
  [ "$limit" -le $left ] || limit=$left
  if [ "$limit" -le 0 ]; then
    echo "${0##*/}: out of time: $*" | cut -c 1-160 >&2
    return 124
  fi
  timeout -k 2 "$limit" "$@"
}

head_of() { # head_of COMMAND [waves]: what every table begins with; the sources are the tape's too unless only waves were run
  local card
  card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1 | sed 's/, /, driver /')
  printf '# device\t%s, CUDA %s\n' "$card" "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
  printf '# date\t%s\n# command\t%s\n' "$(date +%F)" "$1"
  printf '# source\t%s\n' "$(sh chapters/source.sh "${2:-$sources}")"
}
weights() { printf '# weights\t%s\n' 'tiles synth SHAPE DIR --seed 7 (llama-3.2-1b), --seed 3 (the others)'; }
folder() { # folder SHAPE, or real: SmolLM2's own weights, made by measured/gguf_folder.py
  case $1 in l*) echo "$models/l1b" ;; q*) echo "$models/q15" ;; s*) echo "$models/s135" ;; real) echo "$models/real" ;; esac
}

step_models() {
  local shape seed pids=()
  for shape in $shapes; do
    seed=3
    [ "$shape" != llama-3.2-1b ] || seed=7
    [ -e "$(folder "$shape")/model.safetensors" ] || timeout 300 "${TILES:-./tiles}" synth "$shape" "$(folder "$shape")" --seed $seed &
    pids+=($!)
  done
  wait "${pids[@]}"
}

# In the columns of `tiles bench --tsv`, without its head.
bench() { # bench PROGRAM SHAPE CONTEXTS TOKENS OPTIONS...
  limited 60 "$1" bench "$(folder "$2")" --device cuda:0 --ctx "$3" --runs 5 -n "$4" --tsv "${@:5}" | sed 1d
}

# One traced token: its account and what a viewer shows. A script traces each only once.
declare -A traced=()
trace() { # trace waves|tape CONTEXT: $out/trace-KIND-CONTEXT.tsv and .json
  local name=$out/trace-$1-$2 options=("${waves[@]}")
  [ "$1" = waves ] || options=("${tape[@]}")
  [ -z "${traced[$1-$2]-}" ] || return 0
  rm -f "$name.tsv" "$name.json"
  if limited 60 ./tiles trace "$(folder llama-3.2-1b)" --device cuda:0 "${options[@]}" --ctx "$2" -o "$name.json" >"$name.tsv"; then
    traced[$1-$2]=1
  else
    complain "no trace of the $1 at context $2"
    return 1
  fi
}
account() { # account waves|tape
  local context
  printf 'context\tpart\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\n'
  for context in 1 4096; do
    ! trace "$1" $context || sed "1d; s/^/$context$T/" "$out/trace-$1-$context.tsv"
  done
}

# 50 runs a process, so that a time limit leaves a count; all hashes must be one.
repeat_head() { # repeat_head OPTIONS...
  head_of "tiles logits DIR --device cuda:0 $* --ids LIST --runs 50, four processes; LIST: 64 ids"
  weights
  printf '# a run\t%s\n' "64 launches of a token and one of 64; the hash is over all logits and the decoded ids"
  printf 'card\truns\thashes\thash\tseconds\n'
}
repeat() { # repeat NAME OPTIONS...
  local begin=$SECONDS name=$1
  shift
  for _ in 1 2 3 4; do
    limited 60 ./tiles logits "$(folder llama-3.2-1b)" --device cuda:0 "$@" --ids "$ids" --runs 50 2>&1
  done >"$out/repeat-$name.txt"
  awk -v OFS='\t' -v name="$name" -v took=$((SECONDS - begin)) '$2 == "runs" { runs += $1; if (!seen[$NF]++) { hashes++; hash = hash " " $NF } }
    END { print name, runs + 0, hashes + 0, substr(hash, 2), took }' "$out/repeat-$name.txt"
}
# The same beside another process that keeps the card busy.
repeat_busy() { # repeat_busy OPTIONS...
  local loop
  (
    child=
    trap 'kill $child 2>/dev/null; wait; exit 0' TERM
    for _ in 1 2 3 4 5 6 7 8; do # it ends also where nobody ends it
      timeout -k 2 60 ./tiles bench "$(folder llama-3.2-1b)" --device cuda:0 "$@" --ctx 512 --runs 200 >>"$out/busy-bench.txt" 2>&1 &
      child=$!
      wait "$child"
      sleep 0.1
    done
  ) &
  loop=$!
  sleep 2
  repeat busy "$@"
  kill $loop 2>/dev/null || complain "busy: the load ended before the runs"
  wait $loop 2>/dev/null
}

# gpu_parity.py calls a program with a command and its arguments: here one that adds the plan's options.
parity() { # parity NAME SHAPES OPTIONS...: a whole table
  local shape pids=() name=$1 which=$2 program=$out/tiles-$1
  shift 2
  printf '#!/bin/sh\nexec ./tiles "$@" %s\n' "$*" >"$program" && chmod +x "$program"
  rm -f "$out/parity-$name-"*
  for shape in $which; do
    limited 200 python3 tests/gpu_parity.py "$program" "$(folder "${shape/smollm2-135m/real}")" 1 384 385 4096 \
      >"$out/parity-$name-$shape.tsv" 2>"$out/parity-$name-$shape.err" &
    pids+=($!)
  done
  wait "${pids[@]}"
  head_of "python3 tests/gpu_parity.py TILES DIR 1 384 385 4096, TILES with $*"
  printf '# versions\t%s\n' "$(limited 60 python3 -c 'import torch, transformers; print("torch %s, transformers %s" % (torch.__version__, transformers.__version__))')"
  case $which in
  *smollm2-135m*) weights | sed 's/$/; smollm2-135m: its own weights, SmolLM2-135M-Instruct.Q4_1.gguf through measured\/gguf_folder.py/' ;;
  *) weights ;;
  esac
  for shape in $which; do sed -n "s/^# greedy$T/# greedy$T$shape: /p" "$out/parity-$name-$shape.tsv"; done
  printf 'model\tcontext\ttiles_error\ttransformers_error\n'
  for shape in $which; do grep '^[0-9]' "$out/parity-$name-$shape.tsv" | cut -f 1-3 | sed "s/^/$shape$T/"; done
}

# Tools one after the other, models and options beside each other.
sanitize() { # sanitize OPTIONS...: a whole table; each of OPTIONS is a plan's options in one word
  local shape tool options pids
  for shape in tiny-llama tiny-qwen2; do [ -e "$models/$shape" ] || limited 60 ./tiles synth $shape "$models/$shape" --seed 1; done
  head_of 'compute-sanitizer --tool TOOL tiles run DIR --device cuda:0 --ids 1,2,3,4,5 -n 20 OPTIONS (without --ffn the FFN of a plan with barriers is fused)'
  printf '# weights\ttiles synth SHAPE DIR --seed 1\ntool\tmodel\toptions\tsummary\treference_tokens\n'
  for tool in memcheck racecheck initcheck synccheck; do
    pids=()
    for shape in tiny-llama tiny-qwen2; do
      for options; do
        sanitize_one $tool $shape "$options" >"$out/sanitize-$tool-$shape-${options// /}.tsv" &
        pids+=($!)
      done
    done
    wait "${pids[@]}"
    for shape in tiny-llama tiny-qwen2; do
      for options; do cat "$out/sanitize-$tool-$shape-${options// /}.tsv"; done
    done
  done
}
sanitize_one() { # sanitize_one TOOL SHAPE OPTIONS
  local got want log=$out/sanitize-$1-$2-${3// /}.txt
  rm -f "$log"
  # shellcheck disable=SC2086 # options are words
  got=$(limited 100 compute-sanitizer --tool "$1" --log-file "$log" ./tiles run "$models/$2" --device cuda:0 --ids 1,2,3,4,5 -n 20 $3 2>"$log.err")
  want=$(limited 60 ./tiles run "$models/$2" --device cpu --workers 1 --ids 1,2,3,4,5 -n 20 2>/dev/null)
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$([ ! -e "$log" ] || sed -n 's/.*ERROR SUMMARY: //p; s/.*RACECHECK SUMMARY: //p' "$log" | tail -n 1)" \
    "$([ -n "$want" ] && [ "$got" = "$want" ] && echo yes || echo NO)"
}

steps() { # steps STEP...: each must be a function step_STEP
  local step
  for step; do
    declare -F "step_$step" >/dev/null || {
      echo "${0##*/}: no step $step; there are$(declare -F | sed -n 's/^declare -f step_/ /p' | tr -d '\n')" >&2
      return 2
    }
  done
  for step; do
    echo "$step: from $SECONDS s" >&2
    "step_$step"
  done
  echo "end: $SECONDS s" >&2
  return $bad
}
