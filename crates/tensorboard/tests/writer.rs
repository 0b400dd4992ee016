//! What the writer puts on disk, read back by our reader and, where it is installed, by TensorBoard's.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use annulus_tensorboard::{Category, Chart, Payload, Setting, Writer, read, remove, remove_step};

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn scalar(value: f32) -> Payload {
    Payload::Scalar { tag: "train/loss".into(), value }
}

#[test]
fn a_flushed_file_is_whole_while_the_writer_lives() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(&folder.path().join("new"), None).unwrap();
    writer.scalar(1, "train/loss", 5.5).unwrap();
    writer.text(0, "config", "# seed").unwrap();
    writer.flush().unwrap();
    let events = read(writer.path()).unwrap();
    let payloads: Vec<_> = events.iter().map(|event| (event.step, event.payload.clone())).collect();
    let text = Payload::Text { tag: "config".into(), text: "# seed".into() };
    let version = Payload::Version("brain.Event:2".into());
    assert_eq!(payloads, [(0, version), (1, scalar(5.5)), (0, text)]);
    assert!(events.windows(2).all(|pair| pair[0].wall_time <= pair[1].wall_time));
    assert!(events[0].wall_time > 1.7e9);
}

#[test]
fn a_resumed_file_says_from_which_step_on_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::create(folder.path(), Some(5)).unwrap();
    let start = &read(writer.path()).unwrap()[1];
    assert_eq!((start.step, &start.payload), (6, &Payload::Start));
}

/// The bytes of a file of ten steps.
fn ten_steps(folder: &Path) -> Vec<u8> {
    let mut writer = Writer::create(folder, None).unwrap();
    for step in 0..10 {
        writer.scalar(step, "train/loss", 1.0).unwrap();
    }
    writer.flush().unwrap();
    fs::read(writer.path()).unwrap()
}

#[test]
fn a_torn_tail_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = ten_steps(folder.path());
    let torn = folder.path().join("torn");
    for lost in 1..50 {
        fs::write(&torn, &bytes[..bytes.len() - lost]).unwrap();
        let events = read(&torn).unwrap().len();
        assert!((9..11).contains(&events), "{events} events without the last {lost} bytes");
    }
}

#[test]
fn what_is_no_event_file_or_damaged_before_its_end_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = ten_steps(folder.path());
    let path = folder.path().join("other");
    let said = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        error.to_string()
    };
    // The second record, a scalar, begins behind the version's 42 bytes.
    for other in [&b"short"[..], b"text of several words", &bytes[..20], &bytes[42..]] {
        assert!(said(other).starts_with("no event file: "), "{other:?}");
    }
    let mut damaged = bytes.clone();
    for at in 42..bytes.len() / 2 {
        damaged[at] ^= 1;
        assert!(said(&damaged).starts_with("damaged event file: the record at byte "), "{at}");
        damaged[at] ^= 1;
    }
    fs::write(&path, "").unwrap();
    assert_eq!(read(&path).unwrap(), []);
}

#[test]
fn writers_in_one_second_never_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = thread::scope(|scope| {
        let start = |rank| {
            let folder = folder.path();
            scope.spawn(move || {
                let mut writer = Writer::create(folder, None).unwrap();
                (0..500).for_each(|step| writer.scalar(step, "rank", f64::from(rank)).unwrap());
                writer.flush().unwrap();
                writer.path().to_owned()
            })
        };
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(paths.iter().collect::<HashSet<_>>().len(), 8);
    for path in paths {
        assert_eq!(read(&path).unwrap().len(), 501);
    }
}

#[test]
fn a_later_file_sorts_last_even_after_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let future = "events.out.tfevents.9999999998.host.17.0";
    fs::write(folder.path().join(future), "").unwrap();
    for count in 2..5 {
        let writer = Writer::create(folder.path(), None).unwrap();
        let files = files(folder.path());
        assert_eq!((files.len(), files.last().unwrap().as_path()), (count, writer.path()));
    }
}

#[test]
fn files_of_earlier_writers_are_removed_and_those_of_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    remove_step(&folder.path().join("nowhere"), 3).unwrap();
    let others = ["events.out.tfevents.1700000000.host.17.0", "notes", "events.out.tfevents.17.0"];
    for name in others {
        fs::write(folder.path().join(name), "").unwrap();
    }
    drop(Writer::create(folder.path(), None).unwrap());
    for step in [3, 4] {
        let mut writer = Writer::create(folder.path(), None).unwrap();
        writer.scalar(step, "loss", 1.0).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 6);
    remove_step(folder.path(), 3).unwrap();
    // That of step 4 stays.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    remove(folder.path()).unwrap();
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert!(
        left.len() == 3 && others.iter().all(|name| left.contains(&(*name).into())),
        "{left:?}"
    );
}

/// What TensorBoard's own reader prints of a folder; `None`: it is not installed.
#[expect(clippy::print_stdout, reason = "what a run of tests leaves out is to be seen")]
fn seen(folder: &Path) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../target/python/tensorboard/bin/python");
    if !python.exists() {
        println!("skipped: no TensorBoard; `cargo xtask setup python` installs it");
        return None;
    }
    let script = root.join("tests/python/read_events.py");
    let output = Command::new(python).arg(script).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn tensorboards_own_messages_are_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(folder.path(), None).unwrap();
    let tags = vec!["train/loss$".to_owned(), "evaluate/loss$".to_owned()];
    let charts = vec![Chart { title: "both".into(), tags }];
    writer.layout(&[Category { title: "loss".into(), charts }]).unwrap();
    let settings = [("rate", Setting::Number(0.5)), ("dtype", Setting::Word("bf16".into()))];
    writer.hyperparameters(&settings, &["train/loss"]).unwrap();
    writer.flush().unwrap();
    assert_eq!(read(writer.path()).unwrap().len(), 4);
    let Some(seen) = seen(folder.path()) else { return };
    // As one word each: how a message is printed is the library's business.
    let seen: String = seen.chars().filter(|letter| !" ',[]\n".contains(*letter)).collect();
    let wanted = [
        "category{title:\"loss\"chart{title:\"both\"multiline{tag:\"train/loss$\"tag:\"evaluate/loss$\"}}}",
        "experiment{hparam_infos{name:\"rate\"type:DATA_TYPE_FLOAT64differs:true}",
        "metric_infos{name{tag:\"train/loss\"}}",
        "hparams{key:\"rate\"value{number_value:0.5}}",
        "hparams{key:\"dtype\"value{string_value:\"bf16\"}}",
    ];
    for part in wanted {
        assert!(seen.contains(part), "{part} in {seen}");
    }
}

/// Steps 1 to 10, then a second file that resumes after step 5: TensorBoard shows each step once.
#[test]
fn tensorboards_own_reader_sees_every_step_once() {
    let folder = tempfile::tempdir().unwrap();
    for (resume_from, steps, value) in [(None, 1..=10, 1.0), (Some(5), 6..=10, 2.0)] {
        let mut writer = Writer::create(folder.path(), resume_from).unwrap();
        writer.text(resume_from.unwrap_or(0), "config", "| seed | 1 |").unwrap();
        for step in steps {
            writer.scalar(step, "train/loss", value).unwrap();
        }
        writer.flush().unwrap();
    }
    let wanted = "scalar train/loss: 1=1 2=1 3=1 4=1 5=1 6=2 7=2 8=2 9=2 10=2\n\
                  text config: 0='| seed | 1 |' 5='| seed | 1 |'\n";
    if let Some(seen) = seen(folder.path()) {
        assert_eq!(seen, wanted);
    }
}
