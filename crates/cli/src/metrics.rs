//! `annulus export-metrics`: writes a run's metrics as comma-separated values.

use std::path::PathBuf;

use annulus_train::metrics_table;
use clap::Args;

use crate::{Done, output, print};

#[derive(Args, Debug)]
pub(crate) struct ExportMetrics {
    /// A run's folder
    run: PathBuf,
    /// The file to write [default: standard output]
    #[arg(long, alias = "output", value_name = "PATH")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &ExportMetrics) -> Done {
    if let Some(out) = &arguments.out {
        output::check(out, &[])?;
    }
    let table = metrics_table(&arguments.run)?;
    match &arguments.out {
        Some(out) => print::file(out, table.as_bytes())?,
        None => print::line(table.trim_end())?,
    }
    Ok(0)
}
