//! `annulus explain`: a key of the file, or an exit code; and what shells and readers of manuals want.

use annulus_train::Exit;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::{Done, print};

/// A key, or the number of an exit code.
pub(crate) fn run(what: &str) -> Done {
    if let Ok(code) = what.parse::<u8>() {
        return of_code(code);
    }
    match annulus_experiment::explain(what) {
        Ok(text) => print::line(&text).map(|()| 0),
        Err(near) => {
            let hint = match near.first() {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`annulus schema --markdown` lists every key".to_owned(),
            };
            Err(Failure::usage(format!("`{what}` is no key of an experiment"), hint))
        }
    }
}

fn of_code(code: u8) -> Done {
    let Some(exit) = Exit::ALL.into_iter().find(|exit| exit.code() == code) else {
        let known: Vec<String> = Exit::ALL.iter().map(|exit| exit.code().to_string()).collect();
        let hint = format!("there are {}", known.join(", "));
        return Err(Failure::usage(format!("{code} is no exit code of this program"), hint));
    };
    print::line(&format!("exit code {code}: {}\n  way out  {}", exit.about(), exit.way_out()))?;
    Ok(0)
}

/// A script that completes commands in a shell.
pub(crate) fn completions(shell: Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "annulus", &mut script);
    print::own(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}

/// The manual page.
pub(crate) fn man() -> Done {
    let mut page = Vec::new();
    clap_mangen::Man::new(Arguments::command()).render(&mut page).map_err(|error| {
        Failure::new(Exit::Internal.code(), format!("no page can be made: {error}"), None)
    })?;
    print::own(String::from_utf8_lossy(&page).trim_end())?;
    Ok(0)
}
