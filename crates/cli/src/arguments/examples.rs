//! The examples below the `--help` of every command.

use annulus_train::Exit;

pub(super) const TRAIN: &str = "\
Examples:
  annulus train experiments/quickstart.yaml
  annulus train experiment.yaml data.tokens=64k mesh.sequence=8
  annulus train experiment.yaml                # the same command resumes after a stop
  annulus train runs/mine schedule.steps=2000  # more steps: `schedule.decay` is constant, or wsd before its cooldown
  annulus train experiment.yaml output=runs/fork --from runs/mine/step-500   # a fork: another schedule, other data";
pub(super) const SWEEP: &str = "\
Examples:
  annulus check experiments/sweep.yaml         # checks all runs and lists them
  annulus sweep experiments/sweep.yaml         # the same command resumes after a stop, or a kill -9
  annulus sweep experiments/sweep.yaml sweep.seeds=5 'data.tokens=[1k,2k]'
  annulus table runs/sweep --markdown > table.md";
pub(super) const CHECK: &str = "\
Examples:
  annulus check experiment.yaml
  annulus check experiment.yaml memory.budget=16G --json";
pub(super) const PLAN: &str = "\
Examples:
  annulus plan experiment.yaml
  annulus plan experiment.yaml --cluster experiments/clusters/h100.yaml --svg plan.svg
  annulus plan --compare --tokens 1M --ranks 64 --bandwidth 50GB/s";
pub(super) const PROVE: &str = "\
Examples:
  annulus prove experiment.yaml attention.strategy=megatron mesh.sequence=6";
pub(super) const LAYOUT: &str = "\
Examples:
  annulus layout striped --ranks 4 --tokens 16
  annulus layout ring --layout zigzag --hops
  annulus layout usp --ranks 16 --hops --all
  annulus layout striped --ranks 8 --tokens 64 --svg striped.svg";
pub(super) const TRACE: &str = "\
Examples:
  annulus trace experiment.yaml --layer 3 --svg hops.svg
  annulus train experiment.yaml 'trace.steps=[2]' && annulus trace runs/mine";
pub(super) const VERIFY: &str = "\
Examples:
  annulus verify experiment.yaml data.tokens=512 --ranks 4";
pub(super) const EVALUATE: &str = "\
Examples:
  annulus evaluate runs/mine 'evaluation.lengths=[1k,8k,64k]'
  annulus evaluate runs/mine/step-500 --out before
  annulus evaluate runs/mine evaluation.path=held.jsonl evaluation.format=chat
  annulus evaluate hf://owner/name data.path=book.txt mesh.sequence=4 attention.strategy=striped";
pub(super) const GENERATE: &str = "\
Examples:
  annulus generate runs/mine --prompt Whale --tokens 200
  annulus generate path/to/model --file prompt.txt --temperature 0";
pub(super) const SCORE: &str = "\
Examples:
  annulus score --model path/to/model --tokens ids.safetensors --out scored.safetensors --gradients";
pub(super) const ATTEND: &str = "\
Examples:
  annulus attend --case case.safetensors --out found.safetensors --strategy striped --ranks 4";
pub(super) const TOKENIZE: &str = "\
Examples:
  annulus tokenize books --out runs/cache
  annulus tokenize lines.jsonl.zst --jsonl --tokenizer hf://owner/name --out runs/cache";
pub(super) const TOKENIZER: &str = "\
Examples:
  annulus tokenizer train books --vocab 4096 --out tokenizer.json";
pub(super) const INIT: &str = "\
Examples:
  annulus init && annulus train experiments/quickstart.yaml";
pub(super) const DATA: &str = "\
Examples:
  annulus data show experiment.yaml --tokens 200
  annulus data show chats.jsonl --chat --tokenizer path/to/model/tokenizer.json";
pub(super) const EXPORT: &str = "\
Examples:
  annulus export runs/mine --out model --shard 5GB
  annulus export runs/lora/step-500 --out merged --merge
  annulus export runs/lora --out merged --merge model.path=moved/base";
pub(super) const COMPARE: &str = "\
Examples:
  annulus compare runs/ring runs/striped
  annulus compare runs/a runs/b runs/c --png losses.png
  annulus compare runs/a runs/b --json";
pub(super) const TABLE: &str = "\
Examples:
  annulus table runs/sweep
  annulus table runs/a-1 runs/a-2 runs/b-1 runs/b-2   # rows are runs that differ in their seed alone
  annulus table runs/sweep --csv --no-times > table.csv";
pub(super) const BISECT: &str = "\
Examples:
  annulus train experiments/same-bits.yaml every.hash=1 output=runs/a
  annulus train experiments/same-bits.yaml every.hash=1 output=runs/b mesh.sequence=2
  annulus bisect runs/a runs/b         # bit-identical: the file says `reproducible: strict`
  annulus bisect runs/a runs/b --json";
pub(super) const REPRODUCE: &str = "\
Examples:
  annulus reproduce runs/mine
  annulus reproduce runs/mine --out /tmp/again data.path=moved/book.txt
  ANNULUS_VECTOR=avx2 annulus reproduce runs/mine   # with other vector instructions: bits may differ";
pub(super) const REPLAY: &str = "\
Examples:
  annulus replay runs/mine --step 300
  annulus replay runs/mine --step 300 --out step-300 --json
  annulus replay runs/mine --step 300 data.path=moved/book.txt";
pub(super) const REPORT: &str = "\
Examples:
  annulus report runs/mine
  annulus report runs/ring runs/striped --out compared.html
  annulus train experiments/quickstart.yaml 'trace.steps=[2]' every.hash=100 && annulus report runs/quickstart";
pub(super) const EXPORT_METRICS: &str = "\
Examples:
  annulus export-metrics runs/mine > metrics.csv";
pub(super) const DOCTOR: &str = "\
Examples:
  annulus doctor --json";
pub(super) const AGREE: &str = "\
Examples:
  annulus agree experiments/quickstart.yaml --engines threads,mpi mesh.sequence=4 data.tokens=96
  annulus agree experiment.yaml -n 4 --steps 20 --json
  mpirun -n 4 annulus agree experiment.yaml   # processes that a launcher starts";
pub(super) const LAUNCH: &str = "\
Examples:
  annulus launch --restarts 3 train experiments/quickstart.yaml   # ranks are threads of one process
  annulus launch -n 2 --restarts 3 train experiment.yaml mesh.sequence=4";
pub(super) const POST_MORTEM: &str = "\
Examples:
  annulus post-mortem runs/quickstart";
pub(super) const EXPLAIN: &str = "\
Examples:
  annulus explain attention.strategy
  annulus explain tokens
  annulus explain megatron
  annulus explain 5";
pub(super) const COMPLETIONS: &str = "\
Examples:
  annulus completions bash > ~/.local/share/bash-completion/completions/annulus
  annulus completions zsh > ~/.zfunc/_annulus";
pub(super) const MAN: &str = "\
Examples:
  annulus man > ~/.local/share/man/man1/annulus.1";
pub(super) const STRATEGIES: &str = "\
Examples:
  annulus strategies > strategies.md";
pub(super) const SCHEMA: &str = "\
Examples:
  annulus schema > schema.json
  annulus schema --markdown";

/// The text below the list of commands: how to begin, and the exit codes.
pub(super) fn of_all() -> String {
    let codes = Exit::ALL.map(|exit| format!("  {:<3} {}", exit.code(), exit.about()));
    format!(
        "Begin with `annulus train experiments/quickstart.yaml`; every command has examples below its `--help`.\n\n\
         Exit codes:\n{}",
        codes.join("\n")
    )
}
