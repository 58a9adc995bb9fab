#!/bin/bash
# What tests/bench/gpu/report.py makes of figures: a bar met, one missed, one that nobody measured, a line cut off, a trial
# that does not count; what measurements end with, and what tests/gpu/run makes of it. 77 (skipped) without Python.
set -eu
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
file=$folder/bench.jsonl
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

# ---- what a measurement ends with: 1 where something of ours failed, 75 where something was left out, and what tests/gpu/run
# makes of it. PyTorch and our programs are stand-ins. ----
mkdir -p "$folder"/{torch,build/bin,path}
cat >"$folder/torch/torch.py" <<'END'
import sys
from unittest.mock import MagicMock
class Torch(MagicMock):
    __path__, __version__, Module = [], "0", object
for name in ("torch", "torch.nn", "torch.nn.functional", "torch.utils", "torch.utils.checkpoint"):
    sys.modules[name] = Torch()
END
# step_bench and decode_bench: each turn takes $TURN_S, the last line says eager=$EAGER; with $BROKEN it does not start.
cat >"$folder/build/bin/step_bench" <<'END'
#!/bin/bash
[ -z "${BROKEN:-}" ] || exit 1
echo ready
while read -r n; do sleep "${TURN_S:-0}"; echo 0.5; done
echo "device_mb=5 first_s=0.1 arena_mb=2 nodes=7 gflop=3 eager=${EAGER:-0} weights_bytes=9 cache_bytes=9 fed_ms=1 name=\"x\""
END
chmod +x "$folder/build/bin/step_bench"
cp "$folder/build/bin/step_bench" "$folder/build/bin/decode_bench"
# measure STATUS PROGRAM [ARGUMENT...]: the rows are in $rows.
rows=$folder/rows
measure() {
    local want=$1 program=$2 status=0
    shift 2
    rm -f "$rows"
    PYTHONPATH=$folder/torch POLYD_BUILD=$folder/build timeout --kill-after=20 "${LIMIT:-60}" \
        python3 "tests/bench/gpu/$program.py" --dry --out "$rows" "$@" >"$folder/log" 2>&1 || status=$?
    [ $status = "$want" ] || { echo "$program $* ended with $status, not $want"; cat "$folder/log"; exit 1; }
}
steps() { measure "$1" steps --peers none "${@:2}"; }
count() { # TEXT NUMBER: rows with that text
    [ "$(grep -cF -- "$1" "$rows")" = "$2" ] || { echo "not $2 rows with $1"; cat "$rows"; exit 1; }
}
steps 0 --models tiny
count '"kind": "step"' 2
count '"eager": 0.0' 2
EAGER=2 steps 1 --models tiny
count 'runs outside the recording' 2
BROKEN=1 steps 1 --models tiny
count '"kind": "failed", "what": "step tiny polyd' 2
steps 75 --models tiny,vit_s16 --seconds 0
count '"kind": "left-out"' 2
TURN_S=2 steps 75 --models tiny,vit_s16 --seconds 3
count '"kind": "step"' 2
count '"rounds": 1,' 2
TURN_S=3 LIMIT=8 steps 124 --models tiny # cut in its second turn, or its third
grep -q '"kind": "step"' "$rows" || { echo "a program that is ended writes no row"; exit 1; }
BROKEN=1 measure 1 decode
measure 75 decode --seconds 0

# cmake and ninja do nothing: there are no programs, and a measurement ends as its stand-in does.
for program in cmake ninja; do
    printf '#!/bin/sh\n' >"$folder/path/$program"
done
cat >"$folder/path/python" <<'END'
#!/bin/sh
case "$*" in
*optim.py*) exit 0 ;;
*decode.py*) exit 75 ;;
*pinn.py*) exit 1 ;;
esac
END
chmod +x "$folder"/path/*
run() { # STATUS PART...
    local status=0
    PATH=$folder/path:$PATH POLYD_PYTHON=$folder/path/python POLYD_BUILD=$folder/run tests/gpu/run --emulated --inputs "$folder/none" \
        --out "$folder/out" --seconds 60 "${@:2}" >"$folder/log" 2>&1 || status=$?
    [ $status = "$1" ] || { echo "run ${*:2} ended with $status, not $1"; cat "$folder/log"; exit 1; }
}
mkdir "$folder/none"
run 0 optim decode
expect "$(cat "$folder/log")" 'partly  decode: something was left out'
[ "$(cat "$folder/out/ended")" = optim ] || { echo "--continue would not measure decode again"; cat "$folder/out/ended"; exit 1; }
run 1 optim pinn
expect "$(cat "$folder/log")" 'FAILED  pinn (status 1'
[ "$(cat "$folder/out/ended")" = optim ] || { echo "--continue would not measure pinn again"; exit 1; }
