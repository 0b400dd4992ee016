//! The panel of the runs' manifests: program, data, weights, machine, and every start.

use annulus_train::{Manifest, RunStart};
use maud::{Markup, html};

use crate::parts::{Panel, Table, absent, absent_of, cut, dash, label, word};
use crate::run::Run;

/// The most starts of a run that are listed: the last ones.
const STARTS: usize = 10;
/// The most characters of a command line, and of other words.
const LONG: [usize; 2] = [600, 200];
/// Seconds in a day.
const DAY: u64 = 86_400;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "manifest", title: "Manifest", body: body(runs) }
}

fn body(runs: &[Run]) -> Markup {
    let has = |run: &&Run| run.logged.manifest.is_some();
    let way_out = html! {
        "every run writes " code { "manifest.json" } " into its " code { "output" } ": it was removed, or not copied."
    };
    if !runs.iter().any(|run| has(&run)) {
        return absent("No run has a manifest:", &way_out);
    }
    html! {
        (origins(runs))
        @for (run, manifest) in runs.iter().filter_map(|run| Some((run, run.logged.manifest.as_ref()?))) {
            h3 { (label(run)) ", its starts" }
            (attempts(&manifest.attempts))
        }
        (absent_of(runs.iter().filter(|run| !has(run)), &way_out))
    }
}

fn origins(runs: &[Run]) -> Markup {
    type Said = fn(&Manifest) -> Option<String>;
    let rows: [(&str, Said); 13] = [
        ("version", |made| Some(made.version.clone())),
        ("commit", |made| Some(made.commit.clone())),
        ("program, hash", |made| Some(made.binary.clone())),
        ("experiment as given, hash", |made| Some(made.experiment.clone())),
        ("data, hash", |made| Some(made.data.clone())),
        ("first weights, hash", |made| Some(made.weights.clone())),
        ("forked from", |made| Some(made.fork.as_ref()?.from.display().to_string())),
        ("processor", |made| Some(made.machine.cpu.clone())),
        ("cores", |made| Some(made.machine.cores.to_string())),
        ("vector instructions", |made| made.machine.vector.clone()),
        ("GPU", |made| made.machine.kernels.clone()),
        ("system", |made| Some(made.machine.system.clone())),
        ("strategy chosen by", |made| made.choice.as_ref().map(|_| "auto".to_owned())),
    ];
    let mut table = Table::of(runs);
    for (name, said) in rows {
        table.row(name, |run| {
            let said = run.logged.manifest.as_ref().and_then(said)?;
            Some(word(&said, LONG[1]))
        });
    }
    table.markup("what made it")
}

fn attempts(all: &[RunStart]) -> Markup {
    let earlier = all.len().saturating_sub(STARTS);
    html! {
        @if earlier > 0 { p.note { (earlier) " earlier starts are left out." } }
        table {
            thead { tr {
                th { "start, UTC" } th { "end, UTC" } th { "ending" } th { "from step" } th { "ranks" } th { "strategy" } th { "processes" }
                th { "command" }
            } }
            tbody { @for one in &all[earlier..] { tr {
                td { (date(one.start)) }
                td { @match one.end { Some(end) => (date(end)), None => (dash()) } }
                td { (one.ending.as_deref().map_or("running, or killed".to_owned(), |ending| cut(ending, LONG[1]))) }
                td { (one.resumed_from.unwrap_or_default()) }
                td { (one.ranks) }
                td { (one.strategy) }
                td { (one.processes.len().max(1)) }
                td { code { (cut(&one.command.join(" "), LONG[0])) } }
            } } }
        }
    }
}

/// Seconds since 1970 as a date and time, UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / DAY, seconds % DAY);
    // Days since 1 March of year 0, so that leap days end years, in cycles of 400 years (Howard Hinnant's algorithm).
    let since = days + 719_468;
    let (cycle, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * cycle + later;
    let [hour, minute, second] = [rest / 3600, rest / 60 % 60, rest % 60];
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn seconds_are_dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59:59");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00:00");
    }
}
