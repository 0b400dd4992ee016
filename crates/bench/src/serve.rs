//! The other side of `--against`: one sample for every `go` on standard input, until `quit`.
//!
//! ```text
//! > {"ready": true, …}     set up and warm
//! < go
//! > {"time_s": 0.123, …}
//! < quit                   or the end of the input
//! ```

use std::io::{BufRead, Write};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::subject::{Fields, Sample, Subject, fields};

/// Warms up, says so, and answers until `quit`.
pub(crate) fn serve(
    subject: &mut dyn Subject,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<()> {
    let warm = subject.sample()?;
    let mut ready = fields(json!({ "ready": true }));
    ready.extend(subject.describe());
    ready.extend(warm.fields);
    let mut say = |fields: Fields| {
        writeln!(output, "{}", Value::Object(fields))?;
        output.flush()
    };
    say(ready)?;
    for line in input.lines() {
        match line?.trim() {
            "go" => say(answer(subject.sample()?))?,
            "quit" => break,
            "" => {}
            other => bail!("`{other}` came in; `go` and `quit` are understood"),
        }
    }
    Ok(())
}

fn answer(sample: Sample) -> Fields {
    let mut answer = fields(json!({ "time_s": sample.seconds }));
    answer.extend(sample.fields);
    answer
}
