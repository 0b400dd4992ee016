//! Files that the data of an experiment has more than once: what one source of a mixture holds out, another would train on.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use annulus_data::{DataError, Records, list};
use annulus_experiment::{Experiment, Problems};

use crate::setup::texts::{by_source, excluded, records_of, texts};
use crate::{Result, TrainError};

/// A file whatever it is called: device and inode.
type Inode = (u64, u64);

/// What is read of a file: its texts, the conversations in it, or one of its fields.
type Reading = (Inode, bool, Option<String>);

/// The files that two sources of a mixture read the same of.
struct Shared {
    /// The first of them, and the numbers of its sources.
    first: PathBuf,
    sources: [usize; 2],
    /// How many others there are.
    others: usize,
}

/// A note about files that two sources of `experiment` share; `None`: there are none.
///
/// # Errors
/// Shared files of which text is held out, and those of [`texts`] and [`list`].
pub(crate) fn shared_files(experiment: &Experiment) -> Result<Option<String>> {
    let Some(Shared { first, sources, others }) = shared(experiment)? else { return Ok(None) };
    let [one, other] = sources.map(|number| {
        let path = &experiment.data.path[number].path;
        format!("`{}` (number {})", path.display(), number + 1)
    });
    let more = match others {
        0 => String::new(),
        1 => ", and 1 more file is".to_owned(),
        more => format!(", and {more} more files are"),
    };
    let message =
        format!("`{}` is in two sources of the mixture{more}: {one} and {other}", first.display());
    if experiment.data.evaluate == 0 {
        return Ok(Some(format!("{message}; each reads it by its own weight")));
    }
    let key = format!("data.path.{}", sources[1]);
    let message = format!("{message}; what one holds out the other would train on");
    let hint = "name each file in one source, whose weight is that of its files (a pattern such as `'books/[!b]*.txt'` \
                leaves some out), or set `data.evaluate: 0`";
    Err(TrainError::Config(Problems(vec![experiment.places.problem(&key, message).hint(hint)])))
}

fn shared(experiment: &Experiment) -> Result<Option<Shared>> {
    let parts = by_source(experiment);
    if parts.len() > 1 {
        // What is missing is named at its place among all sources.
        texts(experiment)?;
    }
    let (mut seen, mut found) = (HashMap::new(), None::<Shared>);
    for (number, part) in parts.iter().enumerate().filter(|_| parts.len() > 1) {
        let Some(records) = records_of(part.data.format) else { continue };
        let inputs = texts(part)?;
        for file in list(&inputs, records, &excluded(&inputs, &part.output)?)?.files {
            let has_fields = matches!(records, Records::Lines | Records::Rows);
            let field = has_fields.then(|| part.data.column.clone());
            let reading: Reading = (inode(&file)?, records == Records::Chats, field);
            let (first, is_told) = seen.entry(reading).or_insert((number, false));
            if *first == number || std::mem::replace(is_told, true) {
                continue;
            }
            let first = *first;
            match &mut found {
                Some(found) => found.others += 1,
                None => found = Some(Shared { first: file, sources: [first, number], others: 0 }),
            }
        }
    }
    Ok(found)
}

/// Second names of files that are read under each of them: unlike links, these are not told from other files.
pub(crate) fn hard_links(files: &[PathBuf]) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let is_again = |file: &&PathBuf| {
        let found = fs::metadata(file).ok().filter(|found| found.nlink() > 1);
        found.is_some_and(|found| !seen.insert((found.dev(), found.ino())))
    };
    files.iter().filter(is_again).cloned().collect()
}

fn inode(file: &Path) -> std::result::Result<Inode, DataError> {
    let found = fs::metadata(file);
    let found = found.map_err(|source| DataError::Read { path: file.to_owned(), source })?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a mixture of `sources`, which are in `folder`.
    fn said(
        folder: &Path,
        sources: &str,
        held_out: usize,
    ) -> std::result::Result<Option<String>, String> {
        let folder = folder.display();
        let sources = sources.replace("path: ", &format!("path: {folder}/"));
        let text = format!(
            "name: books\noutput: {folder}/run\ndata: {{ path: [{sources}], tokens: 8, batch: 1, evaluate: {held_out} }}\n\
             model: {{ hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1 }}\n\
             optimizer: {{ learning_rate: 0.1 }}\nschedule: {{ steps: 1 }}\nevery: {{ evaluate: 0 }}\n"
        );
        let experiment = annulus_experiment::parse("x.yaml", &text, &[]);
        let found = shared_files(&experiment.unwrap_or_else(|error| panic!("{error}")));
        found.map_err(|error| error.to_string().replace(&folder.to_string(), "…"))
    }

    fn texts_in(folder: &Path) {
        fs::create_dir(folder.join("lib")).expect("a folder");
        for name in ["lib/a.txt", "lib/b.txt", "c.txt", "d.jsonl"] {
            fs::write(folder.join(name), "some text").expect("a text");
        }
        fs::hard_link(folder.join("lib/a.txt"), folder.join("hard.txt")).expect("a link");
        std::os::unix::fs::symlink("lib/a.txt", folder.join("soft.txt")).expect("a link");
    }

    #[test]
    fn files_of_two_sources_are_refused_where_text_is_held_out() {
        let folder = tempfile::tempdir().expect("a folder");
        texts_in(folder.path());
        let folder = folder.path();
        for (sources, named) in [
            ("{ path: lib }, { path: lib/b.txt, weight: 3 }", "`…/lib/b.txt` is in two"),
            ("{ path: c.txt }, { path: lib }, { path: c.txt }", "`…/c.txt` (number 3)"),
            ("{ path: soft.txt }, { path: lib }", "`…/soft.txt` (number 1) and `…/lib` (number 2)"),
            ("{ path: lib }, { path: hard.txt }", "`…/hard.txt` is in two"),
            ("{ path: lib }, { path: 'lib/*' }", "and 1 more file"),
            ("{ path: c.txt }, { path: c.txt }, { path: c.txt }", "mixture: `…/c.txt` (number 1)"),
            (
                "{ path: d.jsonl, format: jsonl }, { path: d.jsonl, format: jsonl, weight: 2 }",
                "what one holds out the other would train on",
            ),
        ] {
            let sources = sources.replace("path: '", "path: ").replace("*'", "*");
            let error = said(folder, &sources, 3).expect_err("a shared file");
            assert!(error.contains(named), "{sources}: {error}");
            let note = said(folder, &sources, 0).expect("nothing is held out");
            assert!(note.is_some_and(|note| note.contains("its own weight")), "{sources}");
        }
        for sources in [
            "{ path: lib }",
            "{ path: lib/a.txt }, { path: lib/b.txt }, { path: c.txt }",
            "{ path: d.jsonl, format: jsonl, column: a }, { path: d.jsonl, format: jsonl, column: b }",
            "{ path: d.jsonl, format: jsonl }, { path: d.jsonl, format: chat }",
        ] {
            assert_eq!(said(folder, sources, 3), Ok(None), "{sources}");
        }
    }

    #[test]
    fn a_missing_source_is_named_where_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        texts_in(folder.path());
        let error = said(folder.path(), "{ path: c.txt }, { path: gone.txt }", 3);
        let error = error.expect_err("nothing is there");
        let before =
            format!("data: {{ path: [{{ path: {}/c.txt }}, {{ path: ", folder.path().display());
        let place = format!("x.yaml:3:{}", before.len() + 1);
        assert!(error.contains(&place), "{error}, expected {place}");
    }

    #[test]
    fn hard_links_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        texts_in(folder.path());
        let [a, b, hard] =
            ["lib/a.txt", "lib/b.txt", "hard.txt"].map(|name| folder.path().join(name));
        assert_eq!(hard_links(&[a.clone(), b, hard.clone()]), [hard]);
        assert!(hard_links(&[a]).is_empty());
    }
}
