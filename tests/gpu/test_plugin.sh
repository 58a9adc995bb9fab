#!/bin/bash
# test_plugin.sh BUILD NVCC: what can be seen of the CUDA plug-ins without a GPU: that they take no symbol from the
# program that opens them, which registers kernels spill (spills.txt), and, where cuobjdump is, the instructions that
# Hopper kernels stand for.
set -u
build=$1
nvcc=$2
here=$(dirname "$0")
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}

for plugin in backend_cuda backend_cuda_emulated; do
    file=$build/bin/$plugin.so
    if [ ! -f "$file" ]; then
        echo "skipped: there is no $file"
        continue
    fi
    ours=$(nm -D --undefined-only "$file" | awk '{ print $NF }' | grep -E '^(pk|pd|cuda)_' || true)
    [ -z "$ours" ] || fail "$plugin.so takes symbols from the program: $ours"
    given=$(nm -D --defined-only "$file" | awk '$2 ~ /[TDB]/ { print $3 }' | grep -E '^(pk|pd|cuda|_Z)' || true)
    # pk_emu_note: tests ask the emulation what a call would launch (emu/note.h).
    [ "$plugin" = backend_cuda ] || given=$(grep -v '^pk_emu_note$' <<<"$given")
    [ "$given" = pk_backend_entry ] || fail "$plugin.so gives more than its entry: $given"
    if [ "$plugin" = backend_cuda ] && readelf -d "$file" | grep -q 'NEEDED.*\(libcudart\|libcuda\.\)'; then
        fail "$plugin.so needs a driver or a runtime to load"
    fi
    echo "$plugin.so: one symbol out, none of ours in"
done

logs=$(find "$build/kernels/backend/cuda" -name '*.cu.o.ptxas' 2>/dev/null)
# Without setmaxnreg or with serialised wgmma a kernel of sm 90 is right and slow, and ptxas says so in a line of information.
if [ -n "$logs" ] && grep -H 'Potential Performance Loss' $logs | sed 's/.*backend_cuda\.dir/FAILED: ptxas on/' | grep .; then
    failed=1
fi
if [ -z "$logs" ]; then
    echo "skipped: no reports of ptxas in $build"
else
    known=$(grep -o 'V[0-9.]*[0-9]' "$here/spills.txt" | head -n 1)
    this=$("$nvcc" --version | grep -o 'V[0-9.]*[0-9]' | head -n 1)
    [ "$known" = "$this" ] || echo "skipped: registers that kernels spill are known of nvcc $known, this is $this"
    # shellcheck disable=SC2086
    awk -v budgets="$here/spills.txt" -v held="$([ "$known" = "$this" ] && echo 1 || echo 0)" '
        BEGIN {
            while ((getline line < budgets) > 0)
                if (line !~ /^#/ && split(line, f) == 3 && f[1] !~ /^formula\//) { n++; file[n] = f[1]; part[n] = f[2]; most[n] = f[3] }
        }
        /Compiling entry function/ {
            split($0, q, "\x27"); name = q[2]; sm = q[4]
            kernels++
        }
        /bytes stack frame/ && sm == "sm_90a" && held {
            bytes = $5
            source = FILENAME; sub(/.*backend_cuda\.dir\//, "", source); sub(/\.o\.ptxas$/, "", source)
            allowed = 0; at = 0
            for (i = 1; i <= n; i++)
                if (file[i] == source && index(name, part[i])) { allowed = most[i]; at = i; seen[i] = 1 }
            if (bytes > allowed) { printf "FAILED: %s: %s spills %d bytes, %d are known\n", source, name, bytes, allowed; bad = 1 }
            else if (at && bytes < allowed) { printf "FAILED: %s: %s spills only %d bytes: lower its line in spills.txt\n", source, name, bytes; bad = 1 }
        }
        /Potential Performance Loss/ { print "FAILED: " $0; bad = 1 } # products of sm 90 one after the other
        END { printf "%d kernels, %d known to spill\n", kernels, n; exit bad }' $logs || failed=1
fi

dump=$(command -v cuobjdump || true)
[ -n "$dump" ] || [ ! -x "$(dirname "$nvcc")/cuobjdump" ] || dump=$(dirname "$nvcc")/cuobjdump
hopper=$(find "$build/kernels/backend/cuda" -path '*attention/hopper_fwd.cu.o' 2>/dev/null | head -1)
if [ -z "$dump" ]; then
    echo "skipped: HGMMA and bulk tensor copies in Hopper kernels (no cuobjdump here)"
elif [ -n "$hopper" ]; then
    text=$("$dump" -sass "$hopper")
    grep -q HGMMA <<<"$text" || fail "no HGMMA in the Hopper kernels"
    grep -q UTMALDG <<<"$text" || fail "no bulk tensor copy (UTMALDG) in the Hopper kernels"
fi
exit $failed
