//! `annulus explain`: explains a key, a value, a word or an exit code. Also `completions` and `man`.

use annulus_train::Exit;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_markdown::MarkdownOptions;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::{Done, glossary, print};

/// Explains a key, a value of a key, a word of plans and pages, or the number of an exit code: the words as one, or each of them.
pub(crate) fn run(words: &[String]) -> Done {
    let what = &words.join(" ");
    if let Ok(code) = what.trim_start_matches("exit ").trim_start_matches("code ").parse::<u8>() {
        return of_code(code);
    }
    let each = || words.iter().map(|word| explained(word)).collect::<Option<Vec<_>>>();
    if let Some(text) = explained(what).or_else(|| Some(each()?.join("\n\n"))) {
        print::line(&text)?;
        return Ok(0);
    }
    let words = glossary::words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let near = annulus_experiment::explain(what).err().and_then(|near| near.into_iter().next());
    let hint = match near.or_else(|| annulus_experiment::nearest(what, &words).map(str::to_owned)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`annulus schema --markdown` lists every key".to_owned(),
    };
    Err(Failure::usage(
        format!(
            "`{what}` is not a key of an experiment, a value of one, or a word of the glossary"
        ),
        hint,
    ))
}

/// What is known of a word or a phrase.
fn explained(what: &str) -> Option<String> {
    let lower = what.to_lowercase();
    // `YaRN` and `NCCL` are written so on pages, and `yarn` and `nccl` in experiments.
    text_of(what).or_else(|| text_of(&lower)).or_else(|| of_another_program(&lower))
}

/// What is known of a key and of a word of the glossary, else of a value of a key.
fn text_of(what: &str) -> Option<String> {
    let texts = [annulus_experiment::explain(what).ok(), glossary::meaning(what)];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    if texts.is_empty() {
        annulus_experiment::explain_value(what)
    } else {
        Some(texts.join("\n\n"))
    }
}

/// The key that other programs call `what`, explained.
fn of_another_program(what: &str) -> Option<String> {
    let name = what.replace('-', "_");
    let key = annulus_experiment::elsewhere(&name)?;
    let explained = annulus_experiment::explain(key).ok()?;
    let converted = annulus_experiment::conversion(&name);
    let converted = converted.map_or_else(String::new, |how| format!("; {how}"));
    Some(format!("`{what}` means `{key}`{converted}\n\n{explained}"))
}

fn of_code(code: u8) -> Done {
    let Some(exit) = Exit::ALL.into_iter().find(|exit| exit.code() == code) else {
        let known: Vec<String> = Exit::ALL.iter().map(|exit| exit.code().to_string()).collect();
        let hint = format!("there are {}", known.join(", "));
        return Err(Failure::usage(format!("{code} is not an exit code of this program"), hint));
    };
    print::line(&format!("exit code {code}: {}\n  what to do  {}", exit.about(), exit.way_out()))?;
    Ok(0)
}

/// Prints a script that completes commands in a shell.
pub(crate) fn completions(shell: Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "annulus", &mut script);
    print::styled(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}

/// Prints every command with its arguments, and every exit code, as Markdown.
pub(crate) fn commands() -> Done {
    let options = MarkdownOptions::new().title("Commands".to_owned());
    let options = options.show_footer(false).show_table_of_contents(false);
    let page = clap_markdown::help_markdown_command_custom(&Arguments::command(), &options);
    let row = |exit: Exit| format!("| {} | {} | {} |", exit.code(), exit.about(), exit.way_out());
    let codes = Exit::ALL.map(row).join("\n");
    let head = "## Exit codes\n\n| code | meaning | what to do |\n| --- | --- | --- |";
    print::styled(&format!("{}\n\n{head}\n{codes}", fenced(&page).trim_end()))?;
    Ok(0)
}

/// Turns indented lines, which are examples, into code blocks, and removes the list of exit codes, which have a table.
fn fenced(page: &str) -> String {
    let (mut text, mut open) = (String::new(), false);
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "Exit codes:" {
            while lines.next_if(|line| line.starts_with("  ")).is_some() {}
            continue;
        }
        let is_code = line.starts_with("  ") && (open || text.ends_with("Examples:\n"));
        match (open, is_code) {
            (false, true) => text.push_str("\n```sh\n"),
            (true, false) => text.push_str("```\n"),
            _ => {}
        }
        open = is_code;
        text.extend([if is_code { line.trim_start() } else { line }, "\n"]);
    }
    text
}

/// Prints the manual page.
pub(crate) fn man() -> Done {
    let mut page = Vec::new();
    clap_mangen::Man::new(Arguments::command())
        .render(&mut page)
        .map_err(|error| Failure::internal(format!("cannot make the manual page: {error}")))?;
    print::styled(String::from_utf8_lossy(&page).trim_end())?;
    Ok(0)
}
