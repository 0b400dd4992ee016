#!/usr/bin/env bash
# Makes what the notebooks read, below notebooks/data: small runs under five strategies, what was planned for them, layouts,
# a described cluster. Takes under a minute with a built program; times are this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet --package annulus-cli
annulus() { cargo run --release --quiet --package annulus-cli -- "$@"; }
data=notebooks/data
for strategy in ring striped megatron all-gather ulysses; do
  run=runs/notebooks/$strategy
  rm -rf "$run"
  changes=(data.path=README.md data.evaluate=0 mesh.sequence=4 "attention.strategy=$strategy" "output=$run")
  annulus train experiments/strategies-agree.yaml "${changes[@]}"
  mkdir -p "$data/$strategy"
  cp "$run"/{experiment.yaml,given.yaml,manifest.json,metrics.jsonl} "$data/$strategy"
  rm -rf "$run"
  annulus plan experiments/strategies-agree.yaml "${changes[@]}" --json > "$data/$strategy/plan.json"
done
for layout in ring striped megatron "ring --layout balanced --window 8"; do
  # shellcheck disable=SC2086
  annulus layout $layout --tokens 32 --json
done > "$data/layouts.jsonl"
annulus plan experiments/million-tokens.yaml --cluster experiments/clusters/h100.yaml --json \
  mesh.sequence=8 model.hidden_size=2048 model.intermediate_size=8192 model.num_hidden_layers=16 \
  model.num_attention_heads=32 model.num_key_value_heads=8 model.dtype=bf16 memory.budget=640G > "$data/cluster.json"
