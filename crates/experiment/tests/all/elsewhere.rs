//! Keys and values of other trainers.

use annulus_experiment::{Override, parse};

use crate::small::SMALL;

/// Keys and values of other trainers are named by what they are called here.
#[test]
fn what_other_trainers_write_is_answered_with_what_is_written_here() {
    for (argument, hint) in [
        ("sequence_len=4096", "it is `data.tokens` here; "),
        ("block_size=4096", "it is `data.tokens` here; "),
        ("context_parallel_size=4", "it is `mesh.sequence` here; "),
        ("cp=4", "it is `mesh.sequence` here; "),
        ("gradient_checkpointing=true", "it is `memory.recompute` here; "),
        ("dataset=a.txt", "it is `data.path` here; "),
        ("base_model=m", "it is `model.path` here; "),
        ("save_steps=5", "it is `every.checkpoint` here; "),
        ("optim=adamw", "it is `optimizer.name` here; "),
        ("optimizer.optim=adamw", "did you mean `name`? "),
        ("model.dataset=a.txt", "it is `data.path` here; "),
        ("packing=true", "it is `data.pack` here; "),
        ("use_rslora=true", "it is `lora.rslora` here; "),
        ("gradient_clipping=1", "it is `optimizer.clip` here; "),
        ("train_batch_size=8", "it is `data.batch` here; "),
        (
            "val_set_size=0.05",
            "it is `data.evaluate` here: `data.evaluate` counts sequences: share",
        ),
        ("stages={ a: { seq_length: 5 } }", "did you mean `tokens`? "),
        ("output_dir=runs", "did you mean `output`? "),
        ("cutoff_len=4096", "it is `data.tokens` here; "),
        ("warmup_ratio=0.03", "it is `schedule.warmup` here: `schedule.warmup` counts steps"),
        ("gradient_accumulation_steps=4", "`data.batch` / (`mesh.data` × accumulation steps)"),
        ("data.seq_length=5", "did you mean `tokens`? "),
        ("micro_batch=5", "`micro_batch` is a key of `memory`; "),
        (
            "schedule={ steps: 20,000 }",
            "a comma begins another key: write numbers without commas; ",
        ),
        ("schedule.steps=20,000", "write 20000"),
        ("schedule.steps=1e6", "write 1000000"),
        ("memory.recompute=full", "did you mean `layer`?"),
        ("parallel.state=fsdp", "did you mean `zero3`?"),
        ("parallel.state=2", "did you mean `zero2`?"),
        ("attention.strategy=cp", "`ring` is the usual one, `auto` the fastest that fits"),
        ("attention.strategy=flash", "every strategy uses a fused attention kernel"),
        ("schedule.decay=cos", "did you mean `cosine`?"),
        ("reproducible=true", "did you mean `strict`?"),
        ("memory.offload=cpu", "they go to the memory of its host"),
        ("background_saves=yes", "write `true`"),
        ("evaluation.tasks=[needles]", "did you mean `needle`?"),
        ("evaluation.tasks=needle", "write `[needle]`"),
        ("evaluation.lengths=64", "write `[64]`"),
        ("optimizer.betas=0.9", "write two, such as `[0.9, 0.95]`"),
        ("extend.rope=ntk-aware", "did you mean `ntk`?"),
    ] {
        let given = Override::split(argument).expect("cases have a `=`");
        let said = parse("small.yaml", SMALL, &[given]).expect_err(argument).to_string();
        assert!(said.contains(hint), "{argument}: {said}");
    }
    let beta = [Override::split("optimizer.betas=[0.9, 1]").expect("an argument")];
    let said = parse("small.yaml", SMALL, &beta).expect_err("a beta of one").to_string();
    assert!(said.contains("below 1, found `1`"), "{said}");
}
