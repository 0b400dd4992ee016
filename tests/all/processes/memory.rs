//! Memory of ranks in several processes: what threads hold, and what comes from other processes; and what the processes themselves take.

use std::fs;

use annulus_experiment::{Resolved, parse};
use annulus_plan::Plan;
use annulus_tests::run;
use annulus_tests::runs::Place;
use annulus_train::memory::Class;
use serde_json::Value;

use super::{ANNULUS, MPICH, OPEN_MPI};

/// Blocks that are large enough to be counted, one worker a rank.
const MODEL: &str = "\
name: held
model:
  hidden_size: 64
  intermediate_size: 172
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 4
  head_dim: 16
  vocab_size: 258
data: { format: recall, tokens: 1k, batch: 1, evaluate: 0 }
mesh: { sequence: 4 }
attention: { strategy: striped }
memory: { recompute: layer, loss_chunk: 256, mlp_chunk: 256 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 3 }
";
/// Bytes of a rank's keys and values: 256 positions of 64 numbers.
const BLOCK: u64 = 2 * 256 * 64 * 4;

/// The last line of a run's metrics.
fn last(place: &Place, output: &str) -> Value {
    let text = fs::read_to_string(place.path(output).join("metrics.jsonl")).expect("metrics");
    serde_json::from_str(text.lines().last().expect("a step")).expect("JSON")
}

fn of_ranks(line: &Value, tag: &str) -> Vec<u64> {
    serde_json::from_value(line[tag].clone()).unwrap_or_else(|_| panic!("`{tag}` in {line}"))
}

#[test]
fn processes_hold_what_threads_do_and_what_comes_and_say_what_is_resident() {
    let place = Place::new(ANNULUS);
    place.write("held.yaml", MODEL);
    run(ANNULUS, &place.path(""), &["train", "held.yaml", "output=threads"]).ended(0);
    let threads = last(&place, "threads");
    let resolved = parse("held.yaml", MODEL, &[]).and_then(|parsed| Resolved::read(parsed, None));
    let plan = resolved.and_then(|resolved| Plan::new(&resolved)).expect("a plan");
    for mpi in [MPICH, OPEN_MPI] {
        for processes in [2, 4] {
            let output = format!("{}-{processes}", mpi.name);
            let arguments = ["train", "held.yaml", &format!("output={output}")];
            let Some(ran) = mpi.run(&place, processes, &arguments) else { return };
            ran.ended(0);
            let found = last(&place, &output);
            // Every process holds what one process does: its first rank the weights, each a slice of the moments.
            for (tag, is_shared) in [("memory/weights", true), ("memory/optimizer", false)] {
                let all = of_ranks(&threads, tag).iter().sum::<u64>();
                for process in of_ranks(&found, tag).chunks(4 / processes) {
                    assert_eq!(process.iter().sum::<u64>(), all, "{output}: {tag}");
                    assert!(process[1..].iter().all(|bytes| (*bytes == 0) == is_shared), "{tag}");
                }
            }
            // What comes is this rank's here; among threads it is lent.
            for (rank, held) in of_ranks(&found, "memory/key_value").into_iter().enumerate() {
                let planned = plan.over(processes).ranks[rank].peak_by_class[Class::KeyValue];
                // A rank may be a hop ahead of each other one of its process, which holds what came before; or none.
                let most = planned + (4 / processes as u64 - 1) * BLOCK;
                assert!(held <= most, "{output}: rank {rank} holds {held} of {planned}");
                assert!(held > of_ranks(&threads, "memory/key_value")[rank]);
            }
            for process in 0..processes {
                let resident = found[format!("memory/resident/process-{process}")].as_f64();
                assert!(resident.is_some_and(|bytes| bytes > 1e6), "{output}: {found}");
            }
            assert!(ran.stdout.contains("resident memory") && ran.stdout.contains("    host "));
        }
    }
}
