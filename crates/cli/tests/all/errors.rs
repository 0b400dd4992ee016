//! Every kind of error with hostile text wherever it may hold text of others: none of it reaches a terminal, nor fills it.

use std::io;
use std::path::PathBuf;

use annulus_cli::{Failure, shown};
use annulus_data::DataError as Data;
use annulus_experiment::Problem;
use annulus_hub::HubError as Hub;
use annulus_model::{Flaw, WeightsError as Weights};
use annulus_tensors::TensorsError;
use annulus_train::{Exit, TrainError as Train};

/// Colours, a bell, turned writing, a line that overwrites another, and no end.
fn hostile() -> String {
    format!("\u{1b}[31m\u{7}\u{202e}\r\u{9b}2J{}", "x".repeat(1 << 14))
}

fn file() -> PathBuf {
    hostile().into()
}

fn system() -> io::Error {
    io::Error::other(hostile())
}

fn of_data() -> Vec<Data> {
    let (path, message) = (file, hostile);
    vec![
        Data::Read { path: path(), source: system() },
        Data::Write { path: path(), source: system() },
        Data::NoThread { source: system() },
        Data::NotAFile { path: path() },
        Data::NoFiles { path: path(), endings: message(), json: Some(path()) },
        Data::Utf8 { path: path(), offset: 1, kind: None },
        Data::Dangling { path: path(), target: path() },
        Data::Line { path: path(), line: 1, message: message(), chat: true },
        Data::Parquet { path: path(), message: message() },
        Data::PackedRows { path: path() },
        Data::Changed { path: path() },
        Data::Tokenizer { path: path(), message: message() },
        Data::TokenizerFolder { path: path() },
        Data::Foreign { path: path(), id: 1, tokens: 1 },
        Data::NoCache { path: path() },
        Data::Special {
            tokenizer: path(),
            found: message(),
            config: path(),
            name: "a",
            wanted: message(),
        },
        Data::Template { path: path(), message: message() },
        Data::NoTemplate { path: Some(path()) },
        Data::Encode { offset: 1, message: message() },
        Data::Whole { step: message(), limit: 1 },
        Data::In { path: path(), source: Box::new(Data::NotAFile { path: path() }) },
        Data::Batches { path: path(), message: message() },
        Data::Shape { path: path(), found: message(), wanted: message() },
        Data::Id { path: path(), step: 1, row: 1, column: 1, id: -1 },
    ]
}

fn of_weights() -> Vec<Weights> {
    let (folder, text) = (file, hostile);
    let flaws = || {
        let (tensor, file) = (text(), text());
        vec![
            Flaw::Missing { tensor: text(), wanted: vec![1] },
            Flaw::Surplus { tensor: text(), file: text(), found: vec![1] },
            Flaw::Shape { tensor: text(), file: text(), found: vec![1], wanted: vec![2] },
            Flaw::Untied { tensor: text(), file: text() },
            Flaw::NotInShard { tensor: text(), file: text() },
            Flaw::NotInIndex { tensor: text(), file: text() },
            Flaw::ShardName { tensor: text(), file: text() },
            Flaw::NoShard { tensor, file },
        ]
    };
    let many = flaws()
        .into_iter()
        .cycle()
        .take(10_000)
        .map(|_| Flaw::Missing { tensor: "a".into(), wanted: vec![] });
    vec![
        Weights::Absent { folder: folder() },
        Weights::NoAdapter { folder: folder() },
        Weights::Read { file: folder(), source: system() },
        Weights::Write { file: folder(), source: system() },
        Weights::File(TensorsError::read(&folder(), system())),
        Weights::File(TensorsError::malformed(&folder(), &text())),
        Weights::Outside { file: folder(), target: folder() },
        Weights::Unfit { folder: folder(), flaws: flaws() },
        Weights::Unfit { folder: folder(), flaws: many.collect() },
        Weights::Tensor {
            file: folder(),
            tensor: text(),
            source: Box::new(candle_core::Error::Msg(text())),
        },
    ]
}

fn of_the_hub() -> Vec<Hub> {
    let (path, text) = (file, hostile);
    vec![
        Hub::Refused { name: text(), status: 401, token: true },
        Hub::NotFound { what: text(), repository: text() },
        Hub::Status { url: text(), status: 500 },
        Hub::Network { url: text(), message: text(), cached: false },
        Hub::Answer { url: text(), message: text() },
        Hub::Offline { name: text(), cache: path(), missing: text() },
        Hub::NoWeights { name: text() },
        Hub::Damaged { name: text(), file: text(), found: text(), wanted: text() },
        Hub::Store { path: path(), source: system() },
        Hub::Slow { url: text(), message: text() },
        Hub::Thread(system()),
    ]
}

fn of_training() -> Vec<Train> {
    let (message, hint) = (hostile, || Some(hostile()));
    vec![
        Train::Configuration { message: message(), hint: hint() },
        Train::Checkpoint { message: message(), hint: hint() },
        Train::Problems(Problem::new(message()).hint(message()).into()),
        Train::NotANumber { what: message(), value: f64::NAN },
        Train::RankDied { rank: 1, message: message() },
        Train::OnRank { rank: 1, source: Box::new(Train::Internal(message())) },
        Train::Internal(message()),
    ]
}

#[test]
fn hostile_text_of_errors_is_escaped_and_cut() {
    let hub = of_the_hub().into_iter().map(|e| Failure::new(Exit::Data, e.to_string(), e.hint()));
    let all = of_data().into_iter().map(Failure::from);
    let all = all.chain(of_weights().into_iter().map(Failure::from));
    let all = all.chain(of_training().into_iter().map(Failure::from)).chain(hub);
    let all = all.chain([Failure::from(candle_core::Error::Msg(hostile()))]);
    for failure in all {
        let said = failure.problems.to_string();
        let message = shown::message(&said);
        let obeyed = |letter: char| letter.is_control() && letter != '\n';
        assert!(!message.contains(obeyed) && !message.contains('\u{202e}'), "{message}");
        assert!(message.len() < 1 << 16, "{} bytes", message.len());
    }
}
