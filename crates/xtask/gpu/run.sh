#!/bin/bash
# Compares every kernel with plain loops on a GPU, then the speed of kernels with PyTorch's attention, and of training steps with
# transformers'.
# Needs glibc 2.35 or later, NVIDIA's driver, and a Python with PyTorch, whose CUDA libraries are used; says so where transformers is
# missing. Results go to the folder $OUT, which is made if it is not there, or here: a file or two of a task, and log.txt.
#   run.sh [check | rule | verify | sanitize | time | ring | gpus | several | step | offload | longest]...    all of them if none is named, none over
#   ten minutes;
#   $LIMIT is the most seconds of all of them together
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${OUT:-$here}" && out=$(cd "${OUT:-$here}" && pwd) || exit 2
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
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader | tee "$out/log.txt"
failed=0
ends=0
last=$((SECONDS + ${LIMIT:-100000}))

# The most seconds of a command: as given, or what is left of its task's time.
limit() {
  local left=$((ends - SECONDS))
  echo $((left < 1 ? 1 : $1 < left ? $1 : left))
}

# Remembers the length of the log, before a command that may write to it.
begins() {
  begun=$(wc -c <"$out/log.txt")
}

# Runs a command for at most so many seconds; the log gets its errors.
run() {
  begins
  timeout "$(limit "$1")" "${@:2}" 2>>"$out/log.txt"
}

# Reports the last command, which failed, with the end of what it wrote to the log.
trouble() {
  local said
  said=$(tail -c "+$((begun + 1))" "$out/log.txt" | tail -n 3)
  if [ "$2" -eq 124 ]; then
    echo "$1: its time ran out${said:+:}"
  else
    echo "$1 ended with $2${said:+:}"
  fi
  [ -z "$said" ] || echo "$said"
}

# Reports the end of another program that we are compared with. Its time may run out (124), and it may be missing (3): no failure of ours.
peer() {
  [ "$2" -eq 0 ] && return
  trouble "$1" "$2"
  [ "$2" -eq 124 ] || [ "$2" -eq 3 ] || failed=1
}

table() {
  begins
  python3 "$here/tables.py" "$1" "$2" 2>>"$out/log.txt" || { trouble "tables.py $1" $?; failed=1; }
}

# Kernels that this GPU does not run, and tests that find nothing to run, are said so: such a test succeeds.
check() {
  timeout "$(limit 240)" "$work/kernels" --test-threads=1 --show-output >"$out/check.txt" 2>&1 || { failed=1; tail -n 15 "$out/check.txt"; }
  grep 'NOT RUN' "$out/check.txt" | sort -u
  grep '^test result' "$out/check.txt"
}

# Compares errors with those of PyTorch in the same type.
rule() {
  run 400 python3 "$here/rule.py" "$work/annulus" cuda:0 >"$work/rule.jsonl" || { trouble rule.py $?; failed=1; }
  grep '"fine": false' "$work/rule.jsonl" | head -n 5
  tail -n 1 "$work/rule.jsonl"
  cat "$work/rule.jsonl" >>"$out/log.txt"
}

# The number of GPUs that programs see here: not all that nvidia-smi lists, and not parts of one.
gpus_seen() {
  python3 -c 'import torch; print(torch.cuda.device_count())'
}

# Paths in an experiment are relative to the folder where the command runs.
experiments() {
  [ -d "$work/experiments" ] || (cd "$work" && ./annulus init experiments >/dev/null)
}

# Compares every strategy on 1 to 3 ranks that share the GPU with dense attention in f64: outputs, gradients, visible keys, and loss and
# gradients of a model, under every kind of mask.
verify() {
  experiments
  : >"$out/verify.txt"
  local mask dtype tried=0 exact=0
  for mask in "" "attention.window=50" "attention.documents=data" "attention.prefix=40" "attention.window=50 attention.sinks=3" \
    "attention.pattern=strided attention.stride=17" "attention.window=20 attention.dilation=3" \
    "attention.window=40 attention.global=[0-1,150]"; do
    for dtype in bf16 f32; do
      run 120 env -C "$work" ./annulus verify experiments/quickstart.yaml --ranks 3 --json device=cuda:0 data.tokens=301 \
        model.dtype=$dtype model.head_dim=64 model.num_hidden_layers=2 $mask >"$work/verified.txt" &&
        exact=$((exact + 1)) || trouble "verify $dtype $mask" $?
      tried=$((tried + 1))
      echo "$dtype, ${mask:-causal}: $(tail -n 1 "$work/verified.txt")" | tee -a "$out/verify.txt"
    done
  done
  echo "$exact of $tried are exact"
  [ $exact -eq $tried ] || failed=1
}

# Runs small sizes of one kernel of every generation under the sanitizer; says so if the tool is missing or may not run, and which kernels
# this GPU does not run.
sanitize() {
  if ! command -v compute-sanitizer >/dev/null; then echo "compute-sanitizer: not on this machine"; return; fi
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
  for tool in memcheck racecheck synccheck initcheck; do
    for only in sm80_bf16_d64 sm90_bf16_d64 sm90_bf16_d128 sm100_bf16_d64 sm100_bf16_d128; do
      if [[ $only = sm100* && $capability != 10.* ]]; then echo "compute-sanitizer $tool $only: NOT RUN, not its GPU"; continue; fi
      if [ "$(limit 5)" -lt 5 ]; then echo "compute-sanitizer $tool $only: NOT RUN, no time is left"; continue; fi
      ANNULUS_KERNELS_ONLY=$only timeout "$(limit 120)" compute-sanitizer --tool $tool --error-exitcode 9 "$work/kernels" small \
        --test-threads=1 --show-output >"$work/said.txt" 2>&1
      code=$?
      [ $code -eq 0 ] || [ $code -eq 124 ] || failed=1
      echo "compute-sanitizer $tool $only: exit $code: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|not supported' "$work/said.txt" | tail -1);" \
        "$(grep '^small: ' "$work/said.txt" || echo 'small: NOT RUN')" | tee -a "$out/log.txt"
      tail -c 100000 "$work/said.txt" >>"$out/log.txt"
    done
  done
}

time_all() {
  run 240 python3 "$here/sdpa.py" >"$out/peers.jsonl" || trouble sdpa.py $?
  run 300 "$work/annulus-bench" gpu --beside "$out/peers.jsonl" >"$out/gpu.jsonl" ||
    { trouble "annulus-bench gpu" $?; failed=1; }
  begins
  python3 - "$out/gpu.jsonl" 2>>"$out/log.txt" <<'PYTHON' || { trouble "the table" $?; failed=1; }
import json, sys
print(f"{'tokens':>7} {'dim':>4} {'mask':<7} {'pass':<14} {'gen':<5} {'TFLOP/s':>8} {'peer':>8} {'ratio':>6}  best peer")
for line in open(sys.argv[1]):
    p = json.loads(line)
    name = p["pass"] + (" (same bits)" if p["deterministic"] else "")
    print(f"{p['tokens']:>7} {p['head_dim']:>4} {p['mask']:<7} {name:<14} {p['generation']:<5} {p['tflops']:>8.1f} {p.get('peer_tflops', 0):>8.1f} {p.get('ratio', 0):>6.2f}  {p.get('peer', '')}")
PYTHON
}

# A step that four ranks share on one GPU against one rank's: losses must agree, and it may take 1.10 times the time.
ring() {
  : >"$out/ring.jsonl"
  for numbers in "bf16 64k" "f32 16k"; do
    set -- $numbers
    run 270 "$work/annulus-bench" ring --part step --device cuda:0 --model 1b --layers 4 --dtype "$1" --tokens "$2" --ranks 4 \
      --strategy striped --recompute layer --pairs 5 --foreign 4 --at-least 0.909 >>"$out/ring.jsonl" ||
      { trouble "annulus-bench ring, $1" $?; failed=1; }
  done
  table ring "$out/ring.jsonl"
}

# Ranks of one process on several GPUs, whose tensors are copied between them: a few steps must have the bits of the same ranks on one.
gpus() {
  local devices
  devices=$(gpus_seen)
  if [ "${devices:-0}" -lt 2 ]; then echo "gpus: NOT RUN, it needs two"; return; fi
  experiments
  for device in cuda:0 "cuda:0-$((devices - 1))"; do
    run 270 env -C "$work" ./annulus train experiments/quickstart.yaml device=$device mesh.sequence=$devices model.dtype=bf16 \
      model.head_dim=64 schedule.stop=6 every.hash=1 expect=null sample=null "output=runs/$device" >>"$out/log.txt" || { trouble "training on $device" $?; failed=1; }
  done
  if cmp "$work/runs/cuda:0/hashes.jsonl" "$work/runs/$device/hashes.jsonl"; then
    echo "gpus: $devices GPUs have the bits of one after each of 6 steps"
  else
    failed=1
  fi
}

# Two processes, a GPU each, whose tensors go by NCCL: every strategy and mask must have the bits of two threads on one GPU. On a
# machine with one GPU both processes share it where NCCL allows that (2.32 does, by this variable), and run at once if there is MPS:
# without it they take turns, and a transfer waits for the other's.
several() {
  if ! command -v mpirun >/dev/null; then echo "several: no mpirun on this machine"; return; fi
  local own_mps= nccl
  nccl=$("$work/annulus" doctor --json 2>>"$out/log.txt" | python3 "$here/tables.py" nccl /dev/stdin 2>>"$out/log.txt")
  if [ "$(gpus_seen)" -eq 1 ] && [[ $nccl = 1.* || $nccl =~ ^2\.([0-9]|[12][0-9]|3[01])\. ]]; then
    echo "several: NOT RUN, NCCL $nccl lets no two processes share a GPU"
    return
  fi
  if [ "$(gpus_seen)" -eq 1 ]; then
    export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
    mkdir -p "$work/mps"
    if nvidia-cuda-mps-control -d >>"$out/log.txt" 2>&1; then
      own_mps=1
    else
      echo "several: without MPS"
      unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    fi
  fi
  experiments
  # Containers have only root and few cores, which Open MPI refuses by default, and binds both processes to one core.
  local flags=
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
  mpirun --version 2>&1 | grep -q 'Open MPI' && flags="--oversubscribe --bind-to none"
  run 540 env -C "$work" mpirun $flags -n 2 ./annulus agree experiments/quickstart.yaml --engines threads,nccl --steps 1 --json \
    device=cuda mesh.sequence=2 model.dtype=bf16 >"$out/several.json" || { trouble "annulus agree" $?; failed=1; }
  if [ -n "$own_mps" ]; then
    # It waits for processes that are still on the GPU.
    echo quit | timeout 10 nvidia-cuda-mps-control >>"$out/log.txt" 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
  table several "$out/several.json"
}

# As an option, the TFLOP/s to which speeds are relative: those in the GPU's data sheet, where `annulus doctor` knows it, and those of a
# matrix product here.
peaks() {
  local sheet reached
  sheet=$("$work/annulus" doctor --json 2>>"$out/log.txt" | python3 "$here/tables.py" peak /dev/stdin 2>>"$out/log.txt")
  reached=$(timeout "$(limit 60)" python3 "$here/sdpa.py" matmul 2>>"$out/log.txt" | python3 "$here/tables.py" tflops /dev/stdin)
  [ -z "$sheet$reached" ] || echo "--peak $sheet${sheet:+${reached:+,}}$reached"
}

llama="--model 1b --dtype bf16 --recompute layer"

# Compares a step of Llama 3.2 1B's shape over 64k tokens with transformers.
step() {
  local peak
  peak=$(peaks)
  : >"$out/step.jsonl"
  for order in "" --deterministic --planned-chunks; do
    run 100 "$work/annulus-bench" step --device cuda $llama $order --tokens 64k --samples 3 $peak >>"$out/step.jsonl" || { trouble "annulus-bench step $order" $?; failed=1; }
  done
  for logits in whole chunks; do
    run 120 python3 "$here/llama.py" $llama --loss $logits --tokens 65536 --samples 3 $peak >>"$out/step.jsonl"
    peer "llama.py, logits $logits" $?
  done
  table step "$out/step.jsonl"
}

# Compares a step of Llama 3.2 1B's shape over 64k tokens that offloads to page-locked memory of the host with one that does not.
offload() {
  : >"$out/offload.jsonl"
  for what in none activations both; do
    run 120 "$work/annulus-bench" step --device cuda $llama --offload $what --tokens 64k --samples 3 >>"$out/offload.jsonl" || { trouble "annulus-bench step --offload $what" $?; failed=1; }
  done
  table step "$out/offload.jsonl"
}

# Finds the longest sequence for which a step succeeds, here and in transformers; if time runs out (124), its bounds. Ours begins where a
# step nearly fills a GPU of 141 GB: every trial draws and copies all weights.
longest() {
  local code
  run 330 "$work/annulus-bench" step --device cuda $llama --tokens 512k --longest 32k >"$out/longest.jsonl"
  code=$?
  [ $code -eq 0 ] || trouble "annulus-bench step --longest" $code
  [ $code -eq 0 ] || [ $code -eq 124 ] || failed=1
  run 220 python3 "$here/llama.py" $llama --loss chunks --tokens 131072 --longest 32768 >>"$out/longest.jsonl"
  peer "llama.py --longest" $?
  table longest "$out/longest.jsonl"
}

for task in "${@:-check rule verify sanitize time ring gpus several step offload longest}"; do
  for one in $task; do
    ends=$((SECONDS + 560 < last ? SECONDS + 560 : last))
    case $one in
      check | rule | verify | sanitize | ring | gpus | several | step | offload | longest) $one;;
      time) time_all;;
      *) echo "unknown: $one"; failed=1;;
    esac
  done
done
# A machine may hand back only a few files: those that nothing was written to are left out.
for name in check.txt verify.txt peers.jsonl gpu.jsonl ring.jsonl several.json step.jsonl offload.jsonl longest.jsonl; do
  [ -s "$out/$name" ] || rm -f "$out/$name"
done
rm -rf "$work"
exit $failed
