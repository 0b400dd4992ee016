//! The cells of a table of runs, as text.

use annulus_evaluation::{ComparisonToBest, OverSeeds, Row, Table, Test};
use annulus_experiment::short_keys;

/// Smaller numbers are written with an exponent.
const SMALL: f64 = 1e-3;
/// The cell of a difference that rounding makes.
const ROUNDING: &str = "no, rounding";
/// The cell of a row that no other one can be compared with.
const OTHER: &str = "other text";
/// The cell of an unknown value.
const NOTHING: &str = "-";

/// A table as text: column headings, and rows with a cell for each.
pub(super) struct Cells {
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// How many columns at the beginning are keys.
    pub(super) keys: usize,
}

impl Cells {
    /// The cells of a table; keys are shortened to their last words where that is unique, unless `in_full`.
    pub(super) fn of(table: &Table, in_full: bool) -> Cells {
        let mut heads = if in_full { table.keys.clone() } else { short_keys(&table.keys) };
        let keys = heads.len();
        let columns = columns(table);
        heads.extend(columns.iter().map(|(head, _)| (*head).to_owned()));
        let row = |(index, row): (usize, &Row)| {
            let is_best = row.best == Some(index);
            let own = columns.iter().map(|(_, cell)| cell(row, is_best));
            row.values.iter().cloned().chain(own).collect()
        };
        Cells { heads, rows: table.rows.iter().enumerate().map(row).collect(), keys }
    }
}

type Column = (&'static str, fn(&Row, bool) -> String);

/// The columns after the keys, without those that are empty in all rows.
fn columns(table: &Table) -> Vec<Column> {
    let any = |has: fn(&Row) -> bool| table.rows.iter().any(has);
    let all: [(bool, Column); 6] = [
        (true, ("seeds", |row, _| seeds(row))),
        (
            any(|row| row.train_loss.is_some()),
            ("train loss", |row, _| loss(row.train_loss.as_ref())),
        ),
        (
            any(|row| row.evaluate_loss.is_some()),
            ("evaluate loss", |row, _| loss(row.evaluate_loss.as_ref())),
        ),
        (
            table.rows.len() > 1 && table.compared_by.is_some(),
            ("minus best", |row, is_best| by(row, is_best)),
        ),
        (
            table.rows.len() > 1 && table.compared_by.is_some(),
            ("beyond seeds", |row, is_best| beyond(row, is_best)),
        ),
        (
            any(|row| row.tokens_per_second.is_some()),
            ("tokens/s", |row, _| speed(row.tokens_per_second.as_ref())),
        ),
    ];
    all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, column)| column).collect()
}

/// The number of finished runs, or `2 of 3` if not all are.
fn seeds(Row { runs, seeds, .. }: &Row) -> String {
    if seeds.len() == *runs { runs.to_string() } else { format!("{} of {runs}", seeds.len()) }
}

fn loss(found: Option<&OverSeeds>) -> String {
    let Some(OverSeeds { mean, half, .. }) = found else { return NOTHING.to_owned() };
    let half = match half {
        Some(half) if *half != 0.0 && *half < SMALL => format!(" ± {half:.0e}"),
        Some(half) => format!(" ± {half:.4}"),
        None => String::new(),
    };
    format!("{mean:.4}{half}")
}

fn speed(found: Option<&OverSeeds>) -> String {
    let Some(OverSeeds { mean, half, .. }) = found else { return NOTHING.to_owned() };
    let half = half.map_or_else(String::new, |half| format!(" ± {half:.0}"));
    format!("{mean:.0}{half}")
}

/// The difference from the best row.
fn by(row: &Row, is_best: bool) -> String {
    match row.against_best {
        _ if is_best => "best".to_owned(),
        Some(ComparisonToBest { difference: 0.0, .. }) => "0".to_owned(),
        Some(ComparisonToBest { difference, .. }) if difference.abs() < SMALL => {
            format!("{difference:+.0e}")
        }
        Some(ComparisonToBest { difference, .. }) => format!("{difference:+.4}"),
        None if is_alone(row) => OTHER.to_owned(),
        None => NOTHING.to_owned(),
    }
}

/// Whether a row that was evaluated has another text than all other rows.
fn is_alone(row: &Row) -> bool {
    row.best.is_none() && !row.seeds.is_empty()
}

/// Whether the difference from the best row is larger than seeds explain.
fn beyond(row: &Row, is_best: bool) -> String {
    let against = row.against_best.filter(|_| !is_best);
    if against.is_some_and(|against| against.is_rounding && against.is_larger.is_some()) {
        return ROUNDING.to_owned();
    }
    match against.and_then(|against| Some((against.is_larger?, against.p?))) {
        Some((is_larger, p)) => {
            let p = if p < SMALL { "p < 0.001".to_owned() } else { format!("p {p:.3}") };
            format!("{}, {p}", if is_larger { "yes" } else { "no" })
        }
        None if is_best => String::new(),
        None => NOTHING.to_owned(),
    }
}

/// The notes below the table, which explain its columns.
pub(super) fn notes(table: &Table) -> Vec<String> {
    let mut notes = Vec::new();
    let several = table.rows.iter().any(|row| row.seeds.len() > 1);
    if several {
        notes.push("±: 95 % confidence interval of the mean over seeds, by Student's t".to_owned());
    }
    let tag = table.compared_by.filter(|_| table.rows.len() > 1);
    if let Some(tag) = tag.filter(|_| table.rows.iter().any(|row| row.best.is_some())) {
        let of_best = match table.best {
            Some(best) => format!("the best row ({})", table.rows[best].values.join(", ")),
            None => "the best row with the same held-out text: losses of different texts cannot be compared".to_owned(),
        };
        notes.push(format!("minus best: mean {tag} less that of {of_best}"));
        notes.extend(several.then(|| {
            format!(
                "beyond seeds: whether that is more than seeds explain, two-sided p < 0.05, {}",
                test(table)
            )
        }));
        let rounds = |row: &Row| beyond(row, false) == ROUNDING;
        notes.extend(table.rows.iter().any(rounds).then(|| {
            format!("{ROUNDING}: the means are equal to 1e-6 of them, as far as sums in another order are")
        }));
        notes.extend((several && table.rows.len() > 2).then(|| {
            "p is corrected for choosing the best row: times the number of pairs (Bonferroni)"
                .to_owned()
        }));
    }
    notes.extend(tag.filter(|_| table.rows.iter().any(is_alone)).map(|tag| {
        format!("{OTHER}: no other row was evaluated on the same held-out tokens in sequences of that length, so its {tag} is compared with none")
    }));
    notes
}

/// The statistical test that compared rows.
fn test(table: &Table) -> &'static str {
    let has = |test: Test| {
        table.rows.iter().any(|row| row.against_best.is_some_and(|against| against.test == test))
    };
    match (has(Test::Paired), has(Test::Welch)) {
        (true, true) => "paired by seed where rows have the same seeds, else Welch's t",
        (false, true) => "Welch's t",
        _ => "paired by seed",
    }
}
