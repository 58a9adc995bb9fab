#!/bin/bash
# Which programs tests/gpu/run takes: those of tests/gpu/prepare --built where GPU, driver, compiler and sources fit and they
# start; else it says why and builds. GPU, compiler and programs are stand-ins here, and a build is one that fails.
set -eu
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{path,inputs,made/bin}

stand_in() { # FILE TEXT
    printf '#!/bin/sh\n%s\n' "$2" >"$1"
    chmod +x "$1"
}
gpu() { # CAPABILITY DRIVER
    stand_in "$folder/path/nvidia-smi" "case \"\$*\" in
    *query-gpu*) echo 'NVIDIA H200, 580.1, $1' ;;
    *) echo '| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: $2 |' ;;
    esac"
}
compiler() { # RELEASE
    stand_in "$folder/path/nvcc" "echo 'Cuda compilation tools, release $1, V$1.1'"
}
pack() { # STATUS of polyd --version
    for program in polyd polyd-worker golden_cuda backend_cuda.so; do
        stand_in "$folder/made/bin/$program" "exit 0"
    done
    stand_in "$folder/made/bin/polyd" "exit $1"
    tar -C "$folder/made" -cJf "$folder/inputs/built.tar.xz" bin
}
facts() { # ARCH CUDA SOURCES
    printf 'arch %s\ncuda %s\nsources %s\n' "$@" >"$folder/inputs/built.facts"
}
# What run says, after those it built before are forgotten.
run() {
    rm -rf "$folder/build"
    PATH=$folder/path:$PATH POLYD_BUILD=$folder/build tests/gpu/run --build-only --inputs "$folder/inputs" --out "$folder/out" 2>&1 || true
}
expect() { # TEXT of run's output
    local said
    said=$(run)
    grep -qF -- "$1" <<<"$said" || { printf 'lacks: %s\n%s\n' "$1" "$said"; exit 1; }
}

stand_in "$folder/path/cmake" 'echo "no build here"; exit 1'
own=$(tests/gpu/sources)
gpu 9.0 13.0
compiler 13.0
pack 0
facts 90a 13.0 "$own"
expect 'ok      programs made by tests/gpu/prepare --built'
[ -x "$folder/build/bin/polyd-worker" ] || { echo "nothing was unpacked"; exit 1; }
gpu 9.0 13.1
expect 'ok      programs made by tests/gpu/prepare --built'
compiler 12.8
expect 'they were compiled by nvcc 13.0, here is 12.8'
compiler 13.0
gpu 9.0 12.8
expect 'they need a driver for CUDA 13.0, this one is for 12.8'
gpu 8.0 13.0
expect 'they are for sm_90a, this GPU is sm_80'
gpu 9.0 13.0
facts 90a 13.0 "${own}0"
expect 'the sources have changed since'
expect 'FAILED  build'
facts 90a 13.0 "$own"
pack 1
expect 'polyd does not start'
[ ! -e "$folder/build/bin" ] || { echo "programs that do not fit lie where a build puts its own"; exit 1; }

# Without a toolkit cublasLt comes from Python, never from the emulation's headers in this tree; and Python writes no bytecode.
mkdir -p "$folder/wheels/include" "$folder/wheels/lib"
touch "$folder/wheels/include/cublasLt.h" "$folder/wheels/lib/libcublasLt.so.13"
stand_in "$folder/path/python" "echo \"\${PYTHONDONTWRITEBYTECODE:-unset}\" >'$folder/bytecode'; echo '$folder/wheels'"
pack 0
PATH=$folder/path:$PATH CUDACXX=$folder/none POLYD_PYTHON=$folder/path/python expect 'ok      programs made by tests/gpu/prepare --built'
[ -e "$folder/build/cublas/libcublasLt.so" ] || { echo "cublasLt was not taken from Python where there is no toolkit"; exit 1; }
[ "$(cat "$folder/bytecode")" = 1 ] || { echo "Python may write bytecode among the sources"; exit 1; }

# ---- tests/gpu/sources: a change of anything that programs are built from changes it ----
tree=$folder/tree
mkdir -p "$tree"/tests/bench/gpu/__pycache__ "$tree"/{api,daemon,deploy/cmake,deploy/presets,kernels,migrations,tests/gpu,web}
cp tests/gpu/sources "$tree/tests/gpu/"
touch "$tree/CMakeLists.txt"
for file in CMakeLists.txt {api,daemon,deploy/cmake,deploy/presets,kernels,migrations,tests,web}/file.cmake README.md kernels/README.md \
    tests/bench/gpu/__pycache__/common.cpython-311.pyc; do
    before=$("$tree/tests/gpu/sources")
    echo changed >"$tree/$file"
    after=$("$tree/tests/gpu/sources")
    case $file in
    *.md | *.pyc) [ "$before" = "$after" ] || { echo "$file is no source"; exit 1; } ;;
    *) [ "$before" != "$after" ] || { echo "$file is a source"; exit 1; } ;;
    esac
done

# ---- the vectors ----
vectors() { # GROUP...
    rm -rf "$folder/made/golden"
    for group in "$@"; do
        mkdir -p "$folder/made/golden/$group"
    done
    tar -C "$folder/made" -cJf "$folder/inputs/golden.tar.xz" golden
}
again() { # without forgetting what was unpacked
    PATH=${1:-$folder/path:$PATH} POLYD_BUILD=$folder/build tests/gpu/run --build-only --inputs "$folder/inputs" --out "$folder/out" 2>&1 || true
}
unpacked() { ls "$folder/build/golden"; }
gpu 9.0 13.0
compiler 13.0
pack 0
facts 90a 13.0 "$(tests/gpu/sources)"
vectors attention
run >/dev/null
[ "$(unpacked)" = attention ] || { echo "the vectors were not unpacked"; exit 1; }
touch "$folder/build/golden/mark"
again >/dev/null
[ -e "$folder/build/golden/mark" ] || { echo "the same vectors were unpacked twice"; exit 1; }
vectors attention swin
again >/dev/null
[ "$(unpacked | tr '\n' ' ')" = "attention swin " ] || { echo "vectors of earlier inputs are still there:" $(unpacked); exit 1; }
# A machine without xz: every other program by its name.
mkdir "$folder/few"
for program in $(compgen -c | sort -u); do
    from=$(type -P "$program") || continue
    [ "$program" = xz ] || ln -sf "$from" "$folder/few/$program"
done
rm -rf "$folder/build"
again "$folder/path:$folder/few" >/dev/null
[ "$(unpacked | tr '\n' ' ')" = "attention swin " ] || { echo "nothing was unpacked without xz"; exit 1; }
mv "$folder/inputs/golden.tar.xz" "$folder/inputs/golden.tar.gz"
said=$(again)
[[ $said == *"was made by an older tests/gpu/prepare"* ]] || { echo "older inputs are taken: $said"; exit 1; }
rm "$folder/inputs/golden.tar.gz"

# ---- tests/gpu/prepare ----
# It packs the vectors that run checks, and those are at least the ones that golden_cuda takes by itself.
lines() { tr , '\n' | sort; }
packed=$(sed -n 's/^tar -C "$shared" .*golden\/{\(.*\)} |$/\1/p' tests/gpu/prepare | lines)
taken=$(sed -n 's/.*part golden-fp32 .*"$golden"\/{\(.*\)}$/\1/p' tests/gpu/run | lines)
usual=$(sed -n '/^#ifdef GOLDEN_ON_CUDA/,/^#else/{/usual\[\]/,/NULL/p}' tests/golden/golden.c | grep -o '"/golden/[a-z]*' | sed 's,.*/,,' | sort)
[ -n "$packed" ] && [ "$packed" = "$taken" ] || { echo "prepare packs other vectors than run checks:" $packed "and" $taken; exit 1; }
missing=$(comm -23 <(echo "$usual") <(echo "$taken"))
[ -n "$usual" ] && [ -z "$missing" ] || { echo "the device never sees these vectors:" $missing; exit 1; }
shared=$folder/shared
mkdir -p "$shared"/golden/{attention,norms,optim,diagnostics,blocks,models,train,swin,deit,xcit,pinn,nystrom} "$shared"/data/{mnist,tinyshakespeare} "$folder/made-here"/{web,api}
touch "$shared/golden/manifest-core.json" "$shared/data/mnist/x" "$shared/data/tinyshakespeare/input.txt" "$folder/made-here/build.ninja"
stand_in "$folder/path/apt-cache" 'exit 0'
stand_in "$folder/path/apt-get" 'exit 0'
stand_in "$folder/path/ninja" 'echo new >"$2/$3"'
echo old | tee "$folder/made-here/web/assets_table.c" >"$folder/made-here/api/openapi.json"
prepare() {
    PATH=$folder/path:$PATH POLYD_SHARED=$shared POLYD_BUILD=$folder/made-here tests/gpu/prepare "$1" 2>&1
}
prepare "$folder/prepared" >/dev/null
[ "$(cat "$folder/prepared/assets_table.c" "$folder/prepared/openapi.json")" = $'new\nnew' ] || { echo "prepare took what an old build has made"; exit 1; }
prepare "$folder/prepared" >/dev/null || { echo "prepare refuses its own folder"; exit 1; }
mkdir "$folder/mine"
prepare "$folder/mine" >/dev/null || { echo "prepare refuses an empty folder"; exit 1; }
rm -r "$folder/mine"
mkdir "$folder/mine"
echo mine >"$folder/mine/file"
said=$(prepare "$folder/mine") && { echo "prepare takes a folder of mine"; exit 1; }
[ -e "$folder/mine/file" ] && [[ $said == *"has files of another kind"* ]] || { echo "prepare removed a folder of mine: $said"; exit 1; }
