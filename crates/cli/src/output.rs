//! Where commands write: not over what they read, nor over a file of a run or a model.

use std::path::Path;

use annulus_train::is_own_file;

use crate::failure::Failure;
use crate::print::led_to;

/// Refuses to write to `out`, before anything is computed: it is one of the `inputs` of the command, or a file that a run or a model
/// consists of. Links are followed.
///
/// # Errors
/// What `out` is.
pub(crate) fn check(out: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let there = led_to(out);
    let real = there.canonicalize().ok();
    let is_same = |input: &&Path| input.canonicalize().ok() == real;
    let what = if real.as_deref().is_some_and(Path::is_file) && inputs.iter().any(is_same) {
        "what the command reads"
    } else if is_own_file(real.as_deref().unwrap_or(&there)) {
        "a file of a run or of a model"
    } else {
        return Ok(());
    };
    let message = format!("`{}` is {what}, and would be replaced", out.display());
    Err(Failure::usage(message, "give another path"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_command_reads_is_not_written() {
        let place = tempfile::tempdir().unwrap();
        let [ids, other] = ["ids", "other"].map(|name| place.path().join(name));
        let said = |out: &Path| {
            check(out, &[place.path(), &ids]).err().map(|why| why.problems.to_string())
        };
        assert_eq!(said(&ids), None, "it is not there");
        fs::write(&ids, "").unwrap();
        fs::write(&other, "").unwrap();
        assert!(said(&ids).unwrap().contains("ids` is what the command reads"));
        assert!(said(&place.path().join(".").join("ids")).is_some());
        assert_eq!(said(&other), None);
        assert_eq!(said(Path::new("/dev/null")), None);
    }

    #[cfg(unix)]
    #[test]
    fn nor_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let [ids, link] = ["ids", "link"].map(|name| place.path().join(name));
        fs::write(&ids, "").unwrap();
        std::os::unix::fs::symlink("ids", &link).unwrap();
        assert!(check(&link, &[&ids]).is_err() && check(&ids, &[&link]).is_err());
    }

    #[test]
    fn nor_are_files_of_a_model() {
        let model = tempfile::tempdir().unwrap();
        fs::write(model.path().join("config.json"), "{}").unwrap();
        let said = check(&model.path().join("model.safetensors"), &[]).unwrap_err();
        assert!(said.problems.to_string().contains("is a file of a run or of a model"));
        assert!(check(&model.path().join("scores.safetensors"), &[]).is_ok());
    }
}
