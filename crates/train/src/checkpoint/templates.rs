//! Chat templates that have names: `additional_chat_templates/NAME.jinja` beside a tokenizer, where `transformers` keeps them.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use annulus_files::hugging_face::{MOST_TEMPLATES, TEMPLATES, is_template};

/// Those in `folder`, as in `additional_chat_templates/rag.jinja`, in order.
///
/// # Errors
/// What the system says; a link that leads out of `folder`, and more than anybody has.
pub(crate) fn templates(folder: &Path) -> Result<Vec<String>> {
    if fs::symlink_metadata(folder.join(TEMPLATES)).is_err() {
        return Ok(Vec::new());
    }
    let path = folder.join(TEMPLATES);
    let named = |error: Error| Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    let found = annulus_files::within(folder, TEMPLATES).map_err(named)?;
    if !found.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&found).map_err(named)? {
        let name = entry.map_err(named)?.file_name();
        let name = format!("{TEMPLATES}/{}", name.to_string_lossy());
        if is_template(&name) {
            names.push(name);
        }
        if names.len() > MOST_TEMPLATES {
            let message = format!("more than {MOST_TEMPLATES} chat templates");
            return Err(named(Error::new(ErrorKind::InvalidData, message)));
        }
    }
    names.sort();
    Ok(names)
}
