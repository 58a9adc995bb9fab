#!/bin/bash
# What tests/bench/gpu/report.py makes of figures: a bar met, one missed, one that nobody measured, a line cut off, a trial
# that does not count. 77 (skipped) without Python.
set -eu
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }
file=$(mktemp)
trap 'rm -f "$file"' EXIT
row() { # NAME N PASS MS OF_SDPA
    echo "{\"kind\": \"attention\", \"group\": \"n1024\", \"pass_\": \"$3\", \"n\": $2, \"b\": 1, \"h\": 1, \"d\": 64, \"causal\": false," \
        "\"name\": \"$1\", \"ms\": $4, \"tflops\": 500.0, \"of_floor\": 1.5, \"vs_best_sdpa\": $5 $6}" >>"$file"
}
row 'polyd x3' 1024 fwd 2.0 1.2 ''
row 'polyd x3' 1024 fwd 1.0 1.5 ''
row 'compiled x3' 1024 fwd 4.0 0.4 ''
row 'polyd x3' 1024 bwd 1.0 9.9 ', "dry": true'
echo '{"kind": "step", "model": "swin_t", "name": "polyd x3", "ms": 10.0, "tflops": 160.0}' >>"$file"
echo '{"kind": "step", "model": "vit_s16", "name": "polyd x3", "ms": 20.0, "tflops": 200.0}' >>"$file"
echo '{"kind": "failed", "what": "attention n8192", "why": "no memory"}' >>"$file"
printf '{"kind": "attention", "na' >>"$file"
short=$(python3 tests/bench/gpu/report.py "$file")
table=$(python3 tests/bench/gpu/report.py --markdown "$file")
expect() {
    grep -qF -- "$2" <<<"$1" || { printf 'lacks: %s\n%s\n' "$2" "$1"; exit 1; }
}
expect "$table" '| N=1024, x^3 against best SDPA, forward | must >= 1.35x | 1.5x | met |'
expect "$table" '| x^3 against its materialised form, compiled, N=1024, forward | must >= 6x stretch >= 9x | 4x | missed: 0.67 of it |'
expect "$table" '| N=1024, x^3 against best SDPA, backward | must >= 1.2x | not measured |  |'
expect "$table" "| Swin-T, FLOP a second over our ViT-S/16's | must >= 0.85x | 0.8x | missed: 0.94 of it |"
expect "$table" '- FAILED: what=attention n8192  why=no memory'
expect "$short" '4 of 64 bars measured, 1 met'
expect "$(python3 tests/bench/gpu/report.py --dry "$file")" '6 of 64 bars measured'
! python3 tests/bench/gpu/report.py /nonexistent 2>/dev/null
