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

use crate::subject::{Fields, Sample, Subject};

/// Warms up, says so, and answers until it is told to quit.
pub(crate) fn serve(
    subject: &mut dyn Subject,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<()> {
    let warm = subject.sample()?;
    let mut ready = Fields::from_iter([("ready".to_owned(), json!(true))]);
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
    let mut fields = Fields::from_iter([("time_s".to_owned(), json!(sample.seconds))]);
    fields.extend(sample.fields);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::tests::Counter;

    fn served(input: &str) -> Result<Vec<Value>> {
        let mut output = Vec::new();
        serve(&mut Counter::default(), input.as_bytes(), &mut output)?;
        let text = String::from_utf8(output)?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    #[test]
    fn one_sample_for_every_go_after_the_warm_up() -> Result<()> {
        let lines = served("go\n\ngo\nquit\ngo\n")?;
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["ready"], &lines[0]["count"]), (&json!(true), &json!(1)));
        assert_eq!((&lines[1]["time_s"], &lines[1]["count"]), (&json!(2.0), &json!(2)));
        assert_eq!(lines[2]["time_s"], json!(3.0));
        Ok(())
    }

    #[test]
    fn the_end_of_the_input_quits_and_other_words_are_refused() -> Result<()> {
        assert_eq!(served("")?.len(), 1);
        let error = served("stop\n").map_err(|error| error.to_string());
        assert_eq!(error, Err("`stop` came in; `go` and `quit` are understood".to_owned()));
        Ok(())
    }
}
