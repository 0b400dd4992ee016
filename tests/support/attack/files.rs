//! Files of others: nothing of them is removed, written, or copied.

use super::{Case, case};

/// What comes of a link that leads to others' files: refused, whichever file it is.
const REFUSED: &[i32] = &[2, 3, 4];
/// What may come of a link to others' files where it may also be replaced: refused, or replaced.
const REPLACED: &[i32] = &[0, 2, 3, 4];

pub(super) const CASES: &[Case] = &[
    case(
        "A1 foreign .tmp files in the run's folder",
        "mkdir -p out/work.tmp; echo years >out/work.tmp/thesis; echo x >out/notes.tmp; annulus train tiny.yaml output=out",
        &[0],
        &[],
    )
    .then("test \"$(cat out/work.tmp/thesis)\" = years -a -f out/notes.tmp")
    .short(),
    case(
        "A1 the run's folder is the current one",
        "mkdir work.tmp; echo years >work.tmp/thesis; annulus train tiny.yaml output=.",
        &[0],
        &[],
    )
    .then("test \"$(cat work.tmp/thesis)\" = years -a -f texts.jsonl"),
    case(
        "A1 names that are almost ours",
        "mkdir out; for n in .annulus-notes.partial .annulus-.partial step-1.partial step-1.tmp .annulus-0123456789abcde/.partial; do mkdir -p out/$n; echo years >out/$n/thesis; done; annulus train tiny.yaml output=out",
        &[0],
        &[],
    )
    .then("test $(find out -name thesis | wc -l) = 5"),
    case(
        "A1 what a crash left is swept",
        "mkdir -p out/.annulus-0123456789abcdeF.partial/x; annulus train tiny.yaml output=out",
        &[0],
        &[],
    )
    .then("test ! -e out/.annulus-0123456789abcdeF.partial"),
    case(
        "A2 temporary folders that somebody made before",
        "mkdir tmp; export TMPDIR=$PWD/tmp; i=1; while [ $i -le 300 ]; do p=$(($$+i)); mkdir tmp/annulus-show-$p; ln -s ../../../others/secret \"tmp/annulus-show-$p/$p-ThreadId(1).stamps-partial\"; i=$((i+1)); done; annulus data show text.txt",
        &[0],
        &[],
    )
    .then("test $(ls tmp | wc -l) = 300 && test $(find tmp -type l | wc -l) = 300")
    .short(),
    case(
        "A2 nothing temporary is left",
        "mkdir tmp; TMPDIR=$PWD/tmp annulus data show text.txt",
        &[0],
        &[],
    )
    .then("test -z \"$(ls -A tmp)\""),
    case(
        "A3 generation_config.json is a link",
        "ln -sf ../../others/secret model/generation_config.json; annulus train tuned.yaml",
        REFUSED,
        &["generation_config.json"],
    )
    .short(),
    case(
        "A3 config.json is a link",
        "ln -sf ../../others/secret model/config.json; annulus train tuned.yaml",
        REFUSED,
        &["config.json"],
    ),
    case(
        "A3 the weights are a link",
        "ln -sf ../../others/secret model/model.safetensors; annulus train tuned.yaml",
        REFUSED,
        &["model.safetensors"],
    ),
    beside("A3 special_tokens_map.json is a link", "f=special_tokens_map.json"),
    beside("A3 chat_template.jinja is a link", "f=chat_template.jinja"),
    beside("A3 tokenizer_config.json is a link", "f=tokenizer_config.json"),
    beside("A3 a file beside the tokenizer is an absolute link", "f=added_tokens.json; ln -s $(realpath ../others/secret) model/special_tokens_map.json"),
    case(
        "A3 an export of a checkpoint with a link",
        "ln -sf ../../../others/secret run/step-1/generation_config.json; annulus export run --out e",
        REFUSED,
        &["generation_config.json"],
    ),
    written("A4 run.lock is a link", "f=run.lock", REFUSED),
    written("A4 metrics.jsonl is a link", "f=metrics.jsonl", REPLACED),
    written("A4 LATEST is a link", "f=LATEST", REPLACED),
    written("A4 given.yaml is a link", "f=given.yaml", REPLACED),
    written("A4 experiment.yaml is a link", "f=experiment.yaml", REPLACED),
    written("A4 manifest.json is a link", "f=manifest.json", REPLACED),
    case(
        "A4 a curve's file is a link",
        "mkdir run/evaluation; ln -s ../../../others/secret run/evaluation/perplexity.json; annulus evaluate run evaluation.lengths=[16,32] data.evaluate=4",
        REPLACED,
        &[],
    )
    .short(),
    case(
        "A4 the folder of evaluations is a link",
        "ln -s ../../others run/evaluation; annulus evaluate run evaluation.lengths=[16,32] data.evaluate=4",
        REFUSED,
        &["evaluation"],
    ),
    case(
        "A4 what score writes is a link",
        "ln -s ../others/secret out; annulus score --model model --tokens ids.safetensors --out out",
        REPLACED,
        &[],
    ),
    case(
        "A4 what trace writes is a link",
        "ln -s ../others/secret out; annulus trace tiny.yaml --out out",
        REPLACED,
        &[],
    ),
    full("A5 trace, cut short", "annulus trace tiny.yaml --out out").short(),
    full("A5 a trace's picture, cut short", "annulus trace tiny.yaml --svg out"),
    full("A5 score, cut short", "annulus score --model model --tokens ids.safetensors --gradients --out out").short(),
    full("A5 a tokenizer, cut short", "annulus tokenizer train text.txt --vocab 300 --out out.json"),
    case(
        "A5 an export, cut short",
        "trap '' XFSZ; ulimit -f 8; annulus export run --out e",
        &[1, 2, 3, 4],
        &[],
    )
    .then("test ! -e e && test -z \"$(ls -A | grep partial)\""),
    case(
        "A5 a cache, cut short",
        "seq 20000 >long.txt; trap '' XFSZ; ulimit -f 8; annulus tokenize long.txt --out c",
        &[1, 2, 3, 4],
        &[],
    )
    .then("test -z \"$(ls c | grep tokens)\""),
];

/// A file beside a tokenizer, which would be copied into every checkpoint.
const fn beside(name: &'static str, file: &'static str) -> Case {
    let script = "cp tokenizer.json model; ln -s ../../others/secret model/$f; annulus train tiny.yaml data.tokenizer=model/tokenizer.json";
    case(name, script, REFUSED, &[]).given(file)
}

/// A file that a run writes.
const fn written(name: &'static str, file: &'static str, ends: &'static [i32]) -> Case {
    let script = "mkdir out; ln -s ../../others/secret out/$f; annulus train tiny.yaml output=out";
    case(name, script, ends, &[]).given(file)
}

/// What is written whole or not at all.
const fn full(name: &'static str, script: &'static str) -> Case {
    case(name, script, &[1, 2, 3, 4], &[])
        .given("echo before >out; trap '' XFSZ; ulimit -f 4")
        .then("test \"$(cat out)\" = before && test -z \"$(ls -A | grep partial)\"")
}
