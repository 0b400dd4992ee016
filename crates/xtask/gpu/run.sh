#!/bin/bash
# Holds every kernel to plain loops on a GPU, then times them beside PyTorch's attention. Needs glibc 2.35 or later, NVIDIA's driver,
# and a Python with PyTorch, whose CUDA libraries are used. Results go to the folder $OUT, or here.
#   run.sh [check | sanitize | time]...    all of them if none is named
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here}
work=$(mktemp -d)
packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])')
for folder in "$packages"/*/lib /usr/local/cuda/lib64 /usr/local/nvidia/lib64; do
  [ -d "$folder" ] && libraries=${libraries:+$libraries:}$folder
done
export LD_LIBRARY_PATH=${libraries:-}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ANNULUS_KERNELS_ON=cuda:0
for packed in "$here"/*.xz; do
  python3 -c 'import lzma, os, sys; p = sys.argv[2]; open(p, "wb").write(lzma.open(sys.argv[1]).read()); os.chmod(p, 0o755)' \
    "$packed" "$work/$(basename "${packed%.xz}")"
done
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader | tee "$out/gpu.txt"
failed=0

check() {
  timeout 240 "$work/kernels" --test-threads=1 >"$out/check.txt" 2>&1 || failed=1
  tail -n 15 "$out/check.txt"
}

# Small sizes of one kernel of every rung; says so where the tool is not there or may not run.
sanitize() {
  if ! command -v compute-sanitizer >/dev/null; then echo "compute-sanitizer: not on this machine"; return; fi
  for tool in memcheck racecheck synccheck initcheck; do
    for only in sm80_bf16_d64 sm90_bf16_d64 sm90_bf16_d128; do
      ANNULUS_KERNELS_ONLY=$only timeout 120 compute-sanitizer --tool $tool --error-exitcode 9 "$work/kernels" small \
        --test-threads=1 >"$out/$tool-$only.txt" 2>&1
      code=$?
      [ $code -eq 0 ] || failed=1
      echo "compute-sanitizer $tool $only: exit $code: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|not supported' "$out/$tool-$only.txt" | tail -1)"
    done
  done
}

time_all() {
  timeout 240 python3 "$here/sdpa.py" >"$out/peers.jsonl" 2>"$out/peers.txt" || tail -3 "$out/peers.txt"
  timeout 300 "$work/annulus-bench" gpu --beside "$out/peers.jsonl" >"$out/gpu.jsonl" 2>"$out/bench.txt" || { failed=1; tail -3 "$out/bench.txt"; }
  python3 - "$out/gpu.jsonl" <<'PYTHON'
import json, sys
print(f"{'tokens':>7} {'dim':>4} {'mask':<7} {'pass':<14} {'rung':<5} {'TFLOP/s':>8} {'peer':>8} {'ratio':>6}  best peer")
for line in open(sys.argv[1]):
    p = json.loads(line)
    name = p["pass"] + (" (same bits)" if p["deterministic"] else "")
    print(f"{p['tokens']:>7} {p['head_dim']:>4} {p['mask']:<7} {name:<14} {p['rung']:<5} {p['tflops']:>8.1f} {p.get('peer_tflops', 0):>8.1f} {p.get('ratio', 0):>6.2f}  {p.get('peer', '')}")
PYTHON
}

for task in "${@:-check sanitize time}"; do
  for one in $task; do
    case $one in check) check;; sanitize) sanitize;; time) time_all;; *) echo "unknown: $one"; failed=1;; esac
  done
done
rm -rf "$work"
exit $failed
