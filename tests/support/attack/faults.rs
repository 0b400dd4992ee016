//! What the system refuses: full disks, limits.

use super::{Case, case};

/// Output that cannot be written is an error, whatever else the command says.
const FAILED: &[i32] = &[1, 2, 3, 4];

pub(super) const CASES: &[Case] = &[
    full("D4 schema", "c=schema").short(),
    full("D4 plan", "c='plan tiny.yaml'").short(),
    full("D4 prove", "c='prove tiny.yaml'"),
    full("D4 layout", "c='layout ring'"),
    full("D4 doctor", "c=doctor"),
    full("D4 check", "c='check tiny.yaml'"),
    full("D4 verify", "c='verify tiny.yaml'").within(120),
    full("D4 help", "c=--help"),
    full("D4 a command's help", "c='train --help'"),
    full("D4 version", "c=--version"),
    full("D4 trace", "c='trace tiny.yaml'"),
    full("D4 generate", "c='generate tuned.yaml --prompt a --tokens 2'"),
    full("D4 data show", "c='data show text.txt'"),
    case("D4 a reader that has gone", "annulus schema | head -c 1; annulus plan tiny.yaml | true", &[0], &[]),
    case("D5 files that may not grow", "ulimit -f 100; annulus train tiny.yaml output=out", &[4], &[]).short(),
    case("D5 files that may not grow, later", "annulus train tiny.yaml output=out schedule.stop=1 && cp out/step-1/hashes.json before; ulimit -f 100; annulus train tiny.yaml output=out", &[4], &[])
        .then("cmp before out/step-1/hashes.json && ! ls -A out | grep -q partial && annulus train tiny.yaml output=out"),
    case("D5 step-N is a link to nowhere", "mkdir out; ln -s nowhere out/step-2; annulus train tiny.yaml output=out", &[0, 2, 3, 4], &[]),
    case("D5 no file may be open", "ulimit -n 5; annulus train tiny.yaml output=out", &[1, 2, 3, 4], &[]),
    case("D5 few files may be open", "ulimit -n 8; annulus train tiny.yaml output=out", &[0, 1, 2, 3, 4, 13], &[]),
    case("D5 little memory", "ulimit -v 200000; annulus train tiny.yaml output=out", &[0, 1, 2, 5, 13], &[]),
    case("D2 less memory than planned", "ulimit -v 1500000; annulus train tiny.yaml output=out model.hidden_size=4096 model.intermediate_size=8192", &[5], &[]).short(),
    case("D5 the run's folder is a file", "echo x >out; annulus train tiny.yaml output=out", &[2, 3, 4], &["out"]).then("test \"$(cat out)\" = x"),
    case("D5 the run's folder is below a file", "annulus train tiny.yaml output=text.txt/run", &[2, 3, 4], &["text.txt"]),
    case("D5 no home", "HOME= annulus train tuned.yaml model.path=hf://a/b HF_HUB_OFFLINE=1", &[2, 3], &[]),
];

const fn full(name: &'static str, command: &'static str) -> Case {
    case(name, "annulus $c >/dev/full", FAILED, &[]).given(command)
}
