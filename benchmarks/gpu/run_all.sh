#!/usr/bin/env bash
# Runs the parts of the GPU benchmark in turn, as far as time goes; called again, goes on where it stopped.
#
#   bash benchmarks/gpu/run_all.sh OUT [--device cuda|cpu] [--small] [--seconds 480] [--earlier DIR]
#                                  [--only NAMES] [--again] [PART...]
#
# Exit status: 0 everything is done, 75 time ran out (call again), other: a part failed.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
goes_on=75
everything=(diagnoses target_check launch_grid timers winners)
declare -A share=([diagnoses]=60 [target_check]=15 [launch_grid]=8 [timers]=9 [winners]=8)

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

[[ $# -ge 1 && $1 != -* ]] || usage
out="$1"
shift
seconds=480
earlier=""
parts=()
arguments=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --seconds | --earlier | --device | --only)
      [[ $# -ge 2 ]] || usage
      case "$1" in
        --seconds) seconds="$2" ;;
        --earlier) earlier="$2" ;;
        *) arguments+=("$1" "$2") ;;
      esac
      shift 2
      ;;
    --small | --again)
      arguments+=("$1")
      shift
      ;;
    -*) usage ;;
    *)
      [[ -n "${share[$1]:-}" ]] || { echo "no part $1; there are: ${everything[*]}" >&2; exit 2; }
      parts+=("$1")
      shift
      ;;
  esac
done
[[ "$seconds" =~ ^[0-9]+$ ]] || usage
[[ ${#parts[@]} -gt 0 ]] || parts=("${everything[@]}")

mkdir -p "$out"
out="$(cd "$out" && pwd)"
if [[ -n "$earlier" ]]; then
  # Only what is not in OUT already: that is newer.
  find "$earlier" -maxdepth 1 -type f \( -name '*.json' -o -name 'traces.tar' -o -name 'run_all.log' \) -print0 |
    while IFS= read -r -d '' file; do
      [[ -e "$out/${file##*/}" ]] || cp "$file" "$out/"
    done
fi

python="${PYTHON:-python3}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
log="$out/run_all.log"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

say() {
  echo "[$SECONDS s] $*" | tee -a "$log"
}

needs="cloudpickle, jinja2, msgspec, networkx, numpy, rich, tabulate"
if ! "$python" -c "import $needs" 2>/dev/null; then
  wheels="${WHEELS:-$here/wheels}"
  shopt -s nullglob
  found=()
  for wheel in "$wheels"/*.whl; do
    [[ "${wheel##*/}" == torch-* ]] || found+=("$wheel") # the one that is there fits the driver
  done
  [[ ${#found[@]} -gt 0 ]] || { say "cannot import $needs, and there are no wheels in $wheels"; exit 3; }
  if ! "$python" -m pip install --quiet --no-index --no-deps --target "$scratch/packages" "${found[@]}" >>"$log" 2>&1; then
    for wheel in "${found[@]}"; do "$python" -m zipfile -e "$wheel" "$scratch/packages"; done # there is no pip
  fi
  export PYTHONPATH="$PYTHONPATH:$scratch/packages"
  "$python" -c "import $needs" || { say "cannot import $needs, also with the wheels in $wheels"; exit 3; }
fi

declare -A status
failed=0

# run PART SECONDS: a part that hangs is ended, so that the others have their turn.
run() {
  local part="$1" given="$2" code
  say "$part: $given s"
  set +e
  # shellcheck disable=SC2094 # both only append
  timeout --kill-after=10 "$((given + 90))" "$python" "$here/$part.py" "$out" --seconds "$given" \
    ${arguments[@]+"${arguments[@]}"} 2>>"$log" | tee -a "$log"
  code="${PIPESTATUS[0]}"
  set -e
  [[ $code -ne 124 && $code -ne 137 ]] || code=$goes_on
  status[$part]=$code
  say "$part: exit status $code"
}

# First everybody gets a share, what one leaves over goes to those behind it; then whoever has items left gets the rest,
# those with the smallest shares first.
weight=0
for part in "${parts[@]}"; do weight=$((weight + share[$part])); done
for part in "${parts[@]}"; do
  left=$((seconds - SECONDS))
  given=$((left * share[$part] / weight))
  weight=$((weight - share[$part]))
  status[$part]=$goes_on
  [[ $given -lt 20 ]] || run "$part" "$given" # less than it takes to import torch and run one item
done
for ((index = ${#parts[@]} - 1; index >= 0; index--)); do
  part="${parts[index]}"
  left=$((seconds - SECONDS))
  [[ ${status[$part]} -ne $goes_on || $left -lt 45 ]] || run "$part" "$left"
done

rest=0
for part in "${parts[@]}"; do
  case "${status[$part]}" in
    0) ;;
    "$goes_on") rest=1 ;;
    *) failed="${status[$part]}" ;;
  esac
done
if [[ $failed -ne 0 ]]; then
  tail -n 20 "$log" >&2
  say "a part failed, see $log"
  exit "$failed"
fi
[[ $rest -eq 0 ]] || { say "time is up: call again"; exit $goes_on; }
say "everything is done"
